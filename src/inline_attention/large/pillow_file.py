"""Images that pillow reads: PNG, JPEG, WebP, BMP, GIF, PPM. They are decoded as a whole, up to a limit of pixels."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..lite.decode import HIGH_BIT_DEPTH, BadImageError, open_pillow, without_pillows_limit
from ..lite.limits import MAX_STREAMED_PIXELS, max_pixels
from .image_file import ALPHA, COLOURS, Level

CONVERT = "convert it to a tiled TIFF first, by: vips copy IMAGE out.tif[tile,pyramid,compression=jpeg,bigtiff]"
"""What to do with an image that is too large to be decoded as a whole."""


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


def open_with_pillow(path: Path) -> PillowFile:
    """Open an image and decode it."""
    try:
        image = open_pillow(path, limit=max_pixels(MAX_STREAMED_PIXELS))
    except BadImageError as error:
        raise ValueError(f"{error}; or {CONVERT}") from error
    try:
        with without_pillows_limit():
            image.load()
    except BaseException:
        image.close()
        raise
    return PillowFile(image)
