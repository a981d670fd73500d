"""What every image file is to the rest of the package, whatever its format: a size, channels, levels, and rows that are read.

One backend for each library implements `ImageFile`, and `open_file.py` chooses it. Pixels are as the file has them;
`large_image.py` chooses the resolution and the channels, and scales them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

ALPHA, PREMULTIPLIED = "alpha", "premultiplied alpha"
"""Names of the channel that says how opaque a pixel is; the second where the other channels are multiplied by it already."""
COLOURS = ("red", "green", "blue")
"""The names of the channels of a colour image."""


MOST_NAMES = 20
"""Channels that are named in an error."""


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
    rows_at_once: int | None = None
    """Rows that are decoded together, those of a tile or a strip: part of them costs as much as all. None where any row can be
    read by itself, as from memory."""


def listed_channels(names: Sequence[str]) -> str:
    """The numbers of channels, and their names where they have others: for errors. Of many, the first."""
    told = [name if name == str(number) else f"{number} ({name})" for number, name in enumerate(names[:MOST_NAMES])]
    return ", ".join([*told, *(["..."] if len(names) > MOST_NAMES else [])])


class ImageFile(Protocol):
    """An open image file."""

    @property
    def channels(self) -> tuple[str, ...]:
        """Their names; "0", "1", ... where the file has none. See `ALPHA` and `COLOURS`."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the pixels."""

    @property
    def levels(self) -> tuple[Level, ...]:
        """From the finest on; at least one."""

    @property
    def pixel_size(self) -> PixelSize | None:
        """None where the file does not say."""

    @property
    def georeference(self) -> Georeference | None:
        """None where the file does not say."""

    @property
    def nodata(self) -> float | None:
        """The value of pixels that hold no data, which may be NaN; None if all do."""

    def read(self, level: int, start: int, stop: int, channels: Sequence[int] | None = None) -> NDArray[Any]:
        """(stop - start, width, channels): these rows of a level, all channels or these. Called by one thread at a time."""

    def close(self) -> None:
        """Close the file."""
