"""Images in bands: layers that work on one band of rows at a time, and the loops over bands.

A mixer whose keys enter through sums responds to a token from the sums over all tokens (`Summary`), and from a few rows
around the token for its local parts. So an image can come in bands: summarize each band, add the summaries, respond to each
band. Some mixers need several sweeps over the image: the sums of the first are needed for those of the second. The large-image
path of `Block`, `stream` (bands one after the other, tokens in files) and `parallelize` (one band for each process) are all
written on `summarize` and `respond`; docs/math.md shows why they are exact.

Shapes: maps (B, H, ..., C); tokens of whole rows (B, n, C); masks alike, without C, True where valid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ..ops.checks import Grid
from .summary import Summaries, Summary

Limits = tuple[int, int]
"""Rows from the first of these to before the second."""


class Place(NamedTuple):
    """Where the rows of a call lie in their image. By default they are all of it."""

    first_row: int = 0
    """The row of the image that comes first, halo included."""
    height: int | None = None
    """Rows of the whole image; None if the call has them all."""
    halo: tuple[int, int] = (0, 0)
    """How many rows at the beginning and at the end are there as neighbours only. Beyond them, and where there are none, the
    image ends."""

    def image_grid(self, grid: Grid) -> Grid:
        """The grid of the whole image, from that of the call."""
        return (grid[0] if self.height is None else self.height, *grid[1:])

    def inner_rows(self, grid: Grid) -> Limits:
        """The rows of the image that are in the call and not halo."""
        return self.first_row + self.halo[0], self.first_row + grid[0] - self.halo[1]

    def inner(self, grid: Grid | None) -> slice:
        """The tokens of a call, (B, n, C), that are not halo."""
        if grid is None or self.halo == (0, 0):
            return slice(None)
        width = torch.Size(grid[1:]).numel()
        return slice(self.halo[0] * width, (grid[0] - self.halo[1]) * width)


WHOLE = Place()


class InBands:
    """A layer's interface for images in bands. By default a mixer does not work in bands.

    `SummedMixer` implements it for mixers that give their sums and what is read from them.
    """

    @property
    def works_in_bands(self) -> bool:
        """Whether `summarize` and `respond` give the output of `forward`."""
        return False

    def prefers_bands(self, x: Tensor) -> bool:
        """Whether a large x, without gradients, is faster band by band."""
        return False

    @property
    def sweeps(self) -> int:
        """How many times the image is summed over before the first response."""
        return 1

    def reach(self) -> tuple[int, int]:
        """How many rows above and below a token `respond` sees."""
        return (0, 0)

    def summary_reach(self) -> tuple[int, int]:
        """How many rows above and below a token `summarize` sees: convolutions before the sums."""
        return (0, 0)

    def summarize(
        self,
        x: Tensor,
        grid: Grid | None = None,
        *,
        place: Place = WHOLE,
        mask: Tensor | None = None,
        local_input: Tensor | None = None,
        before: Summaries = (),
    ) -> Summary:
        """The sums over these tokens that the layer needs. Summaries of all bands, and of prefix tokens, add up to the image's.

        Args:
            x: (B, n, C): whole rows of the image, or tokens that are on no grid, such as class tokens.
            grid: the grid of x; None for tokens on no grid.
            place: where the rows of x lie in the image; its halo, which is not summed, as `summary_reach` wants it.
            mask: (B, n), True where valid; masked tokens, halo included, count as zero and are left out of the sums.
            local_input: (B, n, C): tokens whose mean the local residual makes its kernels from, if not from x.
            before: the summaries of the sweeps before this one, of the whole image.
        """
        raise NotImplementedError(f"{type(self).__name__} does not work in bands")

    def respond(
        self,
        x: Tensor,
        summaries: Summaries,
        grid: Grid | None = None,
        *,
        place: Place = WHOLE,
        mask: Tensor | None = None,
    ) -> Tensor:
        """`forward` for a band of an image, from the summaries of all of it.

        Args:
            x: (B, n, C): whole rows of the image, or tokens on no grid.
            summaries: of the whole image, one for each of the `sweeps`.
            grid, place, mask: as for `summarize`; the halo as `reach` wants it.

        Returns:
            (B, n, C) without the halo.
        """
        raise NotImplementedError(f"{type(self).__name__} does not work in bands")


class Layer(Protocol):
    """A mixer, or a block around one: what the loops call. Members as in `InBands`."""

    @property
    def sweeps(self) -> int: ...  # noqa: D102

    def summary_reach(self) -> tuple[int, int]: ...  # noqa: D102

    def summarize(  # noqa: D102
        self,
        x: Tensor,
        grid: Grid | None = None,
        *,
        place: Place = WHOLE,
        mask: Tensor | None = None,
        before: Summaries = (),
    ) -> Summary: ...

    def respond(  # noqa: D102
        self,
        x: Tensor,
        summaries: Summaries,
        grid: Grid | None = None,
        *,
        place: Place = WHOLE,
        mask: Tensor | None = None,
    ) -> Tensor: ...


class Band(NamedTuple):
    """Some rows of a map, with the rows around them that a layer needs."""

    start: int
    stop: int
    rows: Tensor
    """(B, above + stop - start + below, ..., C)."""
    halo: tuple[int, int]
    """(above, below): rows that are there as neighbours only; fewer where the image ends."""
    height: int
    """Rows of the whole map."""
    mask: Tensor | None = None
    """(B, above + stop - start + below, ...); None if all tokens are valid."""

    @property
    def place(self) -> Place:
        """Where `rows` lie."""
        return Place(self.start - self.halo[0], self.height, self.halo)

    @property
    def grid(self) -> Grid:
        """The grid of `rows`."""
        return tuple(self.rows.shape[1:-1])

    def tokens(self, device: torch.device) -> tuple[Tensor, Tensor | None]:
        """`rows` as (B, n, C), and their mask as (B, n), on the device of a layer."""
        mask = None if self.mask is None else self.mask.to(device).flatten(1)
        return self.rows.to(device).flatten(1, -2), mask


def split_rows(grid: Grid, tokens: int) -> list[Limits]:
    """Bands of about that many tokens, at least a row each, from the top down."""
    height = max(1, tokens // max(1, torch.Size(grid[1:]).numel()))
    return [(start, min(start + height, grid[0])) for start in range(0, grid[0], height)]


def bands_of(
    rows: Tensor,
    limits: Iterable[Limits],
    reach: tuple[int, int],
    *,
    overwritten: bool = False,
    mask: Tensor | None = None,
) -> Iterator[Band]:
    """The bands of a map, (B, H, ..., C), each with its neighbours.

    Args:
        limits: of all bands, from the top down; rows between them are left out.
        reach: how many rows above and below are needed.
        overwritten: whether a band is replaced in the map before the next one is taken. The rows above the next one are
            then kept from before.
        mask: of the map, (B, H, ...).
    """
    (above, below), height, kept, end = reach, rows.shape[1], rows[:, :0], 0
    for start, stop in limits:
        first, last = max(0, start - above), min(height, stop + below)
        halo, valid = (start - first, last - stop), None if mask is None else mask[:, first:last]
        if not overwritten:
            yield Band(start, stop, rows[:, first:last], halo, height, valid)
            continue
        if start > end:  # rows in between that nothing has overwritten
            kept = torch.cat([kept, rows[:, max(first, end) : start]], 1)
        around = torch.cat([kept[:, kept.shape[1] - halo[0] :], rows[:, start:last]], 1)
        own = around[:, : around.shape[1] - halo[1]]
        kept, end = own[:, max(0, own.shape[1] - above) :].clone(), stop  # a view would keep the whole band in memory
        yield Band(start, stop, around, halo, height, valid)


def summarize_in_bands(
    layer: Layer,
    bands: Callable[[tuple[int, int]], Iterable[Band]],
    device: torch.device,
    *,
    prefix: Tensor | None = None,
    first: Summary | None = None,
    complete: Callable[[Summary], Summary] | None = None,
) -> Summaries:
    """The summaries of an image, by as many sweeps over its bands as the layer needs.

    Args:
        layer: a mixer or a block.
        bands: makes the bands of the map, with the reach that it is given; called once for each sweep.
        device: where the layer is.
        prefix: (B, n, C): tokens on no grid.
        first: the first sweep's summary of the map, if it is known; prefix tokens are then still added.
        complete: applied to the summary of each sweep: adds those of other processes.
    """
    summaries: Summaries = ()
    for sweep in range(layer.sweeps):
        total = None if sweep else first
        parts = () if total is not None else bands(layer.summary_reach())
        for band in parts:
            tokens, mask = band.tokens(device)
            part = layer.summarize(tokens, band.grid, place=band.place, mask=mask, before=summaries)
            total = part if total is None else total + part
        if prefix is not None:
            alone = layer.summarize(prefix, before=summaries)
            total = alone if total is None else total + alone
        assert total is not None, "no tokens"
        summaries = (*summaries, total if complete is None else complete(total))
    return summaries


def respond_in_bands(
    layer: Layer, bands: Iterable[Band], summaries: Summaries, device: torch.device
) -> Iterator[tuple[Band, Tensor]]:
    """Each band with the layer's response to it, (B, n, C), one after the other.

    Args:
        layer: a mixer or a block.
        bands: of one map, with neighbours. The next one is taken when the caller is done with the response to the last.
        summaries: of the whole map, and of prefix tokens if there are some.
        device: where the layer is.
    """
    for band in bands:
        tokens, mask = band.tokens(device)
        yield band, layer.respond(tokens, summaries, band.grid, place=band.place, mask=mask)
