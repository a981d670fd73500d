"""Images that pillow reads: PNG, JPEG, WebP, BMP, GIF, PPM. They are decoded as a whole, up to a limit of pixels."""

from collections.abc import Sequence
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..lite.decode import HIGH_BIT_DEPTH, open_pillow, without_pillows_limit
from ..lite.limits import MAX_STREAMED_PIXELS, excess, max_pixels
from .image_file import ALPHA, COLOURS, ImageFile, Level

CONVERT = "convert it to a tiled TIFF first, by: vips copy IMAGE out.tif[tile,pyramid,compression=jpeg,bigtiff]"
"""What to do with an image that is too large to be decoded as a whole."""
SMALL = 2**24
"""Pixels of an image that is decoded as a whole in any case."""
MOST_PER_BYTE = 8192
"""Pixels of a byte of PNG or JPEG: neither compresses more."""
BY_ROWS = ("L", "LA", "RGB", "RGBA", "I;16")
"""Modes of PNG and JPEG that GDAL reads like pillow."""
ENTANGLED = {"interlace", "progressive", "progression", "transparency"}
"""What pillow says of files whose rows cannot be decoded one after the other, or have a transparent colour."""


class PillowFile:
    """An image of pillow's as an `ImageFile`.

    Args:
        image: it is decoded when rows are read.
    """

    pixel_size = georeference = nodata = None

    def __init__(self, image: Image.Image) -> None:
        self.image = image
        self.dtype: np.dtype[Any] = np.dtype(np.uint8)
        self.channels: tuple[str, ...] = ("grey",)
        if image.mode in HIGH_BIT_DEPTH:
            self.dtype = np.dtype(np.float32 if image.mode == "F" else np.uint16)
            self.mode = image.mode
        else:
            clear = "A" in image.mode.upper() or "transparency" in image.info
            grey = image.mode in ("1", "L", "LA", "La") and "transparency" not in image.info
            self.mode = ("LA" if clear else "L") if grey else ("RGBA" if clear else "RGB")
            self.channels = (("grey",) if grey else COLOURS) + ((ALPHA,) if clear else ())
        self.levels = (Level(image.height, image.width, 1.0),)

    def read(self, level: int, start: int, stop: int, channels: Sequence[int] | None = None) -> NDArray[Any]:
        """(stop - start, width, channels): these rows."""
        band = self.image.crop((0, start, self.image.width, stop))
        if band.mode not in HIGH_BIT_DEPTH and band.mode != self.mode:
            band = (band.convert("RGBA") if "transparency" in band.info else band).convert(self.mode)
        values = np.asarray(band)
        if self.dtype == np.uint16:  # pillow has 16 bits in modes of 16 and of 32
            values = np.clip(values, 0, 65535).astype(np.uint16)
        rows = values.reshape(stop - start, self.image.width, -1)
        return rows if channels is None else rows[:, :, list(channels)]

    def close(self) -> None:
        """Nothing: the image is freed when nobody uses it."""


def open_with_pillow(path: Path) -> ImageFile:
    """Open an image and decode it; a large PNG or JPEG that GDAL reads by rows is left to GDAL, if rasterio is there."""
    with open_pillow(path, limit=inf) as image:
        by_rows = image.format in ("PNG", "JPEG") and image.mode in BY_ROWS and not ENTANGLED & set(image.info)
        found = excess(*image.size, max_pixels(MAX_STREAMED_PIXELS))
        if by_rows and image.width * image.height > SMALL and find_spec("rasterio"):
            if image.width * image.height > MOST_PER_BYTE * (size := path.stat().st_size):
                raise ValueError(f"{image.width:,} x {image.height:,} pixels cannot be in {size:,} bytes: it is truncated")
            from .raster_file import open_raster

            return open_raster(path)
    if found:
        raise ValueError(f"{found}; or {CONVERT}")
    image = open_pillow(path, limit=max_pixels(MAX_STREAMED_PIXELS))
    try:
        with without_pillows_limit():
            image.load()
    except BaseException:
        image.close()
        raise
    return PillowFile(image)
