"""`stream`: an image larger than memory, one band of rows at a time, with the same features as the usual forward pass.

Tokens are in a file. A block goes over it once: for each band it reads the rows and their neighbours, responds from the summary
of all tokens, writes the rows back in place, and adds them to the summary that the next block needs. So each token is read and
written once per block, and memory holds one band. docs/math.md shows why it is exact.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..layers import Block
from ..layers.bands import Limits, Place, bands_of, respond_in_bands, split_rows, summarize_in_bands
from ..layers.summary import Summary
from ..models.backbone import grid_of
from ..models.finite import check_outputs
from ..models.stage import Stage
from ..ops.checks import Grid, is_whole
from .image_reader import RowReader, image_for
from .stages import all_linear, blocks_of, embed_rows, rows_needed, stages_of
from .tensor_file import TensorFile, make_tensor_files


class Streamed(NamedTuple):
    """The outputs. All but the logits are in memory-mapped files without a name, which are freed with the tensors."""

    logits: Tensor
    """(1, num_classes), as from `model(image)`."""
    features: Tensor
    """As from `model.forward_features(image)`."""
    maps: list[Tensor]
    """(1, C, H, W) after each stage, the last with the model's last norm: `forward_intermediates(image, norm=True)`."""


@torch.no_grad()
def stream(
    model: nn.Module,
    image: Any,
    *,
    tokens: int = 8192,
    folder: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Streamed:
    """Take one image of any size through a model whose blocks are all InLine over the whole map.

    Forward hooks of blocks and of modules in them are not called: they would see bands.

    Args:
        model: `inline_deit_*`, `inline_pvt_*`, or another of this package's with no softmax blocks, in evaluation mode.
        image: a normalised tensor, an array, memory-mapped or not, a pillow image, or a path, see `open_image`; all but tensors
            are normalised by the mean and standard deviation of the model's `pretrained_cfg`.
        tokens: how many to hold in memory at once, at least a row of them.
        folder: where to put the files, which hold all tokens of all stages: about twice the first stage's height x width x
            channels x 4 bytes for a pyramid. None for the system's temporary folder; one in memory would gain nothing.
        progress: called with (done, total) after each band of each block, as for `inline predict --stream`.

    Returns:
        Logits, features and the maps of all stages, equal to those of the usual forward pass up to rounding.
    """
    backbone = all_linear(model, "stream")
    if backbone.training:
        raise ValueError("stream works in evaluation mode: call model.eval() first")
    if not is_whole(tokens) or tokens < 1:
        raise ValueError(f"tokens must be at least 1, got {tokens}")
    if not backbone.global_pool:
        raise ValueError("stream needs a global_pool, got ''")
    source = image_for(backbone, image)
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
    files = make_tensor_files(shapes, like.dtype, folder)
    limits = [split_rows(grid, tokens) for grid in grids]
    total = sum((1 + len(stage.blocks)) * len(bands) for stage, bands in zip(stages, limits, strict=True))
    counter = ProgressCounter(progress, total)
    maps = []
    for stage, grid, file, bands in zip(stages, grids, files, limits, strict=True):
        norm = backbone.norm if stage is stages[-1] else nn.Identity()
        StreamedStage(stage, grid, file, bands, like.device, norm, counter).run(_converted(source, like))
        stage_map = file.tensor[stage.num_prefix_tokens :].view(*grid, -1)
        maps.append(stage_map.permute(2, 0, 1).unsqueeze(0))
        source = RowReader(grid[0], grid[1], _rows_of(stage_map))
    features = files[-1].tensor.unsqueeze(0) if stages[-1].num_prefix_tokens else maps[-1]
    pooled = backbone.forward_head(features, pre_logits=True).to(like.device)
    logits = backbone.head(pooled)
    check_outputs(logits, (), type(backbone).__name__)
    return Streamed(logits, features, maps)


class ProgressCounter:
    """Counts bands, and reports them."""

    def __init__(self, report: Callable[[int, int], None] | None, total: int) -> None:
        self.report, self.total, self.done = report, total, 0

    def add(self) -> None:
        """One more band is done."""
        self.done += 1
        if self.report is not None:
            self.report(self.done, self.total)


@dataclass
class StreamedStage:
    """One stage, band by band, with its tokens in a file."""

    stage: Stage
    grid: Grid
    file: TensorFile
    limits: list[Limits]
    """Of the bands."""
    device: torch.device
    """Where the model is."""
    norm: nn.Module
    """Applied after the last block."""
    counter: ProgressCounter

    def run(self, source: RowReader) -> None:
        """Embed the source, apply all blocks and the norm; the tokens are then in the file."""
        stage, blocks = self.stage, blocks_of(self.stage)
        rows = self.file.tensor[stage.num_prefix_tokens :].view(1, *self.grid, -1)
        writer = BandWriter(self, rows, blocks[0])
        for start, stop in self.limits:
            embedded = embed_rows(stage.embed, _padded_rows(source, *rows_needed(stage.embed, start, stop)))
            if stage.positions is not None:
                embedded = embedded + stage.positions.rows(self.grid, start, stop)
            writer.write(start, stop, embedded.flatten(1, 2))
        prefix = None if stage.positions is None else stage.positions.prefix()
        for block, following in zip(blocks, [*blocks[1:], None], strict=True):
            bands = partial(bands_of, rows, self.limits)
            summaries = summarize_in_bands(block, bands, self.device, prefix=prefix, first=writer.summary)
            prefix = None if prefix is None else block.respond(prefix, summaries)
            writer = BandWriter(self, rows, following)
            for band, response in respond_in_bands(block, bands(block.reach(), overwritten=True), summaries, self.device):
                writer.write(band.start, band.stop, response)
        if prefix is not None:
            self.file.tensor[: prefix.shape[1]] = self.norm(prefix)[0].to(self.file.tensor.device)


class BandWriter:
    """Writes the output of one block to the file, and adds up the summary for the following block.

    Args:
        run: the stage.
        rows: (1, H, W, C): its map in the file.
        following: the block that comes next; None after the last one, whose output goes through the norm.
    """

    def __init__(self, run: StreamedStage, rows: Tensor, following: Block | None) -> None:
        self.run, self.rows, self.following = run, rows, following
        self.summary: Summary | None = None

    def write(self, start: int, stop: int, output: Tensor) -> None:
        """Write (1, n, C) to the rows of a band."""
        grid = (stop - start, *self.run.grid[1:])
        if self.following is None:
            output = self.run.norm(output)
        elif self.following.summary_reach() == (0, 0):
            summary = self.following.summarize(output, grid, place=Place(start, self.run.grid[0]))
            self.summary = summary if self.summary is None else self.summary + summary
        self.rows[:, start:stop] = output.unflatten(1, grid).to(self.rows.device)
        self.run.file.release()
        self.run.counter.add()


def _padded_rows(source: RowReader, start: int, stop: int) -> Tensor:
    """(1, C, stop - start, W): rows of the image, zeros where there are none."""
    rows = source.read(max(0, start), min(stop, source.height))
    return F.pad(rows, (0, 0, max(0, -start), max(0, stop - source.height)))


def _rows_of(stage_map: Tensor) -> Callable[[int, int], Tensor]:
    """A reader of rows, (1, C, rows, W), of a map (H, W, C)."""
    return lambda start, stop: stage_map[start:stop].permute(2, 0, 1).unsqueeze(0)


def _converted(source: RowReader, like: Tensor) -> RowReader:
    """The source with its rows on the device of `like` and in its precision."""
    return source._replace(read=lambda start, stop: source.read(start, stop).to(like.device, like.dtype))
