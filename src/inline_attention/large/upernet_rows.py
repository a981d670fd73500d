"""UperNet's decoder by rows: that of segmentation-models-pytorch, for maps that are larger than memory.

All is computed when it is asked for, in one sweep, but for the pyramid pooling: averages over parts of the coarsest map, which
are sums over bands. BatchNorm uses stored statistics.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .image_reader import RowReader
from .map_sums import pool_rows
from .resize_rows import Resize, resized
from .row_maps import added, convolved, each_pixel, joined, kept, rows_of
from .sweep import Sweeps

BEHIND = 4
"""Rows that a map keeps for the slower of its two readers: the pyramid's next map needs one or two more than the output."""


def upernet_rows(decoder: nn.Module, maps: Sequence[RowReader], sweeps: Sweeps, dtype: torch.dtype) -> RowReader:
    """The decoder's output by rows, (1, width, rows, w).

    Args:
        decoder: in evaluation mode.
        maps: at strides 4, 8, 16, 32.
        sweeps: goes over the coarsest map once.
        dtype: of the maps.
    """
    parts: Any = decoder
    normed = [each_pixel(norm, level) for norm, level in zip(parts.feature_norms, maps, strict=True)]
    merged = kept(_pyramid_pooling(parts.psp, normed[-1], sweeps, dtype), BEHIND)
    outputs = [merged]
    for lateral, refine, level in zip(parts.fpn_lateral_blocks, parts.fpn_conv_blocks, normed[-2::-1], strict=True):
        own = convolved(lateral.conv_norm_relu, level)
        merged = kept(added([_enlarged(merged, level, dtype), own]), BEHIND)
        outputs.append(kept(convolved(refine, merged)))
    enlarged = [_enlarged(output, maps[0], dtype) for output in reversed(outputs)]
    return convolved(parts.fusion_block, kept(joined(enlarged)))


def _pyramid_pooling(module: Any, level: RowReader, sweeps: Sweeps, dtype: torch.dtype) -> RowReader:
    """The map beside its averages over 1, 4, 9 and 36 parts, each convolved and enlarged to the map's size again."""
    pools, blocks = zip(*module.blocks, strict=True)
    bins = [_bins(pool) for pool in pools]
    averages = _averages(level, bins, sweeps)
    enlarged = [
        _enlarged(rows_of(block(average.to(dtype))), level, dtype) for block, average in zip(blocks, averages, strict=True)
    ]
    return convolved(module.out_conv, kept(joined([level, *enlarged])))


def _averages(level: RowReader, bins: Sequence[int], sweeps: Sweeps) -> list[Tensor]:
    """The average pooling of the whole map to (b, b), for each of these b."""
    return sweeps.totals(level, lambda band: [pool_rows(band.rows, band.start, level.height, count) for count in bins])


def _bins(pool: nn.Module) -> int:
    if not isinstance(pool, nn.AdaptiveAvgPool2d) or not isinstance(pool.output_size, int):
        raise ValueError(f"UperNet's pyramid pooling is of adaptive averages over squares, got {pool}")
    return pool.output_size


def _enlarged(source: RowReader, to: RowReader, dtype: torch.dtype) -> RowReader:
    return resized(source, (to.height, to.width), Resize(align_corners=False), dtype)
