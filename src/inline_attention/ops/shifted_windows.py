"""Cutting a map of tokens into windows, shifted or not, and padding maps to sides that a step divides.

A window is how far a token sees: 7 x 7 (Swin), all rows x 7 columns (CSwin's stripes). On a given grid it becomes `Cuts`:
the map is padded to the right and below until the windows divide it, and, if they are shifted, rolled by half a window, so
that every second block sees across the borders of the one before. No side is assumed to equal another.

After the roll, a window at a border joins regions that are not neighbours on the map (`regions`). Only softmax keeps them
apart, by a mask in `layers/softmax.py`; linear mixers see the whole window.

In an exported graph the height and width of an image are symbols (`torch.SymInt`) that stand for every number: asking whether
one equals another would fix it for good. So a step that does nothing is skipped for known sides only.

Shapes: tokens (B, N, C) with N = H * W; in windows (B * count, h * w, C), the windows of one image next to each other.
"""

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
    """(h, w), never larger than a grid that is known."""
    shift: tuple[int, int]
    """By how much the map is rolled up and to the left."""
    slab: "Slab | None" = None
    """If these are the cuts of a slab: which one. Its grid is rolled and padded already."""

    @property
    def known(self) -> bool:
        """Whether the grid is known, and not a symbol of an exported graph."""
        return known(*self.grid)

    @property
    def counts(self) -> tuple[int, int]:
        """How many windows there are, one below the other and side by side."""
        rows, columns = (
            1 if size is side else (side + size - 1) // size  # a symbol over itself is not simplified
            for side, size in zip(self.grid, self.size, strict=True)
        )
        return rows, columns

    @property
    def padding(self) -> tuple[int, int]:
        """Rows below and columns to the right that belong to no token."""
        rows, columns = (n * size - side for n, size, side in zip(self.counts, self.size, self.grid, strict=True))
        return rows, columns


class Slab(NamedTuple):
    """Some rows of windows of a map that lie below each other, or some columns of windows side by side.

    Its tokens are those of the rolled and padded map: (rows, columns) of it.
    """

    map: Cuts
    rows: tuple[int, int]
    columns: tuple[int, int]

    @property
    def cuts(self) -> Cuts:
        """How the slab itself is cut."""
        grid = (self.rows[1] - self.rows[0], self.columns[1] - self.columns[0])
        return Cuts(grid, self.map.size, (0, 0), self)

    def segments(self, axis: int) -> list[tuple[slice, slice]]:
        """Where its rows (axis 0) or columns lie: slices of the slab, and those of the map. The rest is padding."""
        first, last = (self.rows, self.columns)[axis]
        side, shift = self.map.grid[axis], self.map.shift[axis]
        length, found = self.map.counts[axis] * self.map.size[axis], []
        for turn in (0, length):  # position p of the rolled map is p + shift of the map, from its end on counted from its start
            start, stop = max(first, turn - shift), min(last, turn - shift + side)
            if start < stop:
                found.append((slice(start - first, stop - first), slice(start + shift - turn, stop + shift - turn)))
        return found

    def read(self, tokens: Tensor) -> Tensor:
        """The slab of a map (B, H, W, ...): (B, rows, columns, ...), zero in the padding."""
        slab = tokens.new_zeros(tokens.shape[0], *self.cuts.grid, *tokens.shape[3:])
        for here_down, there_down in self.segments(0):
            for here_across, there_across in self.segments(1):
                slab[:, here_down, here_across] = tokens[:, there_down, there_across]
        return slab

    def write(self, slab: Tensor, tokens: Tensor) -> None:
        """Write (B, rows, columns, ...) to the map, (B, H, W, ...), without the padding."""
        for here_down, there_down in self.segments(0):
            for here_across, there_across in self.segments(1):
                tokens[:, there_down, there_across] = slab[:, here_down, here_across]


