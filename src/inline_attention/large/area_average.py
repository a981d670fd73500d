"""Area averaging by rows: a pixel of the result is the mean of what it covers, each pixel by the share that is covered.

Along an axis, pixel i of the result covers [i old / new, (i + 1) old / new) of the source. So some rows of the result are a
small matrix times some rows of the source, and the columns likewise.
"""

from functools import lru_cache

import torch
from torch import Tensor

AT_ONCE = 32
"""Rows or columns of the result: a matrix for more of them would be mostly zeros."""


def covered(start: int, stop: int, old: int, new: int) -> tuple[int, int]:
    """From which row to before which one of `old` rows these rows are made, if they are averaged to `new`."""
    return start * old // new, -(-stop * old // new)


@lru_cache(2048)  # of columns, the same ones are needed for each band
def area_weights(start: int, stop: int, old: int, new: int, dtype: torch.dtype) -> Tensor:
    """The share of each covered row in each of these rows of the result: (stop - start, how many). The sum is 1."""
    first, last = covered(start, stop, old, new)
    edges = torch.arange(start, stop + 1, dtype=torch.float64) * old / new - first
    rows = torch.arange(last - first, dtype=torch.float64)
    overlap = torch.minimum(edges[1:, None], rows + 1) - torch.maximum(edges[:-1, None], rows)
    return (overlap.clamp(min=0) * (new / old)).to(dtype)


def average_rows(rows: Tensor, start: int, stop: int, size: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """Rows of an image that is averaged to a smaller size.

    Args:
        rows: (n, W, C), those that are `covered`.
        start, stop: the rows of the result.
        size: (H, W) of the whole image.
        new: (H', W') of the whole result.

    Returns:
        (stop - start, W', C).
    """
    down = _averaged(rows, start, stop, size[0], new[0])
    return _averaged(down.transpose(0, 1), 0, new[1], size[1], new[1]).transpose(0, 1)


def _averaged(values: Tensor, start: int, stop: int, old: int, new: int) -> Tensor:
    """Along the first axis: (n, ...), those that are covered -> (stop - start, ...)."""
    if old == new:
        return values
    offset = covered(start, stop, old, new)[0]
    pieces = []
    for at in range(start, stop, AT_ONCE):
        end = min(at + AT_ONCE, stop)
        first, last = covered(at, end, old, new)
        weights = area_weights(at, end, old, new, values.dtype)
        pieces.append(torch.tensordot(weights, values[first - offset : last - offset], dims=1))
    return torch.cat(pieces)
