"""The map of one stage in a training pass: its bands, which tokens are valid, and gradients that replace each other in a file.

Shapes: rows of maps (1, n, W, C), their mask (1, n, W).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..layers.bands import Band, Limits
from ..ops.checks import Grid
from .row_share import RowShare

Reach = tuple[int, int]
"""Rows above and below."""


@dataclass
class StageMap:
    """Where the bands of a stage's map lie. Rows are counted from the top of the whole map."""

    grid: Grid
    """Of the whole map."""
    limits: list[Limits]
    """Of the bands of this process."""
    device: torch.device
    """Where the model is."""
    share: RowShare
    """The processes that share the image."""
    done: Callable[[int], None]
    """Called after each band, with 1, and with the number of those that are left out."""
    mask: Tensor | None = None
    """(1, H, W): which tokens are valid; None if all are."""
    live: list[Limits] = field(init=False)
    """The bands that hold a valid token."""

    def __post_init__(self) -> None:
        self.live = self.limits

    @property
    def own(self) -> Limits:
        """The rows of this process."""
        return self.limits[0][0], self.limits[-1][1]

    def bands(self, rows: Tensor, reach: Reach) -> Iterator[Band]:
        """The bands of a map with their neighbours, those of the next processes included."""
        own, height = self.own, self.grid[0]
        above, below = self.share.around(rows, reach)
        for start, stop in self.live:
            first, last = max(0, start - reach[0]), min(height, stop + reach[1])
            inside = rows[:, max(first, own[0]) - own[0] : min(last, own[1]) - own[0]]
            pieces = [above[:, above.shape[1] - max(0, own[0] - first) :], inside, below[:, : max(0, last - own[1])]]
            present = [piece for piece in pieces if piece.shape[1]]
            around = present[0] if len(present) == 1 else torch.cat(present, 1)
            mask = None if self.mask is None else self.mask[:, first:last]
            yield Band(start, stop, around, (start - first, last - stop), height, mask)
            self.done(1)
        self.done(len(self.limits) - len(self.live))

    def rows(self, rows: Tensor, start: int, stop: int) -> Tensor:
        """These rows of a map that has the rows of this process, (1, stop - start, W, C)."""
        return rows[:, start - self.own[0] : stop - self.own[0]]

    def valid(self, start: int, stop: int) -> Tensor | None:
        """(1, n): which tokens of some rows are valid; None if all are."""
        return None if self.mask is None else self.mask[:, start:stop].flatten(1).to(self.device)


class GradientRows:
    """The gradient of a block's output in a file, which becomes that of its input, band by band from the top down.

    Args:
        of: the map.
        rows: the gradient, of the rows of this process.
        reach: how far a band's gradient goes beyond the band.
    """

    def __init__(self, of: StageMap, rows: Tensor, reach: Reach) -> None:
        self.of, self.rows, self.reach = of, rows, reach
        self._above, self._below = (rows.new_zeros(1, count, *rows.shape[2:]) for count in reach)
        self._ahead = rows.new_zeros(1, 0, *rows.shape[2:])
        """Gradients of rows from `_end` on, which are not replaced yet."""
        self._end = of.own[0]

    def replace(self, band: Band, gradient: Tensor) -> None:
        """Put in the gradient of a band's rows with their neighbours, (1, n, W, C)."""
        gradient = gradient.to(self.rows.device, self.rows.dtype)
        own = gradient[:, band.halo[0] : gradient.shape[1] - band.halo[1]].clone()
        ahead = self._ahead[:, band.start - self._end :]  # rows in between are masked: they have no gradient
        shared = min(ahead.shape[1], own.shape[1])
        own[:, :shared] += ahead[:, :shared]
        self.of.rows(self.rows, band.start, band.stop).copy_(own)
        self._add_before(band.start - band.halo[0], gradient[:, : band.halo[0]])
        after, left = gradient[:, gradient.shape[1] - band.halo[1] :].clone(), ahead[:, shared:]
        kept = min(left.shape[1], after.shape[1])
        after[:, :kept] += left[:, :kept]
        self._ahead, self._end = torch.cat([after, left[:, kept:]], 1), band.stop

    def add(self, band: Band, gradient: Tensor) -> None:
        """Add to the gradient of a band's rows with their neighbours, all of which are replaced already."""
        gradient = gradient.to(self.rows.device, self.rows.dtype)
        self._add_before(band.start - band.halo[0], gradient)

    def finish(self) -> None:
        """Rows of other processes: send them their gradients, and add what they send."""
        own = self.of.own
        if self._end == own[1]:
            self._below[:, : self._ahead.shape[1]] += self._ahead
        self._ahead = self._ahead[:, :0]
        first, last = self.of.share.give_back(self._above, self._below)
        self.rows[:, : first.shape[1]] += first
        self.rows[:, self.rows.shape[1] - last.shape[1] :] += last
        self._above, self._below = torch.zeros_like(self._above), torch.zeros_like(self._below)

    def _add_before(self, first: int, gradient: Tensor) -> None:
        """Add to rows from `first` on, some of which may be those of other processes."""
        own, last = self.of.own, first + gradient.shape[1]
        outside = max(0, own[0] - first)
        if outside:
            self._above[:, self._above.shape[1] - outside :] += gradient[:, :outside]
        beyond = max(0, last - own[1])
        if beyond:
            self._below[:, :beyond] += gradient[:, gradient.shape[1] - beyond :]
        inside = gradient[:, outside : gradient.shape[1] - beyond]
        self.of.rows(self.rows, first + outside, last - beyond).add_(inside)
