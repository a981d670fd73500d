"""An image file as pixels from 0 to 1 by rows: at one resolution, with the chosen channels, and where it has data.

The way of a band: rows of the file in blocks, decoded ahead; numbers from 0 to 1; transparent pixels on white; averaged to the
size that was asked for, without pixels that hold no data.
"""

from collections.abc import Sequence
from functools import partial
from math import isfinite, isnan
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .area_average import average_rows, covered
from .image_file import ALPHA, PREMULTIPLIED, ImageFile, listed_channels
from .resolution import choose_level, georeference_at, pixel_size_at
from .row_blocks import RowBlocks


class Mask(Protocol):
    """Which pixels of an image count."""

    def rows(self, start: int, stop: int) -> Tensor:
        """(stop - start, W) bool: these rows."""

    def may_have(self, start: int, stop: int) -> bool:
        """Whether a pixel of these rows may count, as far as is known without reading a file."""


_Band = tuple[Tensor, Tensor | None]
"""Pixels (rows, W, C), and where there is data, (rows, W), None for everywhere."""


class LargeImage:
    """An open image file at one resolution. It is closed when it is freed.

    Args:
        file: see `open_image_file`.
        level: of its pyramid; None for the finest.
        mpp: micrometres per pixel on slides, metres per pixel on maps, in place of a level.
        channels: by number or name; none for all but alpha.
        value_range: the values that become 0 and 1; those outside are clipped. None for all that uint8 or uint16 can hold, and
            0 to 1 for floating-point numbers; other kinds need one.
        nodata: leave out pixels without data: True for those with the file's nodata value and those that are transparent, which
            it must have one of; None for the former, and on maps for the latter; False for none.
        mask: which pixels count, besides; None for all.
        name: of the file, for errors.

    Attributes:
        file, level, height, width: what is read.
        names: of the channels.
        pixel_size, georeference: of the image at this resolution; None where the file does not say.
    """

    def __init__(
        self,
        file: ImageFile,
        *,
        level: int | None = None,
        mpp: float | None = None,
        channels: Sequence[str | int] = (),
        value_range: tuple[float, float] | None = None,
        nodata: bool | None = None,
        mask: Mask | None = None,
        name: str | None = None,
    ) -> None:
        self.file = file
        self.level, (self.height, self.width) = choose_level(file, level, mpp)
        size = (self.height, self.width)
        self.pixel_size, self.georeference = pixel_size_at(file, size), georeference_at(file, size)
        numbers = chosen_channels(file, channels)
        self.names = tuple(file.channels[number] for number in numbers)
        self._low, self._high = _checked_range(file.dtype, value_range)
        self._stated = value_range is not None
        self._alpha = next((name for name in (ALPHA, PREMULTIPLIED) if name in file.channels and name not in self.names), None)
        alpha = () if self._alpha is None else (file.channels.index(self._alpha),)
        self._nodata = None if nodata is False else file.nodata
        self._clear = bool(alpha) and (self.georeference is not None if nodata is None else nodata)
        if nodata and self._nodata is None and not self._clear:
            raise ValueError("it has no mask of its own: neither a value that stands for no data, nor transparent pixels")
        self.mask = mask
        wanted = None if mask is None else partial(_may_have, mask, file.levels[self.level].height, self.height)
        self._rows = RowBlocks(file, self.level, (*numbers, *alpha), wanted, name)
        self._last: tuple[tuple[int, int], _Band] | None = None

    @property
    def may_lack_data(self) -> bool:
        """Whether there may be pixels without data, or that are masked."""
        return self.mask is not None or self._lacks_data

    def has_data(self, start: int, stop: int) -> Tensor:
        """(stop - start, W) bool: which pixels of these rows hold data and are not masked. Masked rows are not read."""
        if start == stop:
            return torch.ones(0, self.width, dtype=torch.bool)
        found = torch.ones(stop - start, self.width, dtype=torch.bool) if self.mask is None else self.mask.rows(start, stop)
        if not self._lacks_data or not found.any():
            return found
        data = self._band(start, stop)[1]
        return found if data is None else found & data

    @property
    def _lacks_data(self) -> bool:
        return self._nodata is not None or self._clear

    def read(self, start: int, stop: int, valid: Tensor | None = None) -> Tensor:
        """(stop - start, W, C) float32, 0 to 1: these rows.

        Args:
            start, stop: the rows.
            valid: (stop - start, W) bool. Pixels elsewhere are 0, whatever the file has there; so are those without data, and
                those that are masked.
        """
        if start == stop:  # below the last row, where images are padded
            return torch.zeros(0, self.width, len(self.names))
        pixels, data = self._band(start, stop)
        for part in (data, valid, None if self.mask is None else self.mask.rows(start, stop)):
            pixels = pixels if part is None else pixels.masked_fill(~part[:, :, None], 0)
        if self.file.dtype.kind == "f":
            self._check(pixels, start, stop)
        return pixels

    def close(self) -> None:
        """Close the file."""
        self._rows.close()

    def _band(self, start: int, stop: int) -> _Band:
        """These rows. The last ones are kept: whoever asks where there is data reads the same rows next."""
        if self._last is None or self._last[0] != (start, stop):
            self._last = (start, stop), self._read(start, stop)
        return self._last[1]

    def _check(self, pixels: Tensor, start: int, stop: int) -> None:
        where = f"in rows {start} to {stop - 1}"
        least, greatest = (float(each) for each in torch.aminmax(pixels))
        if not (isfinite(least) and isfinite(greatest)):
            raise ValueError(f"the image has pixels that are not finite (NaN or infinity) {where}")
        if not (least >= 0 and greatest <= 1):
            raise ValueError(
                f"floating-point pixels must be from 0 to 1, got {least:g} to {greatest:g} {where}: "
                "give the values that become black and white (value_range=(low, high), --value-range LOW,HIGH)"
            )

    def _read(self, start: int, stop: int) -> _Band:
        here = self.file.levels[self.level]
        old, new = (here.height, here.width), (self.height, self.width)
        first, last = covered(start, stop, old[0], new[0])
        pixels, data = self._scaled(self._rows.read(first, last))
        if old == new:
            return pixels, data
        if data is None:
            return self._averaged(pixels, start, stop), None
        share = average_rows(data[:, :, None].float(), start, stop, old, new)
        pixels = self._averaged(pixels.masked_fill(~data[:, :, None], 0), start, stop)
        some = share > 0
        return torch.where(some, pixels / share.clamp(min=1e-12), 0), some[:, :, 0]

    def _averaged(self, pixels: Tensor, start: int, stop: int) -> Tensor:
        if self.file.dtype.kind == "f":
            self._check(pixels, start, stop)
        here = self.file.levels[self.level]
        return average_rows(pixels, start, stop, (here.height, here.width), (self.height, self.width))

    def _scaled(self, raw: NDArray[Any]) -> _Band:
        """Pixels of the level, 0 to 1 and on white, and where there is data."""
        raw = raw.astype(raw.dtype.newbyteorder("="), copy=False)
        values, alpha = (raw, None) if self._alpha is None else (raw[:, :, :-1], raw[:, :, -1:])
        data = None if self._nodata is None else holds_data(values, self._nodata)
        scaled: NDArray[Any] = values.astype(np.float32 if raw.dtype.itemsize <= 2 else np.float64)
        scaled -= self._low
        scaled /= self._high - self._low
        pixels = torch.from_numpy(scaled.astype(np.float32, copy=False))
        if self._stated:
            pixels = pixels.clamp(0, 1)
        if alpha is None:
            return pixels, data
        opaque = torch.from_numpy(np.clip(alpha.astype(np.float32) / np.float32(_white(raw.dtype)), 0, 1))
        pixels = (pixels if self._alpha == PREMULTIPLIED else pixels * opaque) + (1 - opaque)
        if self._clear:
            seen = opaque[:, :, 0] > 0
            data = seen if data is None else data & seen
        return pixels, data


