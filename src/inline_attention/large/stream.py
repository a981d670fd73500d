"""`stream`: an image larger than memory, one part at a time, with the same features as the usual forward pass.

Tokens are in files, and memory holds one part. `streamed_stage.py` takes a stage through its blocks; docs/math.md shows why it
is exact.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..layers.bands import split_rows
from ..models.backbone import Backbone
from ..models.finite import check_outputs
from ..ops.checks import is_whole
from .image_reader import RowReader
from .progress import ProgressCounter
from .stages import blocks_of, check_model, grids_of, stages_of, ways_through
from .streamed_stage import StageFiles, StreamedStage
from .tensor_file import TensorFile, make_tensor_files
from .valid_rows import masked_reader


class Streamed(NamedTuple):
    """The outputs. All but the logits are in memory-mapped files without a name, which are freed with the tensors."""

    logits: Tensor
    """(1, num_classes), as from `model(image)`."""
    features: Tensor
    """As from `model.forward_features(image)`."""
    maps: list[Tensor]
    """(1, C, H, W) after each stage, the last with the model's last norm; or those of `indices`, as from
    `model.forward_intermediates(image, indices, norm=norm)`."""


@torch.no_grad()
def stream(
    model: nn.Module,
    image: Any,
    *,
    mask: Any = None,
    indices: int | Sequence[int] | None = None,
    norm: bool = True,
    tokens: int = 8192,
    folder: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Streamed:
    """Take one image of any size through a model, part by part.

    A block may be linear over the whole map, or have any attention in windows. One with softmax over the whole map, and others
    that cannot take a part of a map, are computed at once, up to 16,384 tokens, and refused above. Forward hooks of blocks and
    of modules in them see parts of the image, or are not called.

    Args:
        model: one of this package's, in evaluation mode.
        image: a normalised tensor, an array, memory-mapped or not, a pillow image, or a path, see `open_image`; all but tensors
            are normalised by the mean and standard deviation of the model's `pretrained_cfg`.
        mask: which pixels are valid: a boolean array or tensor (H, W), or a function of (start, stop) that returns these rows
            of one. None for those that the image's reader has data for. See `Backbone.forward`; bands without a valid token are
            not even read, and are zero in the maps.
        indices: the maps to return, as for `forward_intermediates`: the last n of `feature_info`, or these. None for those
            after each stage.
        norm: apply the model's last norm to the maps of the last stage.
        tokens: how many to hold in memory at once; at least a row of them, or a row of windows.
        folder: where to put the files, which hold all tokens of all stages: about twice the first stage's height x width x
            channels x 4 bytes for a pyramid. None for the system's temporary folder; one in memory would gain nothing.
        progress: called with (done, total) after each part of each block, as for `inline predict --stream`.

    Returns:
        Logits, features and maps, equal to those of the usual forward pass up to rounding.
    """
    backbone = _checked(model, tokens)
    if not backbone.global_pool:
        raise ValueError("stream needs a global_pool, got ''")
    plan = _Plan(backbone, masked_reader(backbone, image, mask), indices, norm)
    stages = plan.run(tokens, folder, progress)
    features = stages[-1].files.tokens.tensor.unsqueeze(0) if backbone.num_prefix_tokens else _as_map(stages[-1].rows)
    pooled = backbone.forward_head(features, pre_logits=True, mask=stages[-1].mask).to(stages[-1].device)
    logits = backbone.head(pooled)
    check_outputs(logits, (), type(backbone).__name__)
    return Streamed(logits, features, [_as_map(each) for each, _ in plan.maps])


@torch.no_grad()
def stream_maps(
    model: nn.Module,
    source: RowReader,
    *,
    indices: int | Sequence[int] | None = None,
    norm: bool = True,
    tokens: int = 8192,
    folder: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[RowReader]:
    """The maps of `stream` alone, by rows, of a model that needs no pooling. What was read of a file before is freed.

    Arguments as for `stream`; `source` has the mask, see `masked_reader`.
    """
    plan = _Plan(_checked(model, tokens), source, indices, norm)
    plan.run(tokens, folder, progress)
    return [_freeing_reader(rows, file) for rows, file in plan.maps]


def _checked(model: nn.Module, tokens: int) -> Backbone:
    backbone = check_model(model, "stream")
    if backbone.training:
        raise ValueError("stream works in evaluation mode: call model.eval() first")
    if not is_whole(tokens) or tokens < 1:
        raise ValueError(f"tokens must be at least 1, got {tokens}")
    return backbone


class _Plan:
    """Which blocks take the image how, which files they need, and which maps are returned."""

    def __init__(self, model: Backbone, source: RowReader, indices: int | Sequence[int] | None, norm: bool) -> None:
        size = (source.height, source.width)
        model.check_size(*size)
        self.source = _converted(source, next(model.parameters()))
        self.model, self.stages, self.masked = model, stages_of(model), source.valid is not None
        self.ways, self.grids = ways_through(model, "stream", size), grids_of(model, size)
        self.dims = [blocks_of(stage)[0].mixer.dim for stage in self.stages]
        ends = [(number, len(stage.blocks) - 1) for number, stage in enumerate(self.stages)]
        self.taps = ends if indices is None else model.taps(indices)
        last = len(self.stages) - 1
        plain = isinstance(model.norm, nn.Identity)
        self.copied = [tap for tap in dict.fromkeys(self.taps) if tap not in ends or not (norm or plain or tap[0] < last)]
        self.norm = norm
        self.maps: list[tuple[Tensor, TensorFile]] = []
        """(1, H, W, C) each, and the file that it is in, when the files are open."""

    def run(self, tokens: int, folder: str | Path | None, progress: Callable[[int, int], None] | None) -> list[StreamedStage]:
        """All stages, done."""
        stages, source = self.open(tokens, folder, progress), self.source
        for stage in stages:
            stage.run(source)
            source = _reader_of(stage)
        return stages

    def open(self, tokens: int, folder: str | Path | None, progress: Callable[[int, int], None] | None) -> list[StreamedStage]:
        """The stages with their files, all of which are made at once, or none."""
        like = next(self.model.parameters())
        areas = [grid[0] * grid[1] for grid in self.grids]
        shapes: list[tuple[int, ...]] = [
            (stage.num_prefix_tokens + area, dim) for stage, area, dim in zip(self.stages, areas, self.dims, strict=True)
        ]
        shapes += [(1, *self.grids[number], self.dims[number]) for number, _ in self.copied]
        windowed = [area * dim for area, dim, ways in zip(areas, self.dims, self.ways, strict=True) if "windows" in ways]
        shapes += [(max(windowed),)] if windowed else []
        masks: list[tuple[int, ...]] = [(1, *grid) for grid in self.grids] if self.masked else []
        files = make_tensor_files([*shapes, *masks], [like.dtype] * len(shapes) + [torch.bool] * len(masks), folder)
        scratch = files[len(shapes) - 1] if windowed else None
        counter = ProgressCounter(progress, 0)
        opened = []
        for number, (stage, grid) in enumerate(zip(self.stages, self.grids, strict=True)):
            here = StageFiles(files[number], scratch, files[len(shapes) + number] if masks else None)
            norm = self.model.norm if number == len(self.stages) - 1 else nn.Identity()
            limits = split_rows(grid, tokens)
            opened.append(StreamedStage(stage, self.ways[number], grid, here, limits, tokens, like.device, norm, counter))
            counter.total += opened[-1].steps()
        self._place_maps(opened, files[len(self.stages) :])
        return opened

    def _place_maps(self, stages: list[StreamedStage], files: list[TensorFile]) -> None:
        """Say for each map where it will be: in a file of its own, or in that of its stage."""
        copies = dict(zip(self.copied, files, strict=False))
        for (number, block), file in copies.items():
            stages[number].copies[block] = (file, stages[number].norm if self.norm else nn.Identity())
        own = [(stage.rows, stage.files.tokens) for stage in stages]
        self.maps = [(copies[tap].tensor, copies[tap]) if tap in copies else own[tap[0]] for tap in self.taps]


def _as_map(rows: Tensor) -> Tensor:
    """(1, H, W, C) -> (1, C, H, W)."""
    return rows.permute(0, 3, 1, 2)


def _reader_of(stage: StreamedStage) -> RowReader:
    """The map of a stage as the source of the next one."""
    height, width = stage.grid
    mask = stage.mask

    def read(start: int, stop: int) -> Tensor:
        stage.release()  # what was read before
        return _as_map(stage.rows[:, start:stop])

    return RowReader(height, width, read, None if mask is None else lambda start, stop: mask[0, start:stop])


def _freeing_reader(rows: Tensor, file: TensorFile) -> RowReader:
    """A map (1, H, W, C) in a file."""

    def read(start: int, stop: int) -> Tensor:
        file.release()
        return _as_map(rows[:, start:stop])

    return RowReader(rows.shape[1], rows.shape[2], read)


def _converted(source: RowReader, like: Tensor) -> RowReader:
    """The source with its rows on the device of `like` and in its precision."""
    return source._replace(read=lambda start, stop: source.read(start, stop).to(like.device, like.dtype))
