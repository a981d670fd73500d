"""Which pixels of an image are valid, by rows: from a mask in memory, from a function, or from the image's reader.

Masked pixels are zeroed as they are read, before anything looks at their numbers: what is there may be NaN.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .image_reader import RowReader, input_of, open_masked

ValidRows = Callable[[int, int], Tensor]
"""(start, stop) -> (stop - start, W) bool, True where a pixel is valid."""


def valid_rows(mask: Any, source: RowReader) -> ValidRows | None:
    """The mask of an image by rows; None if all its pixels are valid.

    Args:
        mask: (H, W), a boolean array or tensor, memory-mapped or not; or a function of (start, stop) that returns these rows of
            one; or None for the pixels that the image's reader has no data for.
        source: the image.
    """
    if mask is None and source.valid is None:
        return None
    given: Any = source.valid if mask is None else mask
    shape = getattr(given, "shape", None)
    if shape is None and not callable(given):
        raise ValueError(f"a mask is a boolean array (H, W) or a function that returns rows of one, got {type(given).__name__}")
    if shape is not None and tuple(shape) != (source.height, source.width):
        raise ValueError(f"mask must be (height, width) = {(source.height, source.width)}, got {tuple(shape)}")

    @lru_cache(1)  # whoever reads pixels asks for the same rows again
    def read(start: int, stop: int) -> Tensor:
        rows = given[start:stop] if shape is not None else given(start, stop)
        rows = rows if isinstance(rows, Tensor) else torch.from_numpy(np.array(rows))
        if rows.dtype is not torch.bool or rows.shape != (stop - start, source.width):
            expected = f"boolean, ({stop - start}, {source.width})"
            raise ValueError(f"rows {start} to {stop - 1} of the mask must be {expected}, got {rows.dtype} {tuple(rows.shape)}")
        return rows

    return read


def masked_reader(model: nn.Module, image: Any, mask: Any) -> RowReader:
    """`image_for` with zeros where the mask is False, and the mask as the reader's `valid`."""
    rows = open_masked(image, **input_of(model))
    whole = RowReader(rows.height, rows.width, lambda start, stop: rows.read(start, stop, None), rows.valid)
    valid = valid_rows(mask, whole)
    if valid is None:
        return image if isinstance(image, RowReader) else whole

    def read(start: int, stop: int) -> Tensor:
        here = valid(start, stop)
        found = rows.read(start, stop, here)
        return found.masked_fill(~here.to(found.device), 0)

    return whole._replace(read=read, valid=valid)
