"""Tensors in temporary files, for what does not fit in memory."""

import mmap
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import IO, Any

import torch
from torch import Tensor


class TensorFile:
    """A tensor in a memory-mapped file without a name, which the system frees with the tensor.

    Attributes:
        tensor: the tensor.
    """

    def __init__(self, file: IO[bytes], shape: Sequence[int], dtype: torch.dtype) -> None:
        self._map = mmap.mmap(file.fileno(), 0)
        self.tensor: Tensor = torch.frombuffer(self._map, dtype=dtype).view(*shape)

    def release(self) -> None:
        """Free the memory that holds parts of the file; they are read again when they are needed."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)


def make_tensor_files(
    shapes: Sequence[Sequence[int]], dtype: torch.dtype | Sequence[torch.dtype], folder: str | Path | None
) -> list[TensorFile]:
    """A tensor file of each shape in this folder, zero everywhere. Disk space is reserved at once, for all of them or none.

    A memory-mapped file that found the disk full later would end the process.

    Args:
        shapes: of the tensors.
        dtype: of all of them, or of each.
        folder: None for the system's temporary folder.
    """
    dtypes = [dtype] * len(shapes) if isinstance(dtype, torch.dtype) else dtype
    if folder is not None and not Path(folder).is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    sizes = [kind.itemsize * torch.Size(shape).numel() for shape, kind in zip(shapes, dtypes, strict=True)]
    with ExitStack() as files:
        opened = []
        try:
            for size in sizes:
                opened.append(files.enter_context(TemporaryFile(dir=folder)))
                _reserve(opened[-1], size)
        except OSError as error:
            where = gettempdir() if folder is None else folder
            raise OSError(
                f"no room for {sum(sizes) / 1e9:.1f} GB of tokens in {where}: {error.strerror}; pass another folder"
            ) from error
        return [TensorFile(*parts) for parts in zip(opened, shapes, dtypes, strict=True)]


def _reserve(file: IO[Any], size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
        return
    for start in range(0, size, 2**24):
        file.write(bytes(min(2**24, size - start)))
    file.flush()
