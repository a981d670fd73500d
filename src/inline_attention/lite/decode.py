"""Images from files: any mode and bit depth becomes 8-bit RGB or grey, and a file that cannot be read is named."""

from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image, UnidentifiedImageError

HIGH_BIT_DEPTH = ("I;16", "I;16L", "I;16B", "I;16N", "I", "F")
"""Modes of pillow's with more than 8 bits. `convert` would clip them instead of scaling."""


class BadImageError(ValueError):
    """A file that is not an image, or is truncated."""


def decode(opened: IO[bytes] | Image.Image, name: str, channels: int) -> Image.Image:
    """An image in RGB (3 channels) or grey (1), from an open file, which is closed, or from pillow's image.

    16 bits and more are scaled to 8 by `white_level`; transparent pixels are laid on white.
    """
    try:
        with Image.open(opened) if not isinstance(opened, Image.Image) else opened as image:
            if image.mode in HIGH_BIT_DEPTH:
                values = np.asarray(image, dtype=np.float32) / white_level(image)
                check_pixels(values)
                image = Image.fromarray((np.clip(values, 0, 1) * 255).astype(np.uint8))
            return on_white(image).convert("RGB" if channels == 3 else "L")
    except Exception as error:  # Pillow raises many kinds for a broken file
        reason = "not an image" if isinstance(error, UnidentifiedImageError) else first_line(error)
        raise BadImageError(f"{name} cannot be read: {reason}") from error
    finally:
        if not isinstance(opened, Image.Image):
            opened.close()


def decode_file(name: str, channels: int) -> Image.Image:
    """Decode the file of this path."""
    try:
        opened = Path(name).open("rb")  # noqa: SIM115  closed by `decode`
    except OSError as error:
        raise BadImageError(f"{name} cannot be read: {error.strerror or first_line(error)}") from error
    return decode(opened, name, channels)


def check_pixels(values: np.ndarray[Any, Any]) -> None:
    """Raise a ValueError if pixels are NaN or infinite."""
    if not np.isfinite(values).all():
        raise ValueError("it has pixels that are not finite (NaN or infinity)")


def white_level(image: Image.Image) -> float:
    """The value of white in an image of more than 8 bits: 65,535 for integers; for floats 1, or 255 if a pixel exceeds 1."""
    if image.mode != "F":
        return 65535.0
    greatest = image.getextrema()[1]
    return 1.0 if isinstance(greatest, float) and greatest <= 1 else 255.0


def on_white(image: Image.Image) -> Image.Image:
    """A transparent image laid on white; other images as they are."""
    if image.mode not in ("LA", "PA", "RGBA", "La", "RGBa") and "transparency" not in image.info:
        return image
    layer = image.convert("RGBA")
    white = Image.new("RGBA", layer.size, "white")
    white.alpha_composite(layer)
    return white


def per_channel(values: Sequence[float], channels: int) -> tuple[float, ...]:
    """One value for each channel: a grey image takes the mean of the values for red, green and blue."""
    return tuple(values) if len(values) == channels else (sum(values) / len(values),)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its class if it has none: other libraries' errors in one line."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
