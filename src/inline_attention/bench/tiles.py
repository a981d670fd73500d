"""Segmentation in overlapping tiles, as people do it today: each pixel gets the label of the tile in whose middle it is."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def tile_corners(size: int, tile: int, overlap: float, shift: int = 0) -> Iterator[tuple[int, int]]:
    """Rows and columns where tiles begin: the first ones `shift` before the image, which ends within the last ones."""
    step = round(tile * (1 - overlap))
    starts = sorted({max(0, min(start, size - tile)) for start in range(-shift, max(1, size - tile + step), step)})
    return ((row, column) for row in starts for column in starts)


@torch.no_grad()
def tile_labels(segmenter: Any, pixels: NDArray[np.uint8], corner: tuple[int, int], tile: int) -> NDArray[Any]:
    """The labels of one tile."""
    part = torch.from_numpy(np.ascontiguousarray(pixels[tuple(slice(start, start + tile) for start in corner)]))
    device = next(segmenter.parameters()).device
    logits: Tensor = segmenter((part.permute(2, 0, 1)[None].float() / 255).to(device))
    return logits.argmax(1)[0].cpu().numpy()


def tiled_labels(segmenter: Any, pixels: NDArray[np.uint8], tile: int, overlap: float, shift: int) -> NDArray[Any]:
    """Each pixel's label from the tile in whose middle it is: half of the overlap is cut off, except at the image's border."""
    size, cut = len(pixels), round(tile * overlap / 2)
    labels = np.zeros((size, size), np.int64)
    for corner in tile_corners(size, tile, overlap, shift):
        inner = [slice(0 if start == 0 else cut, tile if start + tile >= size else tile - cut) for start in corner]
        place = tuple(slice(start + side.start, start + side.stop) for start, side in zip(corner, inner, strict=True))
        labels[place] = tile_labels(segmenter, pixels, corner, tile)[inner[0], inner[1]]
    return labels
