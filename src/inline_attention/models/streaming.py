"""A picture larger than memory: the same features as the plain forward pass, one band of rows at a time.

Tokens live in a memory-mapped file. A block goes over it once: for each band it reads the rows and their neighbours, answers
from the summary of all tokens, writes the rows back in place, and adds what it wrote to the summary that the next block needs.
So each token is read and written once a block, and memory holds one band. docs/math.md says why it is exact.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..layers import Block
from ..layers.summary import Summary
from ..ops.checks import Grid
from .backbone import Backbone, grid_of
from .bands import all_linear, embed_rows, reach, rows_needed
from .picture import Picture, picture_for
from .stage import Stage


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

    Args:
        model: `inline_deit_*`, `inline_pvt_*`, or another of this package's with no softmax blocks, in evaluation mode.
        picture: a normalised tensor, an array, memory-mapped or not, a pillow image, or a path, as `open_picture` has them; all
            but tensors are normalised by the mean and deviation of the model's `pretrained_cfg`.
        tokens: how many to hold in memory at once, at least a row of them.
        folder: where to keep activations while they are needed; None for the system's own place for such files. The largest
            stage needs its height x width x channels x 4 bytes.
        progress: called with (done, total) after each band of each block; `inline bench stream` shows how.

    Returns:
        Classes, features and the maps of all stages, equal to those of the plain forward pass to rounding.
    """
    backbone = all_linear(model, "stream")
    if backbone.training:
        raise ValueError("stream works in evaluation mode: call model.eval() first")
    if tokens < 1:
        raise ValueError(f"tokens must be at least 1, got {tokens}")
    source = picture_for(backbone, picture)
    backbone.check_size(source.height, source.width)
    like = next(backbone.parameters())
    source = source._replace(read=_on(source.read, like))
    stages = [stage for stage in backbone.stages if isinstance(stage, Stage)]
    grids = _grids(backbone, source)
    steps = _Steps(
        progress, sum((1 + len(stage.blocks)) * len(_bands(grid, tokens)) for stage, grid in zip(stages, grids, strict=True))
    )
    maps, last = [], torch.empty(0)
    for stage, grid in zip(stages, grids, strict=True):
        last = _stage(stage, source, grid, tokens, folder, steps, like, backbone.norm if stage is stages[-1] else nn.Identity())
        whole = last[stage.num_prefix_tokens :].view(*grid, -1)
        maps.append(whole.permute(2, 0, 1).unsqueeze(0))
        source = Picture(grid[0], grid[1], _on(_rows_of(whole), like))
    features = last.unsqueeze(0) if stages[-1].num_prefix_tokens else maps[-1]
    return Streamed(backbone.forward_head(features.to(like.device)), features, maps)


def _stage(
    stage: Stage,
    source: Picture,
    grid: Grid,
    tokens: int,
    folder: str | Path | None,
    steps: "_Steps",
    like: Tensor,
    norm: nn.Module,
) -> Tensor:
    """Tokens after the stage and a norm, (prefix + H * W, C), in a file."""
    blocks = [block for block in stage.blocks if isinstance(block, Block)]
    bands = _bands(grid, tokens)
    prefix = None if stage.positions is None else stage.positions.prefix()
    store: Tensor | None = None
    summary: Summary | None = None

    def write(start: int, stop: int, rows: Tensor, following: Block | None) -> None:
        """Keep rows, (1, n, C), and add them to what the next block has to know; after the last block, norm them."""
        nonlocal store, summary
        if store is None:
            store = _file_tensor((stage.num_prefix_tokens + grid[0] * grid[1], rows.shape[2]), rows.dtype, folder)
        if following is not None:
            part = following.summarize(rows)
            summary = part if summary is None else summary + part
        at = stage.num_prefix_tokens
        store[at + start * grid[1] : at + stop * grid[1]] = (rows if following is not None else norm(rows))[0].to(store.device)

    for start, stop in bands:
        rows = embed_rows(stage.embed, _window(source, *rows_needed(stage.embed, start, stop)))
        if stage.positions is not None:
            rows = rows + stage.positions.rows(grid, start, stop)
        write(start, stop, rows.flatten(1, 2), blocks[0] if blocks else None)
        steps.done()
    for block, following in zip(blocks, [*blocks[1:], None], strict=True):
        assert store is not None
        assert summary is not None
        known = summary if prefix is None else summary + block.summarize(prefix)
        summary = None
        prefix = None if prefix is None else block.respond(prefix, known)
        for start, stop, rows, halo in _with_neighbours(store[stage.num_prefix_tokens :].view(*grid, -1), bands, reach(block)):
            x = rows.to(like.device).flatten(0, 1).unsqueeze(0)
            write(start, stop, block.respond(x, known, (rows.shape[0], grid[1]), halo=halo), following)
            steps.done()
    assert store is not None
    if prefix is not None:
        store[: stage.num_prefix_tokens] = norm(prefix)[0].to(store.device)
    return store


