"""The labels of an image by rows: from an array, memory-mapped or not, or from a function."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .image_reader import RowReader

LabelReader = Callable[[int, int], Tensor]
"""(start, stop) -> (stop - start, W), int64: the labels of these rows of pixels."""


def label_reader(labels: Any, source: RowReader, ignore: int) -> LabelReader:
    """The labels by rows, int64, `ignore` where the image is masked."""
    shape = getattr(labels, "shape", None)
    if shape is None and not callable(labels):
        raise ValueError(f"labels are an array (H, W) or a function that returns rows of one, got {type(labels).__name__}")
    if shape is not None and tuple(shape) != (source.height, source.width):
        raise ValueError(f"labels must be (height, width) = {(source.height, source.width)}, got {tuple(shape)}")

    def read(start: int, stop: int) -> Tensor:
        rows = labels[start:stop] if shape is not None else labels(start, stop)
        rows = rows if isinstance(rows, Tensor) else torch.from_numpy(np.asarray(rows).astype(np.int64))
        if rows.shape != (stop - start, source.width) or rows.is_floating_point():
            raise ValueError(
                f"rows {start} to {stop - 1} of the labels must be whole numbers, {(stop - start, source.width)}, "
                f"got {rows.dtype} {tuple(rows.shape)}"
            )
        rows = rows.long()
        return rows if source.valid is None else rows.masked_fill(~source.valid(start, stop).to(rows.device), ignore)

    return read
