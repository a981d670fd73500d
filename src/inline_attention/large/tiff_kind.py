"""Which library reads a TIFF: rasterio a map, openslide a slide in a microscope's own format, tifffile all others."""

from pathlib import Path

from tifffile import TiffFile

from .image_file import ImageFile
from .tiff_file import check_pieces, open_tiff

GEO_TAGS = (33550, 33922, 34264, 34735, 42112, 42113)
"""Those of GeoTIFF, and GDAL's metadata and nodata."""
SLIDES = ("svs", "ndpi", "scn", "bif", "philips")
"""Kinds of slides that tifffile knows: its attributes `is_svs` and so on."""


def open_any_tiff(path: Path) -> ImageFile:
    """Open a TIFF."""
    with TiffFile(path) as tiff:
        try:
            page = tiff.pages.first
        except IndexError:
            raise ValueError("it is truncated: it has no page") from None
        is_map = any(tag in page.tags for tag in GEO_TAGS)
        is_slide = any(getattr(tiff, f"is_{kind}") for kind in SLIDES)
        is_ome = tiff.is_ome
        if is_map:
            check_pieces(page)
    if is_map:
        from .raster_file import open_raster

        return open_raster(path)
    if is_slide or (not is_ome and _known_to_openslide(path)):
        from .slide_file import open_slide

        return open_slide(path)
    return open_tiff(path)


def _known_to_openslide(path: Path) -> bool:
    """Whether it is a slide of a kind that only openslide knows. Without openslide, no."""
    try:
        from .slide_file import vendor_of
    except ModuleNotFoundError:
        return False
    return vendor_of(path) is not None
