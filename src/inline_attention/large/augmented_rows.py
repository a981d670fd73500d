"""Augmentation of an image that is read by rows: flips, quarter turns, and colours. What is drawn is drawn before.

A quarter turn makes rows of columns, so the image is written to a file first, turned, four bytes for each number.
"""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..layers.bands import split_rows
from .image_reader import RowReader
from .tensor_file import make_tensor_files

PIXELS = 2**22
"""That are turned at once."""


class Augmentation(NamedTuple):
    """What is done to an image, in this order: colours, quarter turns, flips."""

    quarters: int = 0
    """Turns to the left by 90 degrees."""
    hflip: bool = False
    vflip: bool = False
    brightness: float = 1.0
    """A factor."""
    contrast: float = 1.0
    """A factor of the difference from medium grey."""
    saturation: float = 1.0
    """A factor of the difference from the pixel's own grey."""


def augmented(source: RowReader, how: Augmentation, mean: Tensor, std: Tensor, folder: str | Path | None = None) -> RowReader:
    """The augmented image.

    Args:
        source: normalised.
        how: see `Augmentation`.
        mean, std: (C, 1, 1), by which the image was normalised: colours are changed before.
        folder: for the file of a turned image.
    """
    if (how.brightness, how.contrast, how.saturation) != (1.0, 1.0, 1.0):
        source = _recoloured(source, how, mean, std)
    if how.quarters % 2:
        source = _turned(source, folder)  # to the left: what was on the right is above
    if how.quarters % 4 in (2, 3):
        source = _flipped(source, down=True, across=True)
    return _flipped(source, down=how.vflip, across=how.hflip)


def _flipped(source: RowReader, *, down: bool, across: bool) -> RowReader:
    if not down and not across:
        return source
    sides = [side for side, flip in ((2, down), (3, across)) if flip]

    def place(start: int, stop: int) -> tuple[int, int]:
        return (source.height - stop, source.height - start) if down else (start, stop)

    def valid(start: int, stop: int) -> Tensor:
        assert source.valid is not None
        return source.valid(*place(start, stop)).flip([side - 2 for side in sides])

    return source._replace(
        read=lambda start, stop: source.read(*place(start, stop)).flip(sides), valid=None if source.valid is None else valid
    )


def _turned(source: RowReader, folder: str | Path | None) -> RowReader:
    """Turned to the left by a quarter, in a file."""
    channels, dtype = source.read(0, 1).shape[1], torch.float32
    shapes = [(source.width, source.height, channels), (source.width, source.height)]
    image, mask = make_tensor_files(shapes, [dtype, torch.bool], None if folder == "memory" else folder)
    for start, stop in split_rows((source.height, source.width), PIXELS):
        rows = source.read(start, stop)[0].to("cpu", dtype)  # (C, n, W)
        image.tensor[:, start:stop] = rows.permute(2, 1, 0).flip(0)
        if source.valid is not None:
            mask.tensor[:, start:stop] = source.valid(start, stop).T.flip(0)
        image.release()

    def read(start: int, stop: int) -> Tensor:
        return image.tensor[start:stop].permute(2, 0, 1).unsqueeze(0).clone()

    valid = None if source.valid is None else lambda start, stop: mask.tensor[start:stop]
    return RowReader(source.width, source.height, read, valid)


def _recoloured(source: RowReader, how: Augmentation, mean: Tensor, std: Tensor) -> RowReader:
    def read(start: int, stop: int) -> Tensor:
        rows = source.read(start, stop)
        centre, width = mean.to(rows), std.to(rows)
        pixels = ((rows * width + centre) * how.brightness).clamp(0, 1)
        pixels = ((pixels - 0.5) * how.contrast + 0.5).clamp(0, 1)
        grey = pixels.mean(1, keepdim=True)
        pixels = ((pixels - grey) * how.saturation + grey).clamp(0, 1)
        return (pixels - centre) / width

    return source._replace(read=read)
