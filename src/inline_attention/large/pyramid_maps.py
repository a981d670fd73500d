"""The four maps of a `Pyramid` at strides 4, 8, 16 and 32, by rows, for an image that is larger than memory."""

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from ..dense.pyramid import STRIDES, Pyramid, fitting_sizes
from .image_reader import RowReader
from .resize_rows import Resize, resized
from .row_maps import kept
from .stream import stream_maps


def padded(source: RowReader, multiple: int) -> RowReader:
    """The image with zeros to the right and below, up to multiples of this many pixels.

    They are valid where the nearest pixel of the image is, as for `Segmenter`.
    """
    height, width = (side + -side % multiple for side in (source.height, source.width))

    def read(start: int, stop: int) -> Tensor:
        rows = source.read(min(start, source.height), min(stop, source.height))
        return F.pad(rows, (0, width - source.width, 0, stop - start - rows.shape[2]))

    def read_valid(start: int, stop: int) -> Tensor:
        assert source.valid is not None
        last = source.height - 1
        rows = source.valid(min(start, last), min(stop, source.height))
        rows = rows[torch.arange(stop - start).clamp(max=len(rows) - 1)]
        return rows[:, torch.arange(width).clamp(max=source.width - 1)]

    return RowReader(height, width, read, None if source.valid is None else read_valid)


def stream_pyramid(
    pyramid: Pyramid,
    image: RowReader,
    *,
    tokens: int,
    folder: str | Path | None,
    progress: Callable[[int, int], None] | None,
) -> list[RowReader]:
    """Maps (1, channels[i], H / s, W / s) for s = 4, 8, 16, 32, equal to `pyramid(image)`.

    Args:
        pyramid: of a model that `stream` takes.
        image: normalised, with sides that are multiples of 32, zero where it is not valid.
        tokens, folder, progress: as for `stream`.
    """
    like = next(pyramid.parameters())
    backbone, indices, norm = pyramid.taps()
    features = stream_maps(backbone, image, indices=indices, norm=norm, tokens=tokens, folder=folder, progress=progress)
    features = [on_device(level, like) for level in features]
    return [
        fitted(level, reduction, stride, (image.height // stride, image.width // stride), like.dtype)
        for level, reduction, stride in zip(features, pyramid.reductions, STRIDES, strict=True)
    ]


def on_device(source: RowReader, like: Tensor) -> RowReader:
    """The rows on the device of `like` and in its precision."""
    return source._replace(read=lambda start, stop: source.read(start, stop).to(like.device, like.dtype))


def fitted(source: RowReader, reduction: int, stride: int, size: tuple[int, int], dtype: torch.dtype) -> RowReader:
    """A map of one stride resized to another, as by `Pyramid`."""
    if reduction != stride:
        missing, full = fitting_sizes((source.height, source.width), reduction, stride, size)
        how = Resize(antialias=reduction < stride)
        source = resized(kept(_extended(source, missing)), full, how, dtype)
    return RowReader(size[0], size[1], lambda start, stop: source.read(start, stop)[..., : size[1]])


def _extended(source: RowReader, missing: tuple[int, int]) -> RowReader:
    """With copies of the last row and column: so many of them."""
    if not any(missing):
        return source

    def read(start: int, stop: int) -> Tensor:
        rows = source.read(min(start, source.height - 1), min(stop, source.height))
        below = stop - max(source.height, start)
        rows = F.pad(rows, (0, missing[1], 0, max(0, below)), mode="replicate")
        return rows[:, :, rows.shape[2] - (stop - start) :]

    return RowReader(source.height + missing[0], source.width + missing[1], read)
