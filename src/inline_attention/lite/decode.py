"""Images from files: any mode and bit depth becomes 8-bit RGB or grey, and a file that cannot be read is named."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import IO, Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from .limits import excess

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Pillow's names of the formats that are opened, whatever a file is called: those of `IMAGE_SUFFIXES`. JPEG includes MPO.
Pillow knows others that start programs (EPS starts Ghostscript) or that nobody tests."""
HIGH_BIT_DEPTH = ("I;16", "I;16L", "I;16B", "I;16N", "I", "F")
"""Modes of pillow's with more than 8 bits. `convert` would clip them instead of scaling."""
TILE_WIDTH, TILE_HEIGHT = 322, 323
"""TIFF's tags: a tile is decoded as a whole, even if it is larger than the image."""
BAND_PIXELS = 2**22
"""Larger images are converted in bands of so many pixels."""
_PILLOW = RLock()


class BadImageError(ValueError):
    """A file that is not an image, is truncated or is too large."""


def open_pillow(file: str | Path | IO[bytes], *, limit: float | None = None) -> Image.Image:
    """Pillow's image of one of `FORMATS`: its header is read, its pixels are not decoded yet.

    Args:
        file: a path, or an open file.
        limit: the most pixels that it may have; None for `max_pixels()`.
    """
    with without_pillows_limit():
        image = Image.open(file, formats=FORMATS)
    tags = getattr(image, "tag_v2", {})
    tile = (tags.get(TILE_WIDTH, 0), tags.get(TILE_HEIGHT, 0)) if image.format == "TIFF" else (0, 0)
    for width, height in (image.size, tile):
        if found := excess(width, height, limit):
            image.close()
            raise BadImageError(found)
    return image


@contextmanager
def without_pillows_limit() -> Iterator[None]:
    """Let pillow decode images that passed our limit: its own one, of the whole process, cannot be set for one image."""
    with _PILLOW:
        before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS = before


def decode(opened: IO[bytes] | Image.Image, name: str, channels: int) -> Image.Image:
    """An image in RGB (3 channels) or grey (1), from an open file, which is closed, or from pillow's image.

    16 bits and more are scaled to 8 by `white_level`; transparent pixels are laid on white. Its `filename` is `name`.
    """
    try:
        with open_pillow(opened) if not isinstance(opened, Image.Image) else opened as image, without_pillows_limit():
            image.load()
            decoded = _to_8_bits(image, "RGB" if channels == 3 else "L")
    except Exception as error:  # Pillow raises many kinds for a broken file
        raise BadImageError(f"{name} cannot be read: {why(error)}") from error
    finally:
        if not isinstance(opened, Image.Image):
            opened.close()
    decoded.filename = name  # type: ignore[attr-defined]
    return decoded


def _to_8_bits(image: Image.Image, mode: str) -> Image.Image:
    """The image in RGB or L; a large one band by band, since whole copies would take several times its memory."""
    white = white_level(image) if image.mode in HIGH_BIT_DEPTH else 0.0

    def convert(part: Image.Image) -> Image.Image:
        if white:
            values = np.asarray(part, dtype=np.float32) / white
            check_pixels(values)
            part = Image.fromarray((np.clip(values, 0, 1) * 255).astype(np.uint8))
        return on_white(part).convert(mode)

    rows = max(1, BAND_PIXELS // max(1, image.width))
    if rows >= image.height:
        return convert(image)
    whole = Image.new(mode, image.size)
    for top in range(0, image.height, rows):
        whole.paste(convert(image.crop((0, top, image.width, min(top + rows, image.height)))), (0, top))
    return whole


def why(error: BaseException) -> str:
    """Why a file could not be read, in one line."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image"
    if isinstance(error, LookupError | ArithmeticError):  # their text alone says nothing, such as "0"
        return f"it is broken ({type(error).__name__}: {first_line(error)})"
    return str(getattr(error, "strerror", None) or first_line(error))


def check_resize(image: Image.Image, width: int, height: int) -> None:
    """Raise if an image would be resized to more pixels than the limit: long and narrow ones, whose shorter side grows."""
    if found := excess(width, height):
        name = getattr(image, "filename", "") or "the image"
        raise BadImageError(f"{name}, {image.width} x {image.height}, would be resized to too large a size: {found}")


def decode_file(name: str, channels: int) -> Image.Image:
    """Decode the file of this path."""
    try:
        opened = Path(name).open("rb")  # noqa: SIM115  closed by `decode`
    except OSError as error:
        raise BadImageError(f"{name} cannot be read: {why(error)}") from error
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
    layer = image if image.mode == "RGBA" else image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)


def per_channel(values: Sequence[float], channels: int) -> tuple[float, ...]:
    """One value for each channel: a grey image takes the mean of the values for red, green and blue."""
    return tuple(values) if len(values) == channels else (sum(values) / len(values),)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its class if it has none: other libraries' errors in one line."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
