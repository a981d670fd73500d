"""A map of the result with its halvings, as pyramidal files have them, in temporary files: memory holds a few rows.

Shapes: a level is (planes, H, W): one plane of labels, or one of probabilities for each class.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .tensor_file import TensorFile, make_tensor_files

TILE = 512
"""Side of a tile. A level that fits in one is the last."""
BYTES_AT_ONCE = 2**25

DTYPES = {
    "uint8": torch.uint8,
    "uint16": torch.uint16,
    "float16": torch.float16,
    "float32": torch.float32,
}
Planes = NDArray[Any]


class MapLevels:
    """A map that is appended to by rows, and then halved until it fits in a tile.

    Args:
        planes: how many.
        size: height and width.
        dtype: of the numbers, a name in DTYPES.
        halve: of blocks of two by two pixels: `majority` for labels, `average` for all else.
        folder: for the files, which have no names and are freed with this; None for the system's.
    """

    def __init__(
        self,
        planes: int,
        size: tuple[int, int],
        dtype: str,
        halve: Callable[[Planes, Planes, Planes, Planes], Planes],
        folder: str | Path | None = None,
    ) -> None:
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self._halve = halve
        sizes = [size]
        while max(sizes[-1]) > TILE:
            sizes.append(((sizes[-1][0] + 1) // 2, (sizes[-1][1] + 1) // 2))
        shapes = [(planes, *each) for each in sizes]
        self._files: list[TensorFile] = make_tensor_files(shapes, DTYPES[dtype], folder)
        self.levels: tuple[Planes, ...] = tuple(file.tensor.numpy() for file in self._files)
        """The finest first, memory-mapped; all but the first are zeros until `finish`."""

    def write(self, start: int, rows: Planes) -> None:
        """Rows (planes, n, W) of the finest level."""
        self.levels[0][:, start : start + rows.shape[1]] = rows
        self.release()

    def finish(self) -> None:
        """Make the halvings."""
        for finer, coarser in zip(self.levels, self.levels[1:], strict=False):
            step = max(1, BYTES_AT_ONCE // (2 * finer[:, 0].nbytes))
            for start in range(0, coarser.shape[1], step):
                rows = finer[:, 2 * start : 2 * (start + step)]
                rows = np.pad(rows, ((0, 0), (0, rows.shape[1] % 2), (0, rows.shape[2] % 2)), mode="edge")
                corners = (rows[:, down::2, right::2] for down in (0, 1) for right in (0, 1))
                coarser[:, start : start + step] = self._halve(*corners)
                self.release()

    def tiles(self, level: int) -> Iterator[Planes]:
        """The tiles (TILE, TILE) of a level, plane by plane, row by row, zero beyond the map's borders."""
        planes, height, width = self.levels[level].shape
        for plane in range(planes):
            for top in range(0, height, TILE):
                for left in range(0, width, TILE):
                    found = self.levels[level][plane, top : top + TILE, left : left + TILE]
                    yield np.pad(found, ((0, TILE - found.shape[0]), (0, TILE - found.shape[1])))
                self.release()

    def release(self) -> None:
        """Free the memory that holds parts of the files."""
        for file in self._files:
            file.release()


def majority(first: Planes, second: Planes, third: Planes, fourth: Planes) -> Planes:
    """The label that most of the four pixels have; the first one's where none has more than another."""
    others = np.where((second == third) | (second == fourth), second, np.where(third == fourth, third, first))
    return np.where((first == second) | (first == third) | (first == fourth), first, others)


def average(first: Planes, second: Planes, third: Planes, fourth: Planes) -> Planes:
    """The mean of the four, in their own type; NaN where one of them is."""
    total = first.astype(np.float32) + second + third + fourth
    return (total / 4 if first.dtype.kind == "f" else np.rint(total / 4)).astype(first.dtype)
