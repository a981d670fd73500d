"""Images in bands: layers that work on one band of rows at a time, and the loop over bands.

A mixer whose keys enter through sums responds to a token from the sums over all tokens (`Summary`), and from a few rows
around the token for its local parts. So an image can come in bands: summarize each band, add the summaries, respond to each
band. The large-image path of `Block`, `stream` (bands one after the other, tokens in files) and `parallelize` (one band for
each process) are all written on `summarize` and `respond`; docs/math.md shows why they are exact.

Shapes: maps (B, H, ..., C); tokens of whole rows (B, n, C).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch import distributed as dist

from ..ops.checks import Grid
from ..ops.collectives import reduce_together
from ..ops.injective import InjectiveState

Limits = tuple[int, int]
"""Rows from the first of these to before the second."""


@dataclass(frozen=True, eq=False)
class Summary:
    """The sums over all tokens that an InLine layer needs before it can respond to one of them. Summaries of bands add."""

    state: InjectiveState
    """The sums that queries read from."""
    input_sum: Tensor
    """(B, C), in fp32 or better: the local residual makes its kernels from the mean."""

    @property
    def input_mean(self) -> Tensor:
        """x_bar, (B, C)."""
        return self.input_sum / self.state.count.clamp(min=1).unsqueeze(1)

    def __add__(self, other: Summary) -> Summary:
        """The summary of both sets of tokens together."""
        return Summary(self.state + other.state, self.input_sum + other.input_sum)

    def all_reduce(self, group: dist.ProcessGroup | None = None) -> Summary:
        """The sum over all processes of a group, in one small message. Gradients flow back to all of them."""
        *state, input_sum = reduce_together([*self.state.tensors(), self.input_sum], group)
        return Summary(InjectiveState(*state), input_sum)

    def numel(self) -> int:
        """How many numbers a summary has, whatever the number of tokens."""
        return sum(tensor.numel() for tensor in (*self.state.tensors(), self.input_sum))


class InBands:
    """A mixer's interface for images in bands. By default a mixer does not work in bands."""

    @property
    def works_in_bands(self) -> bool:
        """Whether `summarize` and `respond` give the output of `forward`."""
        return False

    def prefers_bands(self, x: Tensor) -> bool:
        """Whether a large x, without gradients, is faster band by band."""
        return False

    def summarize(
        self,
        x: Tensor,
        grid: Grid | None = None,
        *,
        num_prefix_tokens: int = 0,
        mask: Tensor | None = None,
        local_input: Tensor | None = None,
        first_row: int = 0,
    ) -> Summary:
        """The sums over these tokens, (B, n, C), that the layer needs. Summaries of all bands add up to the image's.

        Arguments as for `Mixer.forward`, and for `respond`. Rotary positions need the grid; nothing else does.
        """
        raise NotImplementedError(f"{type(self).__name__} does not work in bands")

    def respond(
        self,
        x: Tensor,
        summary: Summary,
        grid: Grid | None = None,
        *,
        halo: tuple[int, int] = (0, 0),
        first_row: int = 0,
    ) -> Tensor:
        """`forward` for a band of an image, from the summary of all of it.

        Args:
            x: (B, n, C): whole rows of the image, or tokens that are on no grid, such as class tokens.
            summary: of the whole image.
            grid: the grid of x; None for tokens that have no neighbours.
            halo: how many rows of x, at its beginning and its end, are there as neighbours only. Beyond them, and where there
                are none, the image ends.
            first_row: where the first row of x lies in the image, halo included. Rotary positions count from the image's top.

        Returns:
            (B, n, C) without the halo.
        """
        raise NotImplementedError(f"{type(self).__name__} does not work in bands")


class Responds(Protocol):
    """A mixer, or a block around one, that responds to bands of an image."""

    def respond(
        self,
        x: Tensor,
        summary: Summary,
        grid: Grid | None = None,
        *,
        halo: tuple[int, int] = (0, 0),
        first_row: int = 0,
    ) -> Tensor:
        """As in `InBands`."""
        ...


class Band(NamedTuple):
    """Some rows of a map, with the rows around them that local parts need."""

    start: int
    stop: int
    rows: Tensor
    """(B, above + stop - start + below, ..., C)."""
    halo: tuple[int, int]
    """(above, below): rows that are there as neighbours only; fewer where the image ends."""


def split_rows(grid: Grid, tokens: int) -> list[Limits]:
    """Bands of about that many tokens, at least a row each, from the top down."""
    height = max(1, tokens // max(1, torch.Size(grid[1:]).numel()))
    return [(start, min(start + height, grid[0])) for start in range(0, grid[0], height)]


def bands_of(rows: Tensor, limits: Iterable[Limits], reach: tuple[int, int], *, overwritten: bool = False) -> Iterator[Band]:
    """The bands of a map, (B, H, ..., C), each with its neighbours.

    Args:
        limits: of all bands, from the top down.
        reach: how many rows above and below are needed.
        overwritten: whether a band is replaced in the map before the next one is taken. The rows above the next one are
            then kept from before.
    """
    (above, below), height, kept = reach, rows.shape[1], rows[:, :0]
    for start, stop in limits:
        last = min(height, stop + below)
        if not overwritten:
            first = max(0, start - above)
            yield Band(start, stop, rows[:, first:last], (start - first, last - stop))
            continue
        around = torch.cat([kept, rows[:, start:last]], 1)
        halo = (kept.shape[1], last - stop)
        own = around[:, : around.shape[1] - halo[1]]
        kept = own[:, max(0, own.shape[1] - above) :].clone()  # a view would keep the whole band in memory
        yield Band(start, stop, around, halo)


def respond_in_bands(
    layer: Responds, bands: Iterable[Band], summary: Summary, device: torch.device
) -> Iterator[tuple[Band, Tensor]]:
    """Each band with the layer's response to it, (B, n, C), one after the other.

    Args:
        layer: a mixer or a block.
        bands: of one map, with neighbours. The next one is taken when the caller is done with the response to the last.
        summary: of the whole map, and of prefix tokens if there are some.
        device: where the layer is.
    """
    for band in bands:
        rows = band.rows.to(device)
        tokens, grid, first_row = rows.flatten(1, -2), tuple(rows.shape[1:-1]), band.start - band.halo[0]
        yield band, layer.respond(tokens, summary, grid, halo=band.halo, first_row=first_row)
