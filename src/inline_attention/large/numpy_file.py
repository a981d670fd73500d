"""Arrays as image files: `.npy` files, which are memory-mapped, and arrays of numpy, zarr and others in memory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .image_file import COLOURS, Level


class ArrayFile:
    """An array (H, W, channels) or (H, W) as an `ImageFile`.

    Args:
        array: anything that has a shape and a dtype and can be sliced by rows.
    """

    pixel_size = georeference = nodata = None

    def __init__(self, array: Any) -> None:
        shape = tuple(int(side) for side in array.shape)
        if len(shape) not in (2, 3):
            raise ValueError(f"an array must be (H, W, channels), channels last, or (H, W), got {shape}")
        if min(shape) < 1:
            raise ValueError(f"an array must have rows, columns and channels, got {shape}")
        self.array, self.dtype = array, np.dtype(array.dtype)
        count = shape[2] if len(shape) == 3 else 1
        plain = count == 3 and self.dtype == np.uint8
        self.channels = COLOURS if plain else tuple(str(number) for number in range(count))
        self.levels = (Level(shape[0], shape[1], 1.0),)

    def read(self, level: int, start: int, stop: int, channels: Sequence[int] | None = None) -> NDArray[Any]:
        """(stop - start, width, channels): these rows."""
        rows = np.asarray(self.array[start:stop]).reshape(stop - start, self.levels[level].width, -1)
        return rows if channels is None or tuple(channels) == tuple(range(rows.shape[2])) else rows[:, :, list(channels)]

    def close(self) -> None:
        """Nothing: the array is freed when nobody uses it."""


def open_numpy(path: Path) -> ArrayFile:
    """Open a `.npy` file. Nothing in it is executed."""
    return ArrayFile(np.load(path, mmap_mode="r", allow_pickle=False))
