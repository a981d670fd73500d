"""Where the maps of a training pass are kept: in temporary files, or in memory. They are made when needed, and used again."""

from collections.abc import Sequence
from pathlib import Path

import torch

from .tensor_file import TensorFile, make_tensor_files

MEMORY = "memory"
"""In place of a folder: keep maps in memory."""


class MemoryMap:
    """A tensor in memory, with the interface of a `TensorFile`."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype) -> None:
        self.tensor = torch.zeros(*shape, dtype=dtype)

    def release(self) -> None:
        """Nothing can be freed before the tensor itself."""


StoredMap = TensorFile | MemoryMap


class MapFiles:
    """The maps of one pass.

    Args:
        folder: for the files; None for the system's temporary folder, "memory" for no files.
    """

    def __init__(self, folder: str | Path | None) -> None:
        self.folder = folder
        self.size = 0
        """Bytes of all maps."""
        self._open: list[StoredMap] = []
        self._free: list[StoredMap] = []

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> StoredMap:
        """A map of this shape: zero, or one that was given back."""
        for number, free in enumerate(self._free):
            if free.tensor.shape == torch.Size(shape) and free.tensor.dtype == dtype:
                self._open.append(self._free.pop(number))
                return self._open[-1]
        self._open.append(self._make(shape, dtype))
        self.size += self._open[-1].tensor.nbytes
        return self._open[-1]

    def _make(self, shape: Sequence[int], dtype: torch.dtype) -> StoredMap:
        return MemoryMap(shape, dtype) if self.folder == MEMORY else make_tensor_files([shape], dtype, self.folder)[0]

    def give_back(self, stored: StoredMap) -> None:
        """Say that a map is not needed any more. Where its tokens are masked it is zero."""
        self._open = [each for each in self._open if each is not stored]
        self._free.append(stored)

    def release(self) -> None:
        """Free the memory that holds parts of the files."""
        for stored in (*self._open, *self._free):
            stored.release()
