"""Made images for benches, as large as one likes: an array in a file, and the same as a slide's file is."""

from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

TILE = 256
"""Of the TIFF."""


def write_scene(path: Path, size: int) -> NDArray[np.uint8]:
    """Smooth shapes and some noise, as photographs have them, 256 rows at a time; the memory-mapped array."""
    pixels = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(size, size, 3))
    generator = np.random.default_rng(0)
    coarse = torch.from_numpy(generator.random((1, 3, max(2, size // 64), max(2, size // 64)), dtype=np.float32))
    for start in range(0, size, 256):
        rows = min(256, size - start)
        smooth = torch.nn.functional.interpolate(_rows_of(coarse, start, rows, size), (rows, size), mode="bilinear")
        noise = generator.normal(0, 6, (rows, size, 3))
        pixels[start : start + rows] = (255 * smooth[0].permute(1, 2, 0).numpy() + noise).clip(0, 255).astype(np.uint8)
    pixels.flush()
    return pixels


def _rows_of(coarse: Tensor, start: int, rows: int, size: int) -> Tensor:
    """The rows of the coarse image that lie under some rows of the fine one."""
    side = coarse.shape[2]
    first = start * side // size
    return coarse[:, :, first : max(first + 1, ceil((start + rows) * side / size))]


def write_slide(path: Path, pixels: NDArray[np.uint8]) -> Path:
    """A pyramidal TIFF in tiles, compressed as JPEG, with a pixel size of half a micrometre."""
    import tifffile

    levels = [pixels]
    while max(levels[-1].shape) > 1024:
        levels.append(levels[-1][::2, ::2])
    options: dict[str, Any] = {"photometric": "rgb", "compression": "jpeg", "tile": (TILE, TILE)}
    options["resolutionunit"] = "CENTIMETER"
    with tifffile.TiffWriter(path, bigtiff=True) as file:
        for number, level in enumerate(levels):
            options |= {"resolution": 2 * [20_000 / 2**number], "subfiletype": int(number > 0)}
            subifds = 0 if number else len(levels) - 1
            file.write(_tiles(level), shape=level.shape, dtype=level.dtype, subifds=subifds, **options)
    return path


def _tiles(level: NDArray[np.uint8]) -> Iterator[NDArray[np.uint8]]:
    """From the top left, rows of tiles; those at the border are filled up with zeros."""
    for row in range(0, level.shape[0], TILE):
        for column in range(0, level.shape[1], TILE):
            part = level[row : row + TILE, column : column + TILE]
            yield np.pad(part, ((0, TILE - part.shape[0]), (0, TILE - part.shape[1]), (0, 0)))
