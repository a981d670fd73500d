"""What every image file is to the rest of the package, whatever its format: a size, channels, levels, and rows that are read.

One backend for each library implements `ImageFile`. Pixels are as the file has them; `image_reader.py` scales and normalises.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class PixelSize:
    """How large a pixel of the finest level is on the slide or on the ground."""

    height: float
    width: float
    unit: Literal["µm", "m"]
    """Micrometres on slides, metres on maps."""


@dataclass(frozen=True)
class Georeference:
    """Where a map lies on the earth."""

    crs: str
    """The coordinate reference system, as WKT."""
    transform: tuple[float, float, float, float, float, float]
    """(a, b, c, d, e, f): x = a column + b row + c, y = d column + e row + f; that of the finest level."""


@dataclass(frozen=True)
class Level:
    """One resolution of a pyramid."""

    height: int
    width: int
    downsample: float
    """How many pixels of the finest level lie along a side of one of this; 1 for the finest."""


class ImageFile(Protocol):
    """An open image file."""

    channels: tuple[str, ...]
    """Their names; "0", "1", ... where the file has none."""
    dtype: np.dtype[np.generic]
    levels: tuple[Level, ...]
    """From the finest on; at least one."""
    pixel_size: PixelSize | None
    """None where the file does not say."""
    georeference: Georeference | None
    nodata: float | None
    """The value of pixels that hold no data; None if all do."""

    def read(self, level: int, start: int, stop: int) -> NDArray[np.generic]:
        """(stop - start, width, channels): these rows of a level."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...
