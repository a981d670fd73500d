"""SemanticFPN's decoder by rows: `dense/segmenter.py: SemanticFpn` for maps that are larger than memory.

A row of the result needs few rows of the maps, but for GroupNorm, which needs the mean and the variance over the whole map. So
each convolution of a branch is computed in a sweep of its own and written to a file, and its moments are added up; what follows
reads the file. The pyramid, whose 1x1 convolutions cost little, is computed again in each sweep that needs it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from ..dense.segmenter import SemanticFpn
from .image_reader import RowReader
from .map_sums import group_norm
from .resize_rows import Resize, resized
from .row_maps import added, convolved, each_pixel, kept
from .sweep import Sweeps


class Step(NamedTuple):
    """A part of a branch: a convolution, GroupNorm, ReLU, and bilinear upsampling, but in the finest branch."""

    convolution: nn.Conv2d
    norm: nn.GroupNorm
    upsample: nn.Upsample | None


def written_shapes(decoder: SemanticFpn, size: tuple[int, int]) -> list[tuple[int, int, int]]:
    """(H, W, C) of the maps that `semantic_fpn_rows` writes, in their order, if the finest map has this size."""
    return [
        (size[0] >> (level - place), size[1] >> (level - place), step.convolution.out_channels)
        for level, branch in enumerate(decoder.branches)
        for place, step in enumerate(_steps(branch))
    ]


def semantic_fpn_rows(decoder: SemanticFpn, maps: Sequence[RowReader], sweeps: Sweeps, dtype: torch.dtype) -> RowReader:
    """The decoder's output by rows, (1, width / 2, rows, w).

    Args:
        decoder: in evaluation mode.
        maps: at strides 4, 8, 16, 32, each with half the sides of the one before.
        sweeps: with files for the maps of `written_shapes`.
        dtype: of the maps.
    """
    branches = [_steps(branch) for branch in decoder.branches]
    levels = _pyramid(decoder, maps, dtype)
    finest, *others = [_branch(steps, level, sweeps, dtype) for steps, level in zip(branches, levels, strict=True)]
    # The other branches all end with the same upsampling. It is linear: once for their sum.
    return added([finest, _upsampled(added(others), branches[-1][-1], dtype)])


def _pyramid(decoder: SemanticFpn, maps: Sequence[RowReader], dtype: torch.dtype) -> list[RowReader]:
    """torchvision's FeaturePyramidNetwork: a map by a 1x1 convolution, plus the sum of the coarser ones, enlarged; then 3x3."""
    levels: list[RowReader] = []
    total: RowReader | None = None
    for lateral, layer, level in reversed([*zip(decoder.neck.inner_blocks, decoder.neck.layer_blocks, maps, strict=True)]):
        own = convolved(lateral, level)
        if total is not None:
            own = added([own, resized(total, (level.height, level.width), Resize("nearest"), dtype)])
        total = kept(own)
        levels.insert(0, kept(convolved(layer, total)))
    return levels


def _branch(steps: Sequence[Step], source: RowReader, sweeps: Sweeps, dtype: torch.dtype) -> RowReader:
    """A branch without its last upsampling."""
    for number, step in enumerate(steps):
        if number:
            source = kept(_upsampled(source, steps[number - 1], dtype))
        source = _normalised(step, source, sweeps)
    return source


def _normalised(step: Step, source: RowReader, sweeps: Sweeps) -> RowReader:
    """Convolution, GroupNorm, ReLU: one sweep, then from the file."""
    stored, moments = sweeps.write(convolved(step.convolution, source))
    return each_pixel(lambda rows: F.relu(group_norm(rows, step.norm, moments)), stored)


def _upsampled(source: RowReader, step: Step, dtype: torch.dtype) -> RowReader:
    assert step.upsample is not None
    size = (2 * source.height, 2 * source.width)
    return resized(kept(source), size, Resize(align_corners=step.upsample.align_corners), dtype)


def _steps(branch: nn.Module) -> list[Step]:
    """The steps of a branch, if it has the layers that `SemanticFpn` gives it."""
    layers, steps = list(branch.children()), []
    each = 4 if len(layers) > 3 else 3  # the finest branch does not upsample
    for start in range(0, len(layers), each):
        match layers[start : start + each]:
            case [nn.Conv2d() as convolution, nn.GroupNorm() as norm, nn.ReLU()]:
                steps.append(Step(convolution, norm, None))
            case [nn.Conv2d() as convolution, nn.GroupNorm() as norm, nn.ReLU(), nn.Upsample() as upsample]:
                steps.append(Step(convolution, norm, upsample))
            case _:
                raise ValueError(f"a branch of SemanticFPN has convolution, GroupNorm, ReLU and upsampling, got {branch}")
    return steps