def _may_have(mask: Mask, old: int, new: int, start: int, stop: int) -> bool:
    """Whether a pixel may count in these rows of a level of `old` rows, of which the image has `new`."""
    return mask.may_have(start * new // old, min(new, -(-stop * new // old)))


def chosen_channels(file: ImageFile, wanted: Sequence[str | int]) -> tuple[int, ...]:
    """The numbers of channels that are given by number or name; of all but alpha, if none is given."""
    if not wanted:
        return tuple(number for number, name in enumerate(file.channels) if name not in (ALPHA, PREMULTIPLIED))
    names = {name.lower(): number for number, name in reversed(list(enumerate(file.channels)))}
    numbers = {str(number): number for number in range(len(file.channels))}
    found = []
    for each in wanted:
        word = str(each).strip().lower()
        number = names.get(word, numbers.get(word))
        if number is None:
            raise ValueError(f"there is no channel {each}: it has {listed_channels(file.channels)}")
        found.append(number)
    return tuple(found)


def _checked_range(dtype: np.dtype[Any], value_range: tuple[float, float] | None) -> tuple[float, float]:
    if value_range is not None:
        low, high = (float(each) for each in value_range)
        if not (isfinite(low) and isfinite(high) and low < high):
            raise ValueError(f"value_range must be two numbers, the lower one first, got {low:g} and {high:g}")
        return low, high
    if dtype.kind not in "f?" and dtype not in (np.uint8, np.uint16):
        if dtype.kind not in "iu":
            raise ValueError(f"an image is of whole or floating-point numbers, got {dtype}")
        raise ValueError(
            f"its pixels are {dtype}: give the values that become black and white (value_range=(low, high), "
            "--value-range LOW,HIGH)"
        )
    return 0.0, _white(dtype)


def _white(dtype: np.dtype[Any]) -> float:
    return float(np.iinfo(dtype).max) if dtype.kind in "iu" else 1.0


def holds_data(values: NDArray[Any], nodata: float) -> Tensor:
    """(rows, W): False where all channels have the value that stands for no data; or one has, if it is NaN."""
    if isnan(nodata):
        lacks = np.isnan(values).any(2)
    else:
        with np.errstate(invalid="ignore", over="ignore"):
            like = np.asarray(nodata).astype(values.dtype)
        lacks = (values == like).all(2) if values.dtype.kind == "f" or like == nodata else np.zeros(values.shape[:2], bool)
    return torch.from_numpy(~lacks)