def _with_neighbours(
    store: Tensor, bands: list[tuple[int, int]], reach: tuple[int, int]
) -> Iterator[tuple[int, int, Tensor, tuple[int, int]]]:
    """Bands of a map (H, W, C) that is overwritten behind us: start, stop, rows with their neighbours, how many these are."""
    before = store[:0]
    for start, stop in bands:
        below = min(reach[1], store.shape[0] - stop)
        rows = torch.cat([before, store[start : stop + below]])
        halo = (before.shape[0], below)
        known = rows[: rows.shape[0] - below]
        before = known[max(0, known.shape[0] - reach[0]) :].clone()
        yield start, stop, rows, halo


def _window(source: Picture, start: int, stop: int) -> Tensor:
    """(1, C, stop - start, W): rows of the picture, zeros where there are none."""
    rows = source.read(max(0, start), min(stop, source.height))
    return F.pad(rows, (0, 0, max(0, -start), max(0, stop - source.height)))


def _grids(backbone: Backbone, source: Picture) -> list[Grid]:
    """The grid of each stage."""
    grids: list[Grid] = []
    size = (source.height, source.width)
    for stage in backbone.stages:
        assert isinstance(stage, Stage)
        size = grid_of(size, stage.embed.stride)
        grids.append(size)
    return grids


def _bands(grid: Grid, tokens: int) -> list[tuple[int, int]]:
    """Rows from start to stop, so many that they have about that many tokens."""
    rows = max(1, tokens // grid[1])
    return [(start, min(start + rows, grid[0])) for start in range(0, grid[0], rows)]


def _rows_of(whole: Tensor) -> Callable[[int, int], Tensor]:
    """(H, W, C) as something to read rows from, (1, C, rows, W)."""
    return lambda start, stop: whole[start:stop].permute(2, 0, 1).unsqueeze(0)


def _on(read: Callable[[int, int], Tensor], like: Tensor) -> Callable[[int, int], Tensor]:
    """The same where the model is, in its precision."""
    return lambda start, stop: read(start, stop).to(like.device, like.dtype)


def _file_tensor(shape: tuple[int, int], dtype: torch.dtype, folder: str | Path | None) -> Tensor:
    """A tensor in a file that has no name any more: the system frees it with the tensor."""
    size = shape[0] * shape[1]
    with TemporaryDirectory(dir=folder, prefix="inline-", ignore_cleanup_errors=True) as place:
        path = Path(place) / "tokens"
        with path.open("wb") as file:
            _reserve(file.fileno(), size * dtype.itemsize, path)
        return torch.from_file(str(path), shared=True, size=size, dtype=dtype).view(shape)


def _reserve(descriptor: int, size: int, path: Path) -> None:
    """Take the room now: a memory-mapped file that finds the disk full later ends the process."""
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size)
        else:
            os.ftruncate(descriptor, size)
    except OSError as error:
        raise OSError(
            f"no room for {size / 2**30:.1f} GB of tokens in {path.parent.parent}: {error}; pass another folder"
        ) from error


class _Steps:
    """Tells how far the work is."""

    def __init__(self, told: Callable[[int, int], None] | None, total: int) -> None:
        self.told, self.total, self.count = told, total, 0

    def done(self) -> None:
        self.count += 1
        if self.told is not None:
            self.told(self.count, self.total)
