"""The formats of maps that are written, and which one a result gets: by its name, and by the image that it was made from."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from .segmented_map import SegmentedMap
from .write_cog import write_cog
from .write_ome_tiff import write_ome_tiff
from .write_ome_zarr import write_ome_zarr

FORMATS: dict[str, Callable[[Path, SegmentedMap], None]] = {
    "cog": write_cog,
    "ome-tiff": write_ome_tiff,
    "ome-zarr": write_ome_zarr,
}
LIBRARIES = {"cog": "rasterio", "ome-tiff": "tifffile", "ome-zarr": "zarr"}
"""What writes them."""
ENDINGS = {"cog": ".tif", "ome-tiff": ".ome.tif", "ome-zarr": ".zarr"}
"""Of the files that are named for the user."""


def format_of(path: Path, *, georeferenced: bool) -> str:
    """The format that a file's name asks for. A `.tif` is a COG if the image lies on the earth, else an OME-TIFF."""
    name = path.name.lower()
    if name.endswith(".zarr"):
        return "ome-zarr"
    if name.endswith((".ome.tif", ".ome.tiff")):
        return "ome-tiff"
    if name.endswith((".tif", ".tiff")):
        return "cog" if georeferenced else "ome-tiff"
    raise ValueError(f"a map is written as .tif, .ome.tif or .zarr, got {path}: choose one of these, or --out-format")


def check_libraries(format: str, *, polygons: bool = False) -> None:  # noqa: A002
    """Raise a ModuleNotFoundError, before hours of work, if what writes this format or polygons is not installed."""
    for name in (LIBRARIES[format], *(["rasterio"] if polygons else [])):
        import_module(name)


def write_map(path: Path, found: SegmentedMap, format: str | None = None) -> str:  # noqa: A002  as in PIL.Image.save
    """Write a segmentation whole or not at all, in the format of its name if none is given; the format.

    Args:
        path: a file; for OME-Zarr a folder.
        found: by `collect_map`.
        format: one of FORMATS.
    """
    chosen = format or format_of(path, georeferenced=found.place.georeference is not None)
    if chosen not in FORMATS:
        raise ValueError(f"there is no format {chosen!r}; there are {', '.join(FORMATS)}")
    FORMATS[chosen](path, found)
    return chosen
