"""Cutting a map of tokens into windows, each of which attends to itself alone.

A window says how far a token sees: 7 x 7 (Swin), all rows x 7 columns (CSwin's stripes). On a given grid it becomes `Cuts`:
the map is padded to the right and below until the windows divide it, and, if they are shifted, rolled by half a window, so
that every second block sees across the borders of the one before. No side is assumed to equal another.

Shapes: tokens (B, N, C) with N = H * W; in windows (B * count, h * w, C), the windows of one picture next to each other.
"""

from math import ceil
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .checks import Grid


class Window(NamedTuple):
    """How far a token sees; None is the whole side of the map."""

    height: int | None
    width: int | None
    shifted: bool = False


class Cuts(NamedTuple):
    """How one map is cut."""

    grid: Grid
    """(H, W)."""
    size: tuple[int, int]
    """(h, w), never larger than the grid."""
    shift: tuple[int, int]
    """By how much the map is rolled up and to the left."""

    @property
    def counts(self) -> tuple[int, int]:
        """How many windows there are, one below the other and side by side."""
        return ceil(self.grid[0] / self.size[0]), ceil(self.grid[1] / self.size[1])

    @property
    def padding(self) -> tuple[int, int]:
        """Rows below and columns to the right that belong to no token."""
        rows, columns = (n * size - side for n, size, side in zip(self.counts, self.size, self.grid, strict=True))
        return rows, columns


def cut(grid: Grid, window: Window) -> Cuts:
    """The window on this grid. A side no longer than the window is one window, unshifted."""
    sizes, shifts = [], []
    for side, size in zip(grid, (window.height, window.width), strict=True):
        whole = size is None or side <= size
        sizes.append(side if size is None or whole else size)
        shifts.append(size // 2 if size is not None and window.shifted and not whole else 0)
    return Cuts(grid, (sizes[0], sizes[1]), (shifts[0], shifts[1]))


def to_windows(tokens: Tensor, cuts: Cuts) -> Tensor:
    """(B, N, C) -> (B * count, h * w, C)."""
    x = tokens.unflatten(1, cuts.grid)
    if any(cuts.padding):
        x = F.pad(x, (0, 0, 0, cuts.padding[1], 0, cuts.padding[0]))
    if any(cuts.shift):
        x = x.roll((-cuts.shift[0], -cuts.shift[1]), (1, 2))
    (rows, columns), (height, width) = cuts.counts, cuts.size
    x = x.reshape(-1, rows, height, columns, width, tokens.shape[2]).transpose(2, 3)
    return x.reshape(-1, height * width, tokens.shape[2])


def from_windows(windows: Tensor, cuts: Cuts) -> Tensor:
    """(B * count, h * w, C) -> (B, N, C): the way back, padding cut off."""
    (rows, columns), (height, width), (tall, wide) = cuts.counts, cuts.size, cuts.grid
    x = windows.reshape(-1, rows, columns, height, width, windows.shape[2]).transpose(2, 3)
    x = x.reshape(-1, rows * height, columns * width, windows.shape[2])
    if any(cuts.shift):
        x = x.roll(cuts.shift, (1, 2))
    return x[:, :tall, :wide].flatten(1, 2)


def regions(cuts: Cuts, device: torch.device) -> Tensor | None:
    """(count, h * w): which tokens of a window were neighbours before rolling: equal numbers; padding is -1.

    None if every window is one region, so that there is nothing to keep apart.
    """
    if not any(cuts.padding) and not any(cuts.shift):
        return None
    rows, columns = (_origins(cuts, axis, device) for axis in (0, 1))
    number = 2 * (rows < cuts.shift[0]).long()[:, None] + (columns < cuts.shift[1]).long()
    number = number.masked_fill((rows >= cuts.grid[0])[:, None] | (columns >= cuts.grid[1]), -1)
    rolled_back = Cuts((len(rows), len(columns)), cuts.size, (0, 0))
    return to_windows(number.view(1, -1, 1), rolled_back).squeeze(-1)


def valid_tokens(cuts: Cuts, windows: Tensor) -> Tensor | None:
    """(B * count, h * w) for tensors (B * count, ...): False where a window was padded; None where none was."""
    region = regions(cuts, windows.device)
    if region is None or not any(cuts.padding):
        return None
    return (region >= 0).repeat(windows.shape[0] // region.shape[0], 1)


def _origins(cuts: Cuts, axis: int, device: torch.device) -> Tensor:
    """Where on the padded map each row (or column) of the rolled map comes from."""
    length = cuts.grid[axis] + cuts.padding[axis]
    return (torch.arange(length, device=device) + cuts.shift[axis]) % length


def rows_from_windows(weights: Tensor, cuts: Cuts, chosen: Tensor) -> Tensor:
    """Dense rows of chosen tokens, (B, heads, queries, N), from those of all windows, (B * count, heads, h w, h w)."""
    tokens = cuts.grid[0] * cuts.grid[1]
    numbers = torch.arange(1, tokens + 1, device=weights.device)
    numbers = to_windows(numbers.view(1, -1, 1), cuts).squeeze(-1) - 1  # (count, h w): which token is where, padding -1
    count, size = numbers.shape
    place = torch.empty(tokens, dtype=torch.long, device=weights.device)
    place[numbers[numbers >= 0]] = torch.nonzero(numbers.flatten() >= 0).squeeze(1)
    window, slot = place[chosen] // size, place[chosen] % size
    within = weights.unflatten(0, (-1, count))[:, window, :, slot].permute(1, 2, 0, 3)  # (B, heads, queries, h w)
    columns = numbers[window].where(numbers[window] >= 0, tokens).expand_as(within)
    rows = weights.new_zeros(*within.shape[:3], tokens + 1)
    return rows.scatter(3, columns, within)[..., :tokens]
