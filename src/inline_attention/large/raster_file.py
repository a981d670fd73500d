"""Maps by GDAL, through rasterio: GeoTIFF, COG and JPEG 2000, with their overviews; and large PNG and JPEG, by rows.

Only these drivers are used, whatever a file says: others of GDAL's go to the network or to other files. A file of a palette
gives its colours. An inner mask becomes a channel of alpha.
"""

import os
import warnings
from collections.abc import Sequence
from math import hypot
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.enums import ColorInterp, MaskFlags
from rasterio.errors import NotGeoreferencedWarning, RasterioIOError
from rasterio.windows import Window

from ..lite.decode import why
from .image_file import ALPHA, COLOURS, Georeference, Level, PixelSize

DRIVERS = {b"\x89PNG": "PNG", b"\xff\xd8\xff": "JPEG", b"\0\0\0\x0cjP": "JP2OpenJPEG", b"\xff\x4f\xff\x51": "JP2OpenJPEG"}
"""By how a file begins; all others are taken for a TIFF."""
SETTINGS = {"GDAL_ERROR_ON_LIBJPEG_WARNING": True, "GDAL_NUM_THREADS": str(min(4, os.cpu_count() or 1))}
"""A truncated JPEG is an error, and tiles are decoded by several threads."""
MEANING = {ColorInterp.red: COLOURS[0], ColorInterp.green: COLOURS[1], ColorInterp.blue: COLOURS[2], ColorInterp.alpha: ALPHA}
"""GDAL's names of colours, and those of channels here."""


class RasterFile:
    """A map as an `ImageFile`."""

    def __init__(self, path: Path) -> None:
        self._levels: list[Any] = []
        try:
            with rasterio.Env(**SETTINGS), warnings.catch_warnings():  # what GDAL warns of goes to the log, not to the terminal
                warnings.simplefilter("ignore", NotGeoreferencedWarning)
                self._levels.append(_opened(path))
                for number in range(len(self._levels[0].overviews(1))):
                    self._levels.append(_opened(path, OVERVIEW_LEVEL=number))
                self._describe(self._levels[0])
        except BaseException:
            self.close()
            raise

    def _describe(self, first: Any) -> None:
        self.palette = _palette(first)
        self.dtype: np.dtype[Any] = np.dtype(np.uint8) if self.palette is not None else np.result_type(*first.dtypes)
        flags = first.mask_flag_enums[0]
        self.masked = MaskFlags.per_dataset in flags and MaskFlags.alpha not in flags
        self.channels = (COLOURS if self.palette is not None else _names(first)) + ((ALPHA,) if self.masked else ())
        self.nodata: float | None = None if self.palette is not None or first.nodata is None else float(first.nodata)
        self.georeference: Georeference | None = None
        self.pixel_size: PixelSize | None = None
        if first.crs:
            self.georeference = Georeference(first.crs.to_wkt(), tuple(first.transform)[:6])
            self.pixel_size = _pixel_size(first)
        height, width = first.height, first.width
        self.levels = tuple(
            Level(each.height, each.width, (height / each.height + width / each.width) / 2, each.block_shapes[0][0])
            for each in self._levels
        )

    def read(self, level: int, start: int, stop: int, channels: Sequence[int] | None = None) -> NDArray[Any]:
        """(stop - start, width, channels): these rows."""
        source = self._levels[level]
        window = Window(0, start, source.width, stop - start)
        wanted = list(range(len(self.channels)) if channels is None else channels)
        with rasterio.Env(**SETTINGS):
            try:
                rows = self._colours(source, window, wanted)
            except RasterioIOError as error:
                raise ValueError(why(error.__cause__ or error)) from error
        return rows.astype(self.dtype, copy=False)

    def _colours(self, source: Any, window: Window, wanted: list[int]) -> NDArray[Any]:
        """(rows, W, channels): these channels, which are bands, colours of the palette, or the inner mask."""
        mask = len(self.channels) - 1 if self.masked else None
        bands = [number for number in wanted if number != mask]
        if self.palette is not None:
            rows = self.palette[source.read(1, window=window)][:, :, bands]
        else:
            rows = np.moveaxis(source.read([number + 1 for number in bands], window=window), 0, 2)
        return rows if mask not in wanted else np.insert(rows, wanted.index(mask), self._mask(source, window), 2)

    def _mask(self, source: Any, window: Window) -> NDArray[Any]:
        """(rows, W): the inner mask, as alpha of this dtype."""
        inside = source.dataset_mask(window=window) > 0
        return inside.astype(self.dtype) * self.dtype.type(np.iinfo(self.dtype).max if self.dtype.kind in "iu" else 1)

    def close(self) -> None:
        """Close the file."""
        with rasterio.Env(**SETTINGS):
            for each in self._levels:
                each.close()


def open_raster(path: Path) -> RasterFile:
    """Open a map, or another image that GDAL reads by rows."""
    return RasterFile(path)


def _opened(path: Path, **options: Any) -> Any:
    with path.open("rb") as file:
        head = file.read(8)
    driver = next((name for start, name in DRIVERS.items() if head.startswith(start)), "GTiff")
    return rasterio.open(path, driver=driver, **options)


def _names(source: Any) -> tuple[str, ...]:
    """What the file calls its bands, or their colours, or their numbers from 0 on."""
    names = []
    for number, (said, meaning) in enumerate(zip(source.descriptions, source.colorinterp, strict=True)):
        names.append(ALPHA if meaning == ColorInterp.alpha else said or MEANING.get(meaning, str(number)))
    return tuple(names)


def _palette(source: Any) -> NDArray[np.uint8] | None:
    """The colours (n, 3) of an image of one band that has numbers of colours."""
    if source.count != 1 or source.colorinterp[0] != ColorInterp.palette:
        return None
    colours = source.colormap(1)
    palette = np.zeros((np.iinfo(source.dtypes[0]).max + 1, 3), np.uint8)
    for number, colour in colours.items():
        palette[number] = colour[:3]
    return palette


def _pixel_size(source: Any) -> PixelSize | None:
    """In metres; None where the map is in degrees."""
    if not source.crs.is_projected:
        return None
    metres = source.crs.linear_units_factor[1]
    a, b, _, d, e, _ = tuple(source.transform)[:6]
    return PixelSize(hypot(b, e) * metres, hypot(a, d) * metres, "m")
