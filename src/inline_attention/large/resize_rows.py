"""Resizing in bands: rows of a map of another size, as `F.interpolate` makes them from the whole map.

A row of the result is a weighted sum of a few rows of the source: one for "nearest", two for "bilinear", and where bilinear
shrinking is antialiased, those under a triangle that is as wide as two rows of the result. So some rows of the result are a
small matrix times some rows of the source; along the rows, torch itself resizes. Positions are computed like torch's, in the
same precision: thousands of rows down, rounded positions and exact ones are not the same.
"""

from math import ceil
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .image_reader import RowReader

ROWS_AT_ONCE = 16
"""Of the result: a matrix for more of them would be mostly zeros."""


class Resize(NamedTuple):
    """How to resize: arguments of `F.interpolate`."""

    mode: Literal["nearest", "bilinear"] = "bilinear"
    align_corners: bool | None = None
    antialias: bool = False


def resized(source: RowReader, size: tuple[int, int], how: Resize, dtype: torch.dtype) -> RowReader:
    """The map at another size.

    Args:
        source: its rows should be `kept`: bands that are neighbours share some of them.
        dtype: of the map.
    """
    if (source.height, source.width) == size:
        return source

    def read(start: int, stop: int) -> Tensor:
        first, last = rows_needed(start, stop, source.height, size[0], how, dtype)
        return resize_rows(source.read(first, last), first, source.height, start, stop, size, how)

    return RowReader(size[0], size[1], read)


def rows_needed(start: int, stop: int, old: int, new: int, how: Resize, dtype: torch.dtype) -> tuple[int, int]:
    """From which row to before which one of a map of `old` rows these rows are made, if it is resized to `new`."""
    first, _ = row_weights(start, start + 1, old, new, how, dtype)
    last, bottom = row_weights(stop - 1, stop, old, new, how, dtype)
    return first, last + bottom.shape[1]


def resize_rows(rows: Tensor, first: int, height: int, start: int, stop: int, size: tuple[int, int], how: Resize) -> Tensor:
    """Rows of the map at another size.

    Args:
        rows: (1, C, n, W): those that are needed.
        first: where they begin in the map.
        height: of the map.
        start, stop: the rows to make.
        size: of all of the result.
        how: see `Resize`.

    Returns:
        (1, C, stop - start, size[1]).
    """
    pieces = []
    for at in range(start, stop, ROWS_AT_ONCE):
        begin, matrix = row_weights(at, min(at + ROWS_AT_ONCE, stop), height, size[0], how, rows.dtype)
        pieces.append(_mixed(rows[:, :, begin - first : begin - first + matrix.shape[1]], matrix))
    result = pieces[0] if len(pieces) == 1 else torch.cat(pieces, 2)
    if rows.shape[3] == size[1]:
        return result
    size = (stop - start, size[1])
    return F.interpolate(result, size, mode=how.mode, align_corners=how.align_corners, antialias=how.antialias)


def _mixed(rows: Tensor, matrix: Tensor) -> Tensor:
    """(1, C, m, W) and weights (n, m) -> (1, C, n, W), in torch's channels_last order."""
    _, channels, _, width = rows.shape
    mixed = matrix.to(rows.device, rows.dtype) @ rows[0].permute(1, 2, 0).flatten(1)
    return mixed.view(1, len(matrix), width, channels).permute(0, 3, 1, 2)


def row_weights(start: int, stop: int, old: int, new: int, how: Resize, dtype: torch.dtype) -> tuple[int, Tensor]:
    """The rows of the source that these rows of the result are made from, if `old` rows are resized to `new`.

    Returns:
        The first of them, and the weights (stop - start, how many).
    """
    dtype = torch.promote_types(dtype, torch.float32)
    rows = torch.arange(start, stop, dtype=dtype)
    if old == new:
        places, weights = rows.long().unsqueeze(1), torch.ones(stop - start, 1, dtype=dtype)
    elif how.mode == "nearest":
        places, weights = (rows.long() * old // new).unsqueeze(1), torch.ones(stop - start, 1, dtype=dtype)
    elif how.antialias:
        places, weights = _triangles(rows, old, new)
    else:
        places, weights = _neighbours(rows, old, new, align_corners=bool(how.align_corners))
    first, last = int(places.min()), int(places.max())
    matrix = torch.zeros(stop - start, last + 1 - first, dtype=dtype)
    return first, matrix.scatter_add(1, places - first, weights)


def _neighbours(rows: Tensor, old: int, new: int, *, align_corners: bool) -> tuple[Tensor, Tensor]:
    """Bilinear: the rows above and below a position, and their weights, both (rows, 2)."""
    if align_corners:
        position = rows * (rows.new_tensor(old - 1) / max(1, new - 1))
    else:
        position = ((rows + 0.5) * (rows.new_tensor(old) / new) - 0.5).clamp(min=0)
    above = position.long().clamp(max=old - 1)
    share = (position - above).clamp(max=1)
    return torch.stack([above, (above + 1).clamp(max=old - 1)], 1), torch.stack([1 - share, share], 1)


def _triangles(rows: Tensor, old: int, new: int) -> tuple[Tensor, Tensor]:
    """Antialiased: the rows under a triangle, and their weights, both (rows, as many as it may cover)."""
    scale = rows.new_tensor(old) / new
    support = scale.clamp(min=1)
    centre = ((rows + 0.5) * scale).unsqueeze(1)
    first, stop = (centre - support + 0.5).long().clamp(min=0), (centre + support + 0.5).long().clamp(max=old)
    places = first + torch.arange(2 * ceil(float(support)) + 1)
    weights = (1 - (places + 0.5 - centre).abs() / support).clamp(min=0) * (places < stop)
    return places.clamp(max=old - 1), weights / weights.sum(1, keepdim=True)
