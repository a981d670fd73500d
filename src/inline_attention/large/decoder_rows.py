"""A segmenter's decoder and classifier by rows, whichever of the two decoders it is."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..dense.segmenter import Segmenter, SemanticFpn
from .image_reader import RowReader
from .row_maps import convolved, each_pixel, rows_of
from .semantic_fpn_rows import semantic_fpn_rows, written_shapes
from .sweep import Sweeps
from .tensor_file import make_tensor_files
from .upernet_rows import upernet_rows

SIDE = 16
"""Of the finest map that the decoder is tried on."""


def coarse_logit_rows(
    segmenter: Segmenter, maps: Sequence[RowReader], sweeps: Sweeps, dropped: Tensor | None = None
) -> RowReader:
    """`Segmenter.decode` by rows: logits at stride 4, (1, classes, rows, w).

    Args:
        segmenter: without layers that normalise over the batch while training.
        maps: of its backbone, at strides 4, 8, 16, 32, each with half the sides of the one before.
        sweeps: with files for `file_shapes`.
        dropped: (1, C, 1, 1): what training multiplies the channels before the classifier by.
    """
    decoder, dtype = segmenter.decoder, segmenter.head.weight.dtype
    if isinstance(decoder, SemanticFpn):
        merged = semantic_fpn_rows(decoder, maps, sweeps, dtype)
    else:
        merged = upernet_rows(decoder, maps, sweeps, dtype)
    merged = merged if dropped is None else each_pixel(lambda rows: rows * dropped, merged)
    return convolved(segmenter.head, merged)


def file_shapes(segmenter: Segmenter, size: tuple[int, int]) -> list[tuple[int, int, int]]:
    """(H, W, C) of the maps that are written, if the finest of the backbone's has this size."""
    return written_shapes(segmenter.decoder, size) if isinstance(segmenter.decoder, SemanticFpn) else []


def swept_sizes(segmenter: Segmenter, size: tuple[int, int]) -> list[tuple[int, int]]:
    """(H, W) of the maps over which `coarse_logit_rows` sweeps, if the finest of the backbone's has this size."""
    shapes = file_shapes(segmenter, size)
    return [(height, width) for height, width, _ in shapes] or [(size[0] // 8, size[1] // 8)]


@torch.no_grad()
def check_decoder(segmenter: Segmenter, folder: str | Path | None) -> None:
    """Raise unless a small image's maps, decoded in bands, give what the decoder itself gives.

    So a decoder with other parts, or another version of it, is refused before hours of work, instead of giving other labels.
    """
    like = segmenter.head.weight
    generator = torch.Generator().manual_seed(0)
    maps = [
        torch.randn(1, channels, SIDE >> level, SIDE >> level, generator=generator).to(like)
        for level, channels in enumerate(segmenter.backbone.channels)
    ]
    try:
        files = make_tensor_files(file_shapes(segmenter, (SIDE, SIDE)), like.dtype, folder)
        sweeps = Sweeps(3 * SIDE, files, lambda: None)
        bands = coarse_logit_rows(segmenter, [rows_of(level) for level in maps], sweeps).read(0, SIDE)
    except (AttributeError, TypeError) as error:
        raise ValueError(f"{type(segmenter.decoder).__name__} has not the parts that are known here: {error}") from error
    whole = segmenter.decode(maps)
    difference, largest = float((bands - whole).abs().max()), float(whole.abs().max())
    if not difference <= min(0.1, 1e4 * torch.finfo(like.dtype).eps) * largest:
        raise ValueError(
            f"{type(segmenter.decoder).__name__} is not the decoder that is known here: in bands its logits differ by "
            f"{difference:.1e} of {largest:.1e}"
        )
