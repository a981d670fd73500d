"""Sums over windows of a grid, as products: for masked means, for bands of an image, and for graphs with a dynamic grid."""

import torch
from torch import Tensor

from .checks import Grid


def window_sums(tokens: Tensor, grid: Grid, counts: Grid, *, first_row: int = 0, height: int | None = None) -> Tensor:
    """Sums over the windows of adaptive pooling, (B, heads, N, d) -> (B, heads, n, d), row-major.

    Along a side of L tokens, window i of m is from floor(i L / m) to before ceil((i + 1) L / m).

    Args:
        grid: of the tokens.
        counts: windows along each side.
        first_row, height: which row of the image comes first, and how many it has, if the tokens are a band of it.
    """
    pooled = tokens.unflatten(2, grid)
    for axis, (side, count) in enumerate(zip(grid, counts, strict=True)):
        first, whole = (first_row, side if height is None else height) if axis == 0 else (0, side)
        inside = _windows(whole, count, torch.arange(side, device=tokens.device) + first).to(tokens.dtype)
        pooled = torch.tensordot(pooled, inside, dims=([2 + axis], [1])).movedim(-1, 2 + axis)
    return pooled.flatten(2, 1 + len(grid))


def _windows(side: int, count: int, position: Tensor) -> Tensor:
    """(count, positions): whether a position along a side is in each window."""
    number = torch.arange(count, device=position.device).unsqueeze(1)
    start, stop = number * side // count, -(-(number + 1) * side // count)
    return (position >= start) & (position < stop)
