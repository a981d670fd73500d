"""Slides as microscopes write them, by openslide: SVS, NDPI, MRXS, SCN, BIF, VMS, DICOM and others.

openslide places a region by pixels of the finest level. Where a level's downsample is no whole number, as 4.0003, its rows are
so up to half a pixel of the finest level away from where they should be.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from openslide import OpenSlide, OpenSlideUnsupportedFormatError

from .image_file import ALPHA, COLOURS, Level, PixelSize

THREADS = min(4, os.cpu_count() or 1)
TILE = 256
"""Rows and columns that are decoded together, where a slide does not say."""


class SlideFile:
    """A slide as an `ImageFile`. What was not scanned is transparent."""

    georeference = nodata = None
    channels = (*COLOURS, ALPHA)
    dtype: np.dtype[Any] = np.dtype(np.uint8)

    def __init__(self, slide: OpenSlide) -> None:
        self._slide, self._closed = slide, False
        facts = slide.properties
        height, width = (float(facts.get(f"openslide.mpp-{axis}", 0)) for axis in "yx")
        self.pixel_size = PixelSize(height, width, "µm") if height > 0 and width > 0 else None
        self._tiles = [int(facts.get(f"openslide.level[{level}].tile-width", TILE)) for level in range(slide.level_count)]
        self.levels = tuple(
            Level(height, width, float(downsample), int(facts.get(f"openslide.level[{level}].tile-height", TILE)))
            for level, ((width, height), downsample) in enumerate(
                zip(slide.level_dimensions, slide.level_downsamples, strict=True)
            )
        )
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="slide")

    def read(self, level: int, start: int, stop: int, channels: Sequence[int] | None = None) -> NDArray[Any]:
        """(stop - start, width, channels): these rows."""
        here = self.levels[level]
        columns = here.width
        if here.downsample == round(here.downsample):  # in pieces of whole tiles
            columns = max(1, -(-here.width // (THREADS * self._tiles[level]))) * self._tiles[level]

        def region(left: int) -> NDArray[Any]:
            size = (min(columns, here.width - left), stop - start)
            place = (round(left * here.downsample), round(start * here.downsample))
            return np.asarray(self._slide.read_region(place, level, size))

        rows = np.concatenate(list(self._threads.map(region, range(0, here.width, columns))), 1)
        return rows if channels is None else rows[:, :, list(channels)]

    def close(self) -> None:
        """Close the file; a second time does nothing, which openslide would raise for."""
        self._threads.shutdown(cancel_futures=True)
        if not self._closed:
            self._closed = True
            self._slide.close()


def vendor_of(path: Path) -> str | None:
    """Whose format a slide has; None for what is no slide, or a plain TIFF."""
    vendor = OpenSlide.detect_format(path)
    return None if vendor == "generic-tiff" else vendor


def open_slide(path: Path) -> SlideFile:
    """Open a slide."""
    try:
        slide = OpenSlide(path)
    except OpenSlideUnsupportedFormatError:
        raise ValueError("openslide does not know it: it is truncated, or no slide") from None
    return SlideFile(slide)
