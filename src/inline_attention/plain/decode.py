"""Reading whatever a picture's file may hold, and telling which file is bad."""

from typing import IO

import numpy as np
from PIL import Image, UnidentifiedImageError

from .transparency import on_white
from .wide import WIDE, wide_range
from .wording import first_line


class BadPictureError(ValueError):
    """A file that is no picture, or not a whole one."""


def decode(opened: IO[bytes] | Image.Image, name: str, channels: int) -> Image.Image:
    """A picture in RGB or grey, from a file or from what a data set made of it.

    16 bits and more are scaled to 8 by their own range (65,535 for whole numbers, 1 or 255 for real ones), transparency is
    laid on white.
    """
    try:
        with Image.open(opened) if not isinstance(opened, Image.Image) else opened as picture:
            if picture.mode in WIDE:
                values = np.asarray(picture, dtype=np.float32) / wide_range(picture)
                picture = Image.fromarray((np.clip(values, 0, 1) * 255).astype(np.uint8))
            return on_white(picture).convert("RGB" if channels == 3 else "L")
    except Exception as error:  # Pillow raises many kinds for a broken file
        reason = "not a picture" if isinstance(error, UnidentifiedImageError) else first_line(error)
        raise BadPictureError(f"{name} cannot be read: {reason}") from error
    finally:
        if not isinstance(opened, Image.Image):
            opened.close()
