"""Attention maps of an image larger than memory: what one point looks at over the whole image, in every layer, exactly.

While an image is streamed, each band passes through each mixer together with the summary of the whole image. What the query
reads from that summary is linear in the values, so its weight for a token is the derivative of what it reads by the token's
value: one step back through the sums of the band. Nothing is stored but the sums of the weights in the places of the map.

Layers that take a small map at once give their rows directly; those in windows are left out.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn

from ..analysis.maps import QueryMap
from ..layers import MIXERS
from ..layers.bands import WHOLE, Place
from ..layers.local_residual import LocalPart
from ..layers.mixer import Mixer
from ..layers.summary import Summaries, Summary
from ..layers.summed import BandInput, SummedMixer
from ..models.backbone import Backbone
from ..ops.checks import Grid
from ..ops.sums import to_fp32, without_autocast, zero_masked
from .stages import blocks_of, grids_of, stages_of, ways_through

MOST_PLACES = 256
"""Rows and columns of a map, at most: of a layer with more tokens, a place has the mean of as many tokens as are needed."""


@dataclass
class Watched:
    """The layers that are watched, and the names of those that are left out: they attend in windows, or to reduced keys."""

    layers: list["WatchedLayer"] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def maps(self) -> list[QueryMap]:
        """Those of the layers that the image has passed, from the first on."""
        return [layer.finished() for layer in self.layers if layer.mixed is not None]


@contextmanager
def watch_point(
    model: Backbone, size: tuple[int, int], point: tuple[float, float], *, unpadded: tuple[int, int] | None = None
) -> Iterator[Watched]:
    """Record the maps of one query while an image goes through `stream` within the context.

        with watch_point(model, (image.height, image.width), (0.5, 0.5)) as watched:
            stream(model, image)
        watched.maps[3].mixed    # (1, heads, rows, columns)

    Args:
        model: as for `stream`.
        size: height and width of the image.
        point: (y, x) of the query as shares of them, or of `unpadded`.
        unpadded: height and width of the image without padding to the right and below. Maps end with it; what a token of the
            padding weighs counts in the even share all the same.
    """
    inner = unpadded or size
    watched = Watched()
    stages = zip(stages_of(model), grids_of(model, size), ways_through(model, "attention maps", size), strict=True)
    with ExitStack() as stack:
        for number, (stage, grid, ways) in enumerate(stages):
            covered = inner[0] * grid[0] / size[0], inner[1] * grid[1] / size[1]
            row, column = (min(int(share * side), ceil(side) - 1) for share, side in zip(point, covered, strict=True))
            for index, (block, way) in enumerate(zip(blocks_of(stage), ways, strict=True)):
                name, mixer = f"stages.{number}.blocks.{index}.mixer", block.mixer
                layer = WatchedLayer(name, mixer, (grid[0], grid[1]), (row, column), covered)
                if not mixer.is_weighted_sum or way == "windows" or mixer.reduction is not None:
                    watched.left_out.append(name)
                    continue
                watched.layers.append(layer)
                if way == "bands" and isinstance(mixer, SummedMixer):
                    stack.enter_context(_watched_bands(layer, mixer))
                else:
                    stack.callback(mixer.register_forward_pre_hook(layer.take_row, with_kwargs=True).remove)
        yield watched


@contextmanager
def _watched_bands(layer: "WatchedLayer", mixer: SummedMixer) -> Iterator[None]:
    """Watch the two steps of a mixer that works in bands."""
    summarize, respond = mixer.summarize, mixer.respond

    def watched_summarize(x: Tensor, grid: Grid | None = None, **given: Any) -> Summary:
        layer.take_query(mixer, x, grid, given)
        return summarize(x, grid, **given)

    def watched_respond(x: Tensor, summaries: Summaries, grid: Grid | None = None, **given: Any) -> Tensor:
        layer.add_band(mixer, x, grid, given, summaries)
        return respond(x, summaries, grid, **given)

    mixer.summarize, mixer.respond = watched_summarize, watched_respond  # type: ignore[method-assign]
    try:
        yield
    finally:
        del mixer.summarize, mixer.respond


@dataclass
class WatchedLayer:
    """A layer, its query, and the sums of the query's weights in the places of a map."""

    name: str
    mixer: Mixer
    grid: tuple[int, int]
    query: tuple[int, int]
    """(row, column)."""
    covered: tuple[float, float]
    """How many tokens the image without padding covers, down and across."""
    mixed: Tensor | None = None
    """(heads, rows, columns)."""
    local: Tensor | None = None
    prefix: Tensor | None = None
    """(heads, prefix tokens)."""
    band: BandInput | None = None
    """That the query is in."""
    done: int = 0
    """Rows that are added, from the top."""

    @property
    def step(self) -> int:
        """Tokens along a side of a place."""
        return -(-max(self.grid) // MOST_PLACES)

    @property
    def places(self) -> tuple[int, int]:
        """Rows and columns of the map of all tokens."""
        return -(-self.grid[0] // self.step), -(-self.grid[1] // self.step)

    @property
    def shown(self) -> tuple[int, int]:
        """Rows and columns of the map without those that are padding alone."""
        return ceil(self.covered[0] / self.step), ceil(self.covered[1] / self.step)

    def finished(self) -> QueryMap:
        """The map."""
        assert self.mixed is not None
        row, column = (at // self.step for at in self.query)
        kind = next((name for name, made in MIXERS.items() if made is type(self.mixer)), type(self.mixer).__name__)
        prefix = self.mixed.new_zeros(len(self.mixed), 0) if self.prefix is None else self.prefix
        mixed, local = (None if part is None else self._means(part)[None] for part in (self.mixed, self.local))
        assert mixed is not None
        tokens = None if self.shown == self.grid else self.grid
        span = self.shown[0] * self.step / self.covered[0], self.shown[1] * self.step / self.covered[1]
        return QueryMap(self.name, kind, (row, column), self.shown, mixed, local, prefix[None], tokens, span)

    def take_row(self, mixer: nn.Module, given: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Before a layer sees a whole map: the query's row of weights."""
        x, grid = given
        assert isinstance(mixer, Mixer)
        prefix = int(options.get("num_prefix_tokens", 0))
        rows = mixer.attention_rows(x, grid, [prefix + self.query[0] * self.grid[1] + self.query[1]], **options)
        mixed = rows.mixed[0, :, 0]
        self.prefix = mixed[:, :prefix]
        self.mixed = self._sum_places(mixed[:, prefix:].unflatten(1, self.grid), 0, self.grid[0])
        if rows.local is not None:
            local = rows.local[0, :, 0, prefix:].unflatten(0, (len(mixed), -1)).mean(1)
            self.local = self._sum_places(local.unflatten(1, self.grid), 0, self.grid[0])

    def take_query(self, mixer: SummedMixer, x: Tensor, grid: Grid | None, given: dict[str, Any]) -> None:
        """Keep the band that the query is in."""
        place: Place = given.get("place", WHOLE)
        if grid is None or self.band is not None:
            return
        start, stop = place.inner_rows(grid)
        if start <= self.query[0] < stop:
            self.band = BandInput(mixer, zero_masked(x, given.get("mask")).clone(), grid, place, given.get("mask"))

    def add_band(self, mixer: SummedMixer, x: Tensor, grid: Grid | None, given: dict[str, Any], summaries: Summaries) -> None:
        """Add the weights of a band's tokens, or of prefix tokens."""
        if self.band is None or self.band.grid is None:
            return  # the query is masked
        place, mask = given.get("place", WHOLE), given.get("mask")
        first, _ = self.band.place.inner_rows(self.band.grid)
        token = (self.query[0] - first) * self.grid[1] + self.query[1]
        band = BandInput(mixer, zero_masked(x, mask), grid, place, mask)
        weights = _weights(mixer, self.band, token, band, summaries)
        if grid is None:
            self.prefix = weights
            return
        start, stop = place.inner_rows(grid)
        first = max(start, self.done)  # a block whose MLP sees neighbours asks for some rows again
        self.done = max(stop, self.done)
        found = self._sum_places(
            weights.unflatten(1, (stop - start, self.grid[1]))[:, first - start :], first, max(first, stop)
        )
        self.mixed = found if self.mixed is None else self.mixed + found
        if self.local is None and mixer.local_parts():
            self.local = self._local_places(mixer.local_parts(), summaries[0].input_mean, len(weights))

    def _sum_places(self, weights: Tensor, start: int, stop: int) -> Tensor:
        """The sums of the weights (heads, n, W) of some rows over the places of the whole map, (heads, rows, columns)."""
        device = weights.device
        rows, columns = torch.arange(start, stop, device=device), torch.arange(self.grid[1], device=device)
        rows, columns = rows // self.step, columns // self.step
        across = weights.new_zeros(len(weights), stop - start, self.places[1]).index_add_(2, columns, weights)
        return weights.new_zeros(len(weights), *self.places).index_add_(1, rows, across)

    def _means(self, sums: Tensor) -> Tensor:
        """The mean over the tokens of each place that is shown, times how many tokens there are for a place."""
        sizes = [torch.full((count,), self.step, device=sums.device) for count in self.places]
        for size, count, side in zip(sizes, self.places, self.grid, strict=True):
            size[-1] = side - self.step * (count - 1)
        tokens = sizes[0][:, None] * sizes[1]
        rows, columns = self.shown
        return (sums / tokens)[:, :rows, :columns] * (self.grid[0] * self.grid[1] / (rows * columns))

    def _local_places(self, parts: Sequence[LocalPart], x_mean: Tensor, heads: int) -> Tensor:
        """The same of the local parts: the taps of their kernels, around the query."""
        total = x_mean.new_zeros(heads, *self.places)
        for part in parts:
            kernel = to_fp32(part.kernels(x_mean))[0].unflatten(0, (heads, -1)).mean(1)
            centre = [(side - 1) // 2 for side in kernel.shape[1:]]
            for down, right in product(*map(range, kernel.shape[1:])):
                row, column = self.query[0] + down - centre[0], self.query[1] + right - centre[1]
                if 0 <= row < self.grid[0] and 0 <= column < self.grid[1]:
                    total[:, row // self.step, column // self.step] += kernel[:, down, right]
        return total


def _weights(mixer: SummedMixer, query: BandInput, token: int, band: BandInput, summaries: Summaries) -> Tensor:
    """How much a token of one band weighs the tokens of another, (heads, n): the mean over the channels of each head."""
    with without_autocast(band.x.device):
        band.v = band.v.detach()
        with torch.enable_grad():
            band.v.requires_grad_()
            probed: Summaries = ()
            for total in summaries:
                sums, maximum = mixer.sum_tokens(band, probed)
                part = replace(total, sums=sums, maximum=maximum).on_scale(total.maximum)
                changes = [each - each.detach() for each in part.sums]
                probed = (*probed, replace(total, sums=tuple(map(torch.add, total.sums, changes))))
            read = mixer.read(query, probed)[:, :, token]
            (found,) = torch.autograd.grad(read.sum(), band.v)
    return found[0].mean(2)
