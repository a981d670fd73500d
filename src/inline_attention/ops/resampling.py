"""Learned values on a grid, resampled to another grid: how parameters that were made for one size serve any other."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .checks import Grid
from .shifted_windows import known

MODES = {1: "linear", 2: "bilinear", 3: "trilinear"}


def resample_grid(values: Tensor, grid: Grid) -> Tensor:
    """(B, C, *old grid) -> (B, C, *grid), linearly along each side, corners not aligned; unchanged on the same grid."""
    if known(*grid) and tuple(values.shape[2:]) == tuple(grid):
        return values
    return F.interpolate(values, tuple(grid), mode=MODES[len(grid)], align_corners=False)


def resample_rows(values: Tensor, grid: Grid, start: int, stop: int) -> Tensor:
    """(B, C, stop - start, ...): these rows of `resample_grid(values, grid)`, without making the others."""
    if (start, stop) == (0, grid[0]):
        return resample_grid(values, grid)
    old, new = values.shape[2], grid[0]
    kind = torch.promote_types(values.dtype, torch.float32)
    at = ((torch.arange(start, stop, device=values.device, dtype=kind) + 0.5) * (old / new) - 0.5).clamp(min=0)
    low = at.long().clamp(max=old - 1)
    share = (at - low).to(values.dtype).view(-1, *(1 for _ in grid[1:]))
    rows = values[:, :, low] * (1 - share) + values[:, :, (low + 1).clamp(max=old - 1)] * share
    if len(grid) == 1:
        return rows
    across = resample_grid(rows.transpose(1, 2).flatten(0, 1), grid[1:])  # (B * rows, C, ...)
    return across.unflatten(0, (len(values), stop - start)).transpose(1, 2)
