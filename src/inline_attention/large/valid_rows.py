"""Which pixels of an image are valid, by rows: from a mask in memory, from a function, or from the image's reader.

Masked pixels are zeroed as they are read, before anything looks at their numbers: what is there may be NaN.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..models.finite import nonfinite
from .image_reader import RowReader, image_for

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
    source = image_for(model, image)
    valid = valid_rows(mask, source)
    if valid is None:
        return source
    if isinstance(image, Tensor):
        read_rows = _unchecked(image)
    elif hasattr(image, "shape") and hasattr(image, "dtype"):
        read_rows = image_for(model, _MaskedArray(image, valid)).read
    else:
        read_rows = source.read

    def read(start: int, stop: int) -> Tensor:
        rows = read_rows(start, stop)
        rows = rows.masked_fill(~valid(start, stop).to(rows.device), 0)
        if nonfinite(rows):
            raise ValueError(f"the image has pixels that are not finite (NaN or infinity) in rows {start} to {stop - 1}")
        return rows

    return source._replace(read=read, valid=valid)


def _unchecked(image: Tensor) -> Callable[[int, int], Tensor]:
    """Rows (1, C, rows, W) of a tensor, whose numbers are checked when they are masked."""
    return lambda start, stop: (image if image.ndim == 4 else image.unsqueeze(0))[:, :, start:stop]


class _MaskedArray:
    """An array (H, W, C) or (H, W) that is zero where masked, when rows of it are taken."""

    def __init__(self, array: Any, valid: ValidRows) -> None:
        self.array, self.valid = array, valid
        self.shape, self.dtype = array.shape, array.dtype

    def __getitem__(self, rows: slice) -> Any:
        taken = np.array(self.array[rows])
        taken[~self.valid(rows.start, rows.stop).cpu().numpy()] = 0
        return taken
