"""Writes a map as a cloud-optimised GeoTIFF, by GDAL: tiled, compressed, with overviews, in the coordinates of the image."""

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..lite.label_drawing import class_colour
from .map_levels import TILE, MapLevels
from .segmented_map import SegmentedMap
from .whole_path import temporary_path, whole_path

CACHE_MEGABYTES = 128
"""Of GDAL's blocks; its own default is a share of the machine's memory."""


def write_cog(path: Path, found: SegmentedMap) -> None:
    """Write the probabilities if there are any, else the labels. GDAL makes the file from a plain TIFF, which is removed."""
    import rasterio
    from rasterio.shutil import copy

    planes = found.probabilities or found.labels
    if planes.dtype == "float16":
        raise ValueError("GeoTIFF has no float16 here: take --probabilities uint8 or float32, or write a .zarr")
    options = {
        "driver": "COG",
        "compress": "DEFLATE",
        "blocksize": TILE,
        "overview_resampling": "AVERAGE" if found.probabilities else "MODE",
        "bigtiff": "IF_SAFER",
    }
    plain_name = path.with_name(f"{path.name}.plain")
    with gdal_settings(), whole_path(path) as temporary, temporary_path(plain_name) as plain:
        with rasterio.open(plain, "w", **_profile(found, planes)) as file:
            _describe(file, found)
            _write_blocks(file, planes)
        copy(plain, temporary, **options)


def _profile(found: SegmentedMap, planes: MapLevels) -> dict[str, Any]:
    from rasterio import Affine
    from rasterio.crs import CRS

    count, height, width = planes.levels[0].shape
    profile: dict[str, Any] = {
        "driver": "GTiff", "count": count, "height": height, "width": width, "dtype": planes.dtype.name,
        "tiled": True, "blockxsize": TILE, "blockysize": TILE, "bigtiff": "IF_SAFER",
    }  # fmt: skip
    if found.place.georeference is not None:
        crs = CRS.from_wkt(found.place.georeference.crs)
        profile |= {"crs": crs, "transform": Affine(*found.place.georeference.transform)}
    if found.probabilities is None:
        profile["nodata"] = found.ignored
    elif planes.dtype.kind == "f":
        profile["nodata"] = float("nan")
    return profile


def _describe(file: Any, found: SegmentedMap) -> None:
    """Names of the classes; and their colours, which GeoTIFF has for labels of 8 bits."""
    file.update_tags(classes=json.dumps(found.classes))
    if found.probabilities is not None:
        for band, name in enumerate(found.classes, start=1):
            file.set_band_description(band, name)
    elif found.labels.dtype == "uint8":
        file.write_colormap(1, {number: (*class_colour(number), 255) for number in range(len(found.classes))})


def _write_blocks(file: Any, planes: MapLevels) -> None:
    from rasterio.windows import Window

    _, height, width = planes.levels[0].shape
    for top in range(0, height, TILE):
        for left in range(0, width, TILE):
            block = planes.levels[0][:, top : top + TILE, left : left + TILE]
            file.write(block, window=Window(left, top, block.shape[2], block.shape[1]))
        planes.release()


@contextmanager
def gdal_settings() -> Iterator[None]:
    """GDAL with a small cache, and without a warning for images that lie nowhere on the earth. Its errors are OSErrors."""
    import rasterio
    from rasterio.errors import NotGeoreferencedWarning, RasterioError

    with rasterio.Env(GDAL_CACHEMAX=CACHE_MEGABYTES, GDAL_PAM_ENABLED=False), warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        try:
            yield
        except RasterioError as error:
            raise OSError(str(error)) from error