def slabs(cuts: Cuts, tokens: int) -> list[Slab]:
    """Slabs of about that many tokens, one row of windows at least: or one window, where a window is as high as the map."""
    (down, across), (height, width) = cuts.counts, cuts.size
    rows, columns = down * height, across * width
    if down > 1:
        step = height * max(1, tokens // (height * columns))
        return [Slab(cuts, (start, min(start + step, rows)), (0, columns)) for start in range(0, rows, step)]
    step = width * max(1, tokens // (width * rows))
    return [Slab(cuts, (0, rows), (start, min(start + step, columns))) for start in range(0, columns, step)]


def cut(grid: Grid, window: Window) -> Cuts:
    """The window on this grid. A side no longer than the window is one window, unshifted.

    A side that is a symbol may be longer or not: it is padded to a whole window, and `_shift` is computed in the graph.
    """
    sizes, shifts = [], []
    for side, size in zip(grid, (window.height, window.width), strict=True):
        whole = size is None or (known(side) and side <= size)
        sizes.append(side if size is None or whole else size)
        shifts.append(size // 2 if size is not None and window.shifted and not whole else 0)
    return Cuts(grid, (sizes[0], sizes[1]), (shifts[0], shifts[1]))


def to_windows(tokens: Tensor, cuts: Cuts) -> Tensor:
    """(B, N, C) -> (B * count, h * w, C)."""
    x = _roll(pad_map(tokens.unflatten(1, cuts.grid), *cuts.padding), cuts)
    (rows, columns), (height, width) = cuts.counts, cuts.size
    x = x.reshape(-1, rows, height, columns, width, tokens.shape[2]).transpose(2, 3)
    return x.reshape(-1, height * width, tokens.shape[2])


def from_windows(windows: Tensor, cuts: Cuts) -> Tensor:
    """(B * count, h * w, C) -> (B, N, C): the inverse, padding removed."""
    (rows, columns), (height, width), (tall, wide) = cuts.counts, cuts.size, cuts.grid
    x = windows.reshape(-1, rows, columns, height, width, windows.shape[2]).transpose(2, 3)
    x = x.reshape(-1, rows * height, columns * width, windows.shape[2])
    x = _roll(x, cuts, back=True)[:, :tall, :wide]
    return (x if cuts.known else x.clone(memory_format=torch.contiguous_format)).flatten(1, 2)


def _roll(x: Tensor, cuts: Cuts, *, back: bool = False) -> Tensor:
    """The padded map (B, H, W, C) rolled by the shift, or back."""
    if not any(cuts.shift):
        return x
    if cuts.known:
        return x.roll(cuts.shift if back else (-cuts.shift[0], -cuts.shift[1]), (1, 2))
    for axis in (0, 1):
        x = x.index_select(axis + 1, _origins(cuts, axis, x.device, back=back))
    return x


def regions(cuts: Cuts, device: torch.device) -> Tensor | None:
    """(count, h * w): which tokens of a window were neighbours before rolling: equal numbers; padding is -1.

    None if every window is one region.
    """
    of_map = cuts if cuts.slab is None else cuts.slab.map
    if of_map.known and not any(of_map.padding) and not any(of_map.shift):
        return None
    rows, columns = (_origins(of_map, axis, device) for axis in (0, 1))
    if cuts.slab is not None:
        rows, columns = rows[slice(*cuts.slab.rows)], columns[slice(*cuts.slab.columns)]
    down, across = (_shift(of_map, axis, device) for axis in (0, 1))
    number = 2 * (rows < down).long()[:, None] + (columns < across).long()
    number = number.masked_fill((rows >= of_map.grid[0])[:, None] | (columns >= of_map.grid[1]), -1)
    rolled_back = Cuts((rows.shape[0], columns.shape[0]), cuts.size, (0, 0))
    return to_windows(number.view(1, -1, 1), rolled_back).squeeze(-1)


def valid_tokens(cuts: Cuts, windows: Tensor) -> Tensor | None:
    """(B * count, h * w) for tensors (B * count, ...): False where a window was padded; None where none was."""
    region = regions(cuts, windows.device)
    if region is None or (cuts.known and not any(cuts.padding)):
        return None
    return (region >= 0).repeat(windows.shape[0] // region.shape[0], 1)


def _origins(cuts: Cuts, axis: int, device: torch.device, *, back: bool = False) -> Tensor:
    """Which row (or column) of the padded map each one of the rolled map comes from, or the reverse."""
    length = cuts.counts[axis] * cuts.size[axis]
    positions, shift = torch.arange(length, device=device), _shift(cuts, axis, device)
    return (positions + (length - shift if back else shift)) % positions.new_full((), length)


def _shift(cuts: Cuts, axis: int, device: torch.device) -> int | Tensor:
    """By how much the map is rolled: not at all if it is one window."""
    if cuts.known or not cuts.shift[axis]:
        return cuts.shift[axis]
    return cuts.shift[axis] * (torch.arange(cuts.counts[axis], device=device).amax(0) > 0)


def rows_from_windows(weights: Tensor, cuts: Cuts, chosen: Tensor) -> Tensor:
    """Dense rows of chosen tokens, (B, heads, queries, N), from those of all windows, (B * count, heads, h w, h w)."""
    tokens = cuts.grid[0] * cuts.grid[1]
    numbers = torch.arange(1, tokens + 1, device=weights.device)
    numbers = to_windows(numbers.view(1, -1, 1), cuts).squeeze(-1) - 1  # (count, h w): the token in each slot, -1 for padding
    count, size = numbers.shape
    slots = torch.empty(tokens, dtype=torch.long, device=weights.device)
    slots[numbers[numbers >= 0]] = torch.nonzero(numbers.flatten() >= 0).squeeze(1)
    window, slot = slots[chosen] // size, slots[chosen] % size
    within = weights.unflatten(0, (-1, count))[:, window, :, slot].permute(1, 2, 0, 3)  # (B, heads, queries, h w)
    columns = numbers[window].where(numbers[window] >= 0, tokens).expand_as(within)
    rows = weights.new_zeros(*within.shape[:3], tokens + 1)
    return rows.scatter(3, columns, within)[..., :tokens]


# Padding to sides that a step divides


def known(*sides: int) -> bool:
    """Whether these are numbers, and not symbols of an exported graph."""
    return all(isinstance(side, int) for side in sides)


def missing(side: int, step: int) -> int:
    """How many rows (or columns) are missing until the step divides a side."""
    return (side + step - 1) // step * step - side


def pad_map(x: Tensor, rows: int, columns: int) -> Tensor:
    """A map (B, H, W, C) with rows of zeros below and columns of zeros to the right."""
    if known(rows, columns) and not rows and not columns:
        return x
    return F.pad(x, (0, 0, 0, columns, 0, rows))


def pad_image(x: Tensor, step: int) -> Tensor:
    """An image (B, C, H, W) with zeros below and to the right, until the step divides both sides."""
    rows, columns = missing(x.shape[2], step), missing(x.shape[3], step)
    if known(rows, columns) and not rows and not columns:
        return x
    return F.pad(x, (0, columns, 0, rows))
