"""A picture larger than memory: the same features as the plain forward pass, one band of rows at a time.

Tokens live in a file. A block goes over it once: for each band it reads the rows and their neighbours, answers from the summary
of all tokens, writes the rows back in place, and adds what it wrote to the summary that the next block needs. So each token is
read and written once a block, and memory holds one band. docs/math.md says why it is exact.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..layers import Block
from ..layers.summary import Summary
from ..ops.checks import Grid
from .backbone import grid_of
from .bands import all_linear, blocks_of, embed_rows, rows_needed, stages_of
from .picture import Picture, picture_for
from .stage import Stage
from .store import Store, make_stores

Band = tuple[int, int]
"""Rows from the first of these to before the second."""


class Streamed(NamedTuple):
    """What came out. All but the classes lies in memory-mapped files without a name, which go when the tensors go."""

    logits: Tensor
    """(1, num_classes): what `model(picture)` gives."""
    features: Tensor
    """What `model.forward_features(picture)` gives."""
    maps: list[Tensor]
    """(1, C, H, W) after each stage, the last with the model's last norm: `forward_intermediates(picture, norm=True)`."""


@torch.no_grad()
def stream(
    model: nn.Module,
    picture: Any,
    *,
    tokens: int = 8192,
    folder: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Streamed:
    """Take one picture of any size through a model whose blocks are all InLine over the whole map.

    Forward hooks of blocks and of what is in them are not called: they would see bands.

    Args:
        model: `inline_deit_*`, `inline_pvt_*`, or another of this package's with no softmax blocks, in evaluation mode.
        picture: a normalised tensor, an array, memory-mapped or not, a pillow image, or a path, as `open_picture` has them; all
            but tensors are normalised by the mean and deviation of the model's `pretrained_cfg`.
        tokens: how many to hold in memory at once, at least a row of them.
        folder: where the files are, which hold all tokens of all stages: about twice the first stage's height x width x
            channels x 4 bytes for a pyramid. None for the system's own place for such files; one in memory would gain nothing.
        progress: called with (done, total) after each band of each block, as `inline predict --stream` does.

    Returns:
        Classes, features and the maps of all stages, equal to those of the plain forward pass to rounding.
    """
    backbone = all_linear(model, "stream")
    if backbone.training:
        raise ValueError("stream works in evaluation mode: call model.eval() first")
    if tokens < 1:
        raise ValueError(f"tokens must be at least 1, got {tokens}")
    if not backbone.global_pool:
        raise ValueError("stream needs a global_pool, got ''")
    source = picture_for(backbone, picture)
    backbone.check_size(source.height, source.width)
    stages, grids, size = stages_of(backbone), [], (source.height, source.width)
    for stage in stages:
        size = grid_of(size, stage.embed.stride)
        grids.append(size)
    like = next(backbone.parameters())
    shapes = [
        (stage.num_prefix_tokens + grid[0] * grid[1], blocks_of(stage)[0].mixer.dim)
        for stage, grid in zip(stages, grids, strict=True)
    ]
    stores = make_stores(shapes, like.dtype, folder)
    bands = [_bands(grid, tokens) for grid in grids]
    tell = _Teller(progress, sum((1 + len(stage.blocks)) * len(some) for stage, some in zip(stages, bands, strict=True)))
    maps = []
    for stage, grid, store, some in zip(stages, grids, stores, bands, strict=True):
        norm = backbone.norm if stage is stages[-1] else nn.Identity()
        _Run(stage, grid, store, some, like.device, norm, tell).go(source._replace(read=_reader(source, like)))
        whole = store.tensor[stage.num_prefix_tokens :].view(*grid, -1)
        maps.append(whole.permute(2, 0, 1).unsqueeze(0))
        source = Picture(grid[0], grid[1], _rows_of(whole))
    features = stores[-1].tensor.unsqueeze(0) if stages[-1].num_prefix_tokens else maps[-1]
    pooled = backbone.forward_head(features, pre_logits=True).to(like.device)
    return Streamed(backbone.head(pooled), features, maps)


class _Run:
    """A stage over the bands of a picture."""

    def __init__(
        self, stage: Stage, grid: Grid, store: Store, bands: list[Band], device: torch.device, norm: nn.Module, tell: "_Teller"
    ) -> None:
        self.stage, self.grid, self.store, self.bands = stage, grid, store, bands
        self.device, self.norm, self.tell = device, norm, tell
        self.map = store.tensor[stage.num_prefix_tokens :].view(*grid, -1)  # (H, W, C)
        self.summary: Summary | None = None

    def go(self, source: Picture) -> None:
        """Tokens after the stage and the norm, into the store."""
        stage, blocks = self.stage, blocks_of(self.stage)
        for start, stop in self.bands:
            rows = embed_rows(stage.embed, _window(source, *rows_needed(stage.embed, start, stop)))
            if stage.positions is not None:
                rows = rows + stage.positions.rows(self.grid, start, stop)
            self._keep(start, stop, rows.flatten(1, 2), blocks[0])
        prefix = None if stage.positions is None else stage.positions.prefix()
        for block, following in zip(blocks, [*blocks[1:], None], strict=True):
            known, self.summary = self.summary, None
            assert known is not None
            if prefix is not None:
                known = known + block.summarize(prefix)
                prefix = block.respond(prefix, known)
            for start, stop, rows, halo in self._with_neighbours(block.reach()):
                x = rows.to(self.device).flatten(0, 1).unsqueeze(0)
                self._keep(start, stop, block.respond(x, known, (rows.shape[0], self.grid[1]), halo=halo), following)
        if prefix is not None:
            self.store.tensor[: prefix.shape[1]] = self.norm(prefix)[0].to(self.store.tensor.device)

    def _keep(self, start: int, stop: int, rows: Tensor, following: Block | None) -> None:
        """Write rows, (1, n, C), and add them to what the next block has to know; after the last block, norm them."""
        if following is None:
            rows = self.norm(rows)
        else:
            part = following.summarize(rows)
            self.summary = part if self.summary is None else self.summary + part
        self.map[start:stop] = rows[0].unflatten(0, (stop - start, -1)).to(self.map.device)
        self.store.release()
        self.tell.one()

    def _with_neighbours(self, reach: tuple[int, int]) -> Iterator[tuple[int, int, Tensor, tuple[int, int]]]:
        """Bands of the map, which is overwritten behind us: start, stop, rows with their neighbours, how many these are."""
        before = self.map[:0]
        for start, stop in self.bands:
            below = min(reach[1], self.grid[0] - stop)
            rows = torch.cat([before, self.map[start : stop + below]])
            halo = (before.shape[0], below)
            known = rows[: rows.shape[0] - below]
            before = known[max(0, known.shape[0] - reach[0]) :].clone()
            yield start, stop, rows, halo


def _window(source: Picture, start: int, stop: int) -> Tensor:
    """(1, C, stop - start, W): rows of the picture, zeros where there are none."""
    rows = source.read(max(0, start), min(stop, source.height))
    return F.pad(rows, (0, 0, max(0, -start), max(0, stop - source.height)))


def _bands(grid: Grid, tokens: int) -> list[Band]:
    """Bands of about that many tokens."""
    rows = max(1, tokens // grid[1])
    return [(start, min(start + rows, grid[0])) for start in range(0, grid[0], rows)]


def _rows_of(whole: Tensor) -> Callable[[int, int], Tensor]:
    """(H, W, C) as something to read rows from, (1, C, rows, W)."""
    return lambda start, stop: whole[start:stop].permute(2, 0, 1).unsqueeze(0)


def _reader(source: Picture, like: Tensor) -> Callable[[int, int], Tensor]:
    """The source's rows where the model is, in its precision."""
    return lambda start, stop: source.read(start, stop).to(like.device, like.dtype)


class _Teller:
    """Tells how far the work is."""

    def __init__(self, told: Callable[[int, int], None] | None, total: int) -> None:
        self.told, self.total, self.count = told, total, 0

    def one(self) -> None:
        """One band more."""
        self.count += 1
        if self.told is not None:
            self.told(self.count, self.total)
