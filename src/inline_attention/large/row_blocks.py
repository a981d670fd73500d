"""Rows of a file in blocks that are decoded once, and ahead of whoever reads them, by a thread.

A block is a row of tiles, or some strips. Bands that share a block get it from memory; when one band has been read, the blocks
after it are decoded while it is computed. Blocks above the last band are forgotten.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Thread, current_thread
from typing import Any
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from ..lite.decode import why
from .image_file import ImageFile

THREAD = "image-rows"
"""The name of threads that decode."""
LEAST_BYTES = 2**20
"""Of a block: smaller strips are decoded several at a time."""
AHEAD_BYTES = 2**28
"""Decoded ahead at most, but at least one block."""


class RowBlocks:
    """Rows of a level of a file. The file is closed when this is freed.

    Args:
        file: an open image file.
        level: of its pyramid.
        channels: those to read.
        wanted: (start, stop) -> whether any of these rows will be read: others are not decoded ahead.
        name: of the file, for errors; None for what is no file.
    """

    def __init__(
        self,
        file: ImageFile,
        level: int,
        channels: Sequence[int],
        wanted: Callable[[int, int], bool] | None = None,
        name: str | None = None,
    ) -> None:
        self.wanted = wanted
        self._decode = partial(_decode, file, level, tuple(channels), name)
        here = file.levels[level]
        self.height, self.at_once = here.height, here.rows_at_once
        self._blocks: dict[int, Future[NDArray[Any]]] = {}
        row = here.width * len(channels) * file.dtype.itemsize
        if self.at_once is not None:
            self.at_once *= max(1, LEAST_BYTES // max(1, row * self.at_once))
            self._most_ahead = max(1, AHEAD_BYTES // max(1, row * self.at_once))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=THREAD)
        self.close = finalize(self, _close, self._thread, file)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """(stop - start, width, channels). Bands should come from the top down."""
        if self.at_once is None:
            return self._decode(start, stop)
        first, last = start // self.at_once, -(-stop // self.at_once)
        self._blocks = {number: block for number, block in self._blocks.items() if number >= first}
        blocks = [self._block(number) for number in range(first, last)]
        self._decode_ahead(last, len(blocks))
        top = first * self.at_once
        parts = [block.result() for block in blocks]
        return (parts[0] if len(parts) == 1 else np.concatenate(parts))[start - top : stop - top]

    def _decode_ahead(self, first: int, count: int) -> None:
        assert self.at_once is not None
        for number in range(first, first + min(count, self._most_ahead)):
            start, stop = number * self.at_once, min((number + 1) * self.at_once, self.height)
            if start < self.height and (self.wanted is None or self.wanted(start, stop)):
                self._block(number)

    def _block(self, number: int) -> Future[NDArray[Any]]:
        assert self.at_once is not None
        if number not in self._blocks:
            start = number * self.at_once
            stop = min(start + self.at_once, self.height)
            self._blocks[number] = self._thread.submit(self._decode, start, stop)
        return self._blocks[number]


def _decode(file: ImageFile, level: int, channels: tuple[int, ...], name: str | None, start: int, stop: int) -> NDArray[Any]:
    try:
        return file.read(level, start, stop, channels)
    except Exception as error:  # each library has its own kinds for a broken file
        if name is None or isinstance(error, MemoryError):
            raise
        raise ValueError(f"cannot read the image {name}: {why(error)} (in rows {start} to {stop - 1})") from error


def _close(thread: ThreadPoolExecutor, file: ImageFile) -> None:
    """Close a file when its thread is done. What frees it may be that thread itself, which cannot wait for its own end."""
    if current_thread().name.startswith(THREAD):
        Thread(target=_close_now, args=(thread, file)).start()
    else:
        _close_now(thread, file)


def _close_now(thread: ThreadPoolExecutor, file: ImageFile) -> None:
    thread.shutdown(wait=True, cancel_futures=True)
    file.close()
