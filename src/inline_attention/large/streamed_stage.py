"""One stage of a model on an image in parts, one part after the other, with its tokens in a file.

A block that works in bands goes over the file once: for each band it reads the rows and their neighbours, responds from the
summary of all tokens, writes the rows back in place, and adds them to the summary that the next block needs. A block that needs
several sweeps reads the file once more for each. A block in windows writes the outputs of its heads to a second file first
(`windowed_block.py`). Bands without a valid token are left out, and are zero in the file.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..layers import Block
from ..layers.bands import Band, Limits, Place, bands_of, respond_in_bands, summarize_in_bands
from ..layers.summary import Summary
from ..models.stage import Stage
from ..ops.checks import Grid
from ..ops.masks import reduce_mask, with_prefix
from ..ops.sums import zero_masked
from .image_reader import RowReader
from .progress import ProgressCounter
from .stages import Way, blocks_of, embed_rows, rows_needed
from .tensor_file import TensorFile
from .windowed_block import mix_part, read_part, window_parts, write_part

Output = tuple[int, int, Tensor]
"""Rows from the first to before the second, and their tokens after a block, (1, n, C)."""


class StageFiles(NamedTuple):
    """The files of a stage; None for those that it does not need."""

    tokens: TensorFile
    """(prefix + H W, C)."""
    scratch: TensorFile | None
    """At least H W C numbers, for blocks in windows."""
    mask: TensorFile | None
    """(1, H, W) bool."""


@dataclass
class StreamedStage:
    """One stage, its blocks taken one after the other."""

    stage: Stage
    ways: Sequence[Way]
    """How each block takes the image."""
    grid: Grid
    files: StageFiles
    limits: list[Limits]
    """Of the bands."""
    tokens: int
    """About how many are held in memory at once."""
    device: torch.device
    """Where the model is."""
    norm: nn.Module
    """Applied after the last block."""
    counter: ProgressCounter
    copies: dict[int, tuple[TensorFile, nn.Module]] = field(default_factory=dict)
    """By the number of a block: a file, (1, H, W, C), for the map after it, and a norm that is applied to it."""

    def __post_init__(self) -> None:
        self.blocks = blocks_of(self.stage)
        self.rows = self.files.tokens.tensor[self.stage.num_prefix_tokens :].view(1, *self.grid, -1)
        self.mask = None if self.files.mask is None else self.files.mask.tensor
        self.live = self.limits

    def steps(self) -> int:
        """How often the counter is called for."""
        count = len(self.limits)
        for block, way in zip(self.blocks, self.ways, strict=True):
            if way == "bands":
                count += len(self.limits) * (block.sweeps - _summarized_when_written(block))
            elif way == "windows":
                count += len(window_parts(block, self.grid, self.tokens))
            count += len(self.limits)
        return count

    def run(self, source: RowReader) -> None:
        """Embed the source, apply all blocks and the norm; the tokens are then in the file."""
        positions = self.stage.positions
        prefix = None if positions is None else positions.prefix()
        writer = self._embed(source)
        for number, way in enumerate(self.ways):
            outputs, prefix = self._outputs(self.blocks[number], way, prefix, writer.summary)
            writer = BandWriter(self, number)
            for output in outputs:
                writer.write(*output)
            self.counter.add(len(self.limits) - len(self.live))
        if prefix is not None:
            tokens = self.files.tokens.tensor
            tokens[: prefix.shape[1]] = self.norm(prefix)[0].to(tokens.device)

    def _embed(self, source: RowReader) -> "BandWriter":
        """Embed the source band by band; with a mask, find out which bands hold valid tokens."""
        writer, live = BandWriter(self, -1), []
        embed, positions = self.stage.embed, self.stage.positions
        for start, stop in self.limits:
            first, last = rows_needed(embed, start, stop)
            if self.mask is not None and source.valid is not None:
                top, bottom = max(0, first), min(last, source.height)
                own = source.valid(top, bottom)[start * embed.stride - top : stop * embed.stride - top]
                self.mask[:, start:stop] = reduce_mask(own.unsqueeze(0), embed.stride)
                if not self.mask[:, start:stop].any():
                    self.counter.add()
                    continue
            live.append((start, stop))
            embedded = embed_rows(embed, _padded_rows(source, first, last).to(self.device))
            if positions is not None:
                embedded = embedded + positions.rows(self.grid, start, stop)
            writer.write(start, stop, embedded.flatten(1, 2))
        self.live = live
        if not live:
            raise ValueError("the mask has no valid pixel: there is nothing to look at")
        return writer

    def _outputs(
        self, block: Block, way: Way, prefix: Tensor | None, summary: Summary | None
    ) -> tuple[Iterator[Output], Tensor | None]:
        """The output of a block, band by band, and that for prefix tokens. A band may be overwritten when the next is taken."""
        if way == "windows":
            return self._in_windows(block), prefix
        if way == "whole":
            return self._at_once(block, prefix)
        bands = partial(bands_of, self.rows, self.live, mask=self.mask)
        summaries = summarize_in_bands(
            block, lambda reach: self._counted(bands(reach)), self.device, prefix=prefix, first=summary
        )
        prefix = None if prefix is None else block.respond(prefix, summaries)
        responses = respond_in_bands(block, bands(block.reach(), overwritten=True), summaries, self.device)
        return ((band.start, band.stop, response) for band, response in responses), prefix

    def _counted(self, bands: Iterator[Band]) -> Iterator[Band]:
        """Bands of a sweep of their own."""
        for band in bands:
            yield band
            self.release()
            self.counter.add()
        self.counter.add(len(self.limits) - len(self.live))

    def _in_windows(self, block: Block) -> Iterator[Output]:
        """First the windows, then the rest of the block by bands."""
        assert self.files.scratch is not None
        scratch = self.files.scratch.tensor[: self.rows.numel()].view_as(self.rows)
        for part in window_parts(block, self.grid, self.tokens):
            tokens, valid = read_part(part, self.rows, self.mask)
            if valid is None or valid.any():
                valid = None if valid is None else valid.to(self.device)
                write_part(block, part, mix_part(block, part, tokens.to(self.device), valid), scratch)
            self.release()
            self.counter.add()
        for start, stop in self.live:
            x, mixed = (rows[:, start:stop].flatten(1, 2).to(self.device) for rows in (self.rows, scratch))
            yield start, stop, block.finish(zero_masked(x, self.valid(start, stop)), mixed)

    def _at_once(self, block: Block, prefix: Tensor | None) -> tuple[Iterator[Output], Tensor | None]:
        """The block itself, on a map that is small."""
        count = 0 if prefix is None else prefix.shape[1]
        tokens = self.rows.flatten(1, 2).to(self.device)
        tokens = tokens if prefix is None else torch.cat([prefix, tokens], 1)
        mask = None if self.mask is None else with_prefix(self.mask, count).to(self.device)
        after = block(tokens, self.grid, num_prefix_tokens=count, mask=mask)
        rows = after[:, count:].unflatten(1, self.grid)
        outputs = ((start, stop, rows[:, start:stop].flatten(1, 2)) for start, stop in self.live)
        return outputs, None if prefix is None else after[:, :count]

    def valid(self, start: int, stop: int) -> Tensor | None:
        """(1, n): which tokens of some rows are valid; None if all are."""
        return None if self.mask is None else self.mask[:, start:stop].flatten(1).to(self.device)

    def release(self) -> None:
        """Free the memory that holds parts of the files."""
        for file in (*self.files, *(copy for copy, _ in self.copies.values())):
            if file is not None:
                file.release()


class BandWriter:
    """Writes what comes after one block to the file, and adds up the summary for the block after it.

    Args:
        run: the stage.
        number: of the block; -1 for the embedding. The output of the last block goes through the norm.
    """

    def __init__(self, run: StreamedStage, number: int) -> None:
        self.run, self.copy = run, run.copies.get(number)
        self.last = number == len(run.blocks) - 1
        following = None if self.last else run.blocks[number + 1]
        in_bands = following is not None and run.ways[number + 1] == "bands"
        self.following = following if in_bands and following and _summarized_when_written(following) else None
        self.summary: Summary | None = None

    def write(self, start: int, stop: int, output: Tensor) -> None:
        """Write (1, n, C) to the rows of a band, zero where masked."""
        run, grid = self.run, (stop - start, *self.run.grid[1:])
        mask = run.valid(start, stop)
        if self.copy is not None:
            file, norm = self.copy
            file.tensor[:, start:stop] = zero_masked(norm(output), mask).unflatten(1, grid).to(file.tensor.device)
        output = zero_masked(run.norm(output) if self.last else output, mask)
        if self.following is not None:
            place = Place(start, run.grid[0])
            summary = self.following.summarize(output, grid, place=place, mask=mask)
            self.summary = summary if self.summary is None else self.summary + summary
        run.rows[:, start:stop] = output.unflatten(1, grid).to(run.rows.device)
        run.release()
        run.counter.add()


def _summarized_when_written(block: Block) -> bool:
    """Whether the block's first sweep needs no neighbours, so that a band can be summarized before the next one is there."""
    return block.summary_reach() == (0, 0)


def _padded_rows(source: RowReader, start: int, stop: int) -> Tensor:
    """(1, C, stop - start, W): rows of the image, zeros where there are none."""
    rows = source.read(max(0, start), min(stop, source.height))
    return F.pad(rows, (0, 0, max(0, -start), max(0, stop - source.height)))
