"""Which level of a pyramid an image is read from, and to which size it is averaged; how large its pixels then are."""

from dataclasses import replace
from math import isfinite

from .image_file import Georeference, ImageFile, Level, PixelSize

TOLERANCE = 0.01
"""Pixel sizes that differ by less are the same: scanners do not state theirs more exactly."""


def choose_level(file: ImageFile, level: int | None, mpp: float | None) -> tuple[int, tuple[int, int]]:
    """The level to read, and the size (H, W) of the image.

    Args:
        file: an open image file.
        level: this one, as it is; None for the finest.
        mpp: how large a pixel shall be, micrometres on slides and metres on maps: the nearest level that is not coarser, which
            is then averaged. None for a level as it is.
    """
    if mpp is None:
        number = 0 if level is None else level
        if not 0 <= number < len(file.levels):
            raise ValueError(f"there is no level {level}: it has {_listed(file.levels)}")
        return number, (file.levels[number].height, file.levels[number].width)
    if level is not None:
        raise ValueError(f"level {level} and mpp {mpp:g} are two ways to choose a resolution: give one of them")
    if not (isfinite(mpp) and mpp > 0):
        raise ValueError(f"mpp must be positive, got {mpp:g}")
    if file.pixel_size is None:
        raise ValueError(f"it does not say how large its pixels are, so mpp {mpp:g} cannot be reached: choose a level instead")
    finest, size = file.levels[0], file.pixel_size
    height, width = finest.height * size.height / mpp, finest.width * size.width / mpp
    if min(height, width) < 0.5:
        raise ValueError(f"mpp {mpp:g} is coarser than the whole image, {finest.height:,} x {finest.width:,} pixels")
    fine = [
        number
        for number, each in enumerate(file.levels)
        if each.height >= height * (1 - TOLERANCE) and each.width >= width * (1 - TOLERANCE)
    ]
    if not fine:
        raise ValueError(
            f"mpp {mpp:g} is finer than the image, whose pixels are {size.height:g} x {size.width:g} {size.unit}: "
            "it would have to be enlarged"
        )
    chosen = max(fine, key=lambda number: file.levels[number].downsample)
    here = file.levels[chosen]
    return chosen, (_size(here.height, height), _size(here.width, width))


def _size(have: int, want: float) -> int:
    """The level's own size, where it is what was asked for."""
    return have if abs(want / have - 1) < TOLERANCE else max(1, min(have, round(want)))


def pixel_size_at(file: ImageFile, size: tuple[int, int]) -> PixelSize | None:
    """How large a pixel is, of the image at this size (H, W)."""
    if file.pixel_size is None:
        return None
    down, across = file.levels[0].height / size[0], file.levels[0].width / size[1]
    return replace(file.pixel_size, height=file.pixel_size.height * down, width=file.pixel_size.width * across)


def georeference_at(file: ImageFile, size: tuple[int, int]) -> Georeference | None:
    """Where the image lies, at this size (H, W)."""
    if file.georeference is None:
        return None
    down, across = file.levels[0].height / size[0], file.levels[0].width / size[1]
    a, b, c, d, e, f = file.georeference.transform
    return replace(file.georeference, transform=(a * across, b * down, c, d * across, e * down, f))


def _listed(levels: tuple[Level, ...]) -> str:
    """The levels, in words."""
    return ", ".join(f"{number} ({level.height:,} x {level.width:,})" for number, level in enumerate(levels))
