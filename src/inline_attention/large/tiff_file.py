"""TIFF, BigTIFF and OME-TIFF by tifffile: tiled or striped, pyramids in SubIFDs or in pages, channels in samples or in pages.

Tiles and strips are read and decoded one by one, by tifffile's `read_segments` and `decode`: so a missing one is noticed, which
tifffile's arrays fill with zeros.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tifffile import TiffFile, TiffPage, TiffPageSeries

from ..lite.limits import excess
from .image_file import ALPHA, COLOURS, PREMULTIPLIED, Level, PixelSize
from .ome import ome_facts
from .pillow_file import CONVERT

logging.getLogger("tifffile").addHandler(logging.NullHandler())  # what is wrong with a file is an error of one line
THREADS = min(4, os.cpu_count() or 1)
"""That decode tiles."""
PLANES = "CIQR"
"""Axes of tifffile's that are channels here: those called so, and those of unknown meaning."""
MINISWHITE, MINISBLACK, RGB, PALETTE, YCBCR = 0, 1, 2, 3, 6
"""How TIFF calls the meaning of its samples."""
ALPHAS = {1: PREMULTIPLIED, 2: ALPHA}
"""By TIFF's number for an extra sample."""
JPEG = (6, 7, 34892, 33007)
"""Compressions whose decoder turns YCbCr into RGB."""
TO_MICROMETRES = {2: 25_400.0, 3: 10_000.0}
"""By TIFF's number for the unit of a resolution: inch, centimetre."""
PRINT = 80.0
"""Pixels of so many micrometres or more are how large to print an image: 300 to the inch and coarser."""

_Decoded = tuple[NDArray[Any], int, int, int]
"""A tile or strip (rows, columns, samples), its first row, column and sample."""


class TiffImageFile:
    """A TIFF as an `ImageFile`.

    Args:
        path: of the file.
        tiff: the file, open.
    """

    georeference = nodata = None

    def __init__(self, path: Path, tiff: TiffFile) -> None:
        self._tiff = tiff
        series = tiff.series[0]
        self._pages = [_Plane.of_level(path, tiff, level) for level in series.levels]
        first = self._pages[0][0]
        self.dtype, self.palette = first.dtype, first.palette
        height, width = first.height, first.width
        names = first.names
        if len(self._pages[0]) > 1:
            samples = len(names)
            names = tuple(str(number) for number in range(samples * len(self._pages[0])))
        facts = ome_facts(tiff.ome_metadata) if tiff.is_ome and tiff.ome_metadata else None
        if facts is not None and len(facts.channels) == len(names):
            names = tuple(
                own if said == str(number) else said
                for number, (own, said) in enumerate(zip(names, facts.channels, strict=True))
            )
        self.channels = names
        self.pixel_size: PixelSize | None = _pixel_size(first.page) if facts is None else facts.pixel_size
        self.levels = tuple(_level(planes[0], height, width) for planes in self._pages)
        for number, planes in enumerate(self._pages):
            if sum(len(plane.names) for plane in planes) != len(names):
                raise ValueError(f"its level {number} has not the channels of the finest, {len(names)}")
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="tiles")

    def read(self, level: int, start: int, stop: int, channels: Sequence[int] | None = None) -> NDArray[Any]:
        """(stop - start, width, channels): these rows."""
        planes = self._pages[level]
        samples = len(planes[0].names)
        wanted = range(len(self.channels)) if channels is None else channels
        taken: dict[int, NDArray[Any]] = {}
        for number in dict.fromkeys(each // samples for each in wanted):
            taken[number] = planes[number].read(start, stop, self._threads)
        if len(taken) == 1 and tuple(wanted) == tuple(range(samples)):
            return taken[0]
        return np.stack([taken[each // samples][:, :, each % samples] for each in wanted], 2)

    def close(self) -> None:
        """Close the file."""
        self._threads.shutdown(cancel_futures=True)
        self._tiff.close()


class _Plane:
    """One page of a level: its tiles or strips.

    Attributes:
        names: of its samples.
        at_once: rows that are decoded together.
    """

    def __init__(self, page: Any, mapped: NDArray[Any] | None) -> None:
        self.page, self.key = page, page.keyframe
        key: TiffPage = self.key
        self.height, self.width, self.mapped = key.imagelength, key.imagewidth, mapped
        self.names, self.palette = _meaning(key)
        self.dtype = np.dtype(np.uint8 if self.palette is not None else key.dtype)
        self.separate = key.planarconfig == 2 and key.samplesperpixel > 1
        self.tile = _piece_size(key)
        self.at_once = None if mapped is not None else self.tile[0]
        if mapped is None:
            check_pieces(page)

    @classmethod
    def of_level(cls, path: Path, tiff: TiffFile, series: TiffPageSeries) -> list["_Plane"]:
        """The pages of a level, one for each channel, or one for all."""
        axes, shape = series.get_axes(squeeze=False), series.get_shape(squeeze=False)
        for axis, length in zip(axes, shape, strict=True):
            if length > 1 and axis not in PLANES + "YXS":
                name = {"Z": "planes in depth", "T": "times"}.get(axis, f"images along its axis {axis}")
                raise ValueError(f"it has {length} {name}: an image of one is needed, extract it first")
        key = series.keyframe
        if key.imagedepth != 1:
            raise ValueError(f"it is a volume of {key.imagedepth} slices: an image is needed, extract one first")
        if series.dataoffset is not None and not key.is_tiled:  # uncompressed, in one piece
            count = prod(shape) // prod(key.shape)
            whole = np.memmap(path, tiff.byteorder + np.dtype(key.dtype).char, "r", series.dataoffset, (count, *key.shape))
            return [cls(key, page) for page in whole]
        pages = [page for page in series.pages if page is not None]
        if len(pages) != len(series.pages):
            raise ValueError("pages of it are missing")
        return [cls(page, None) for page in pages]

    def read(self, start: int, stop: int, threads: ThreadPoolExecutor) -> NDArray[Any]:
        """(stop - start, W, samples): these rows."""
        count = self.key.samplesperpixel
        if self.mapped is not None:
            rows = np.moveaxis(self.mapped[:, start:stop], 0, 2) if self.separate else self.mapped[start:stop]
            values = np.asarray(rows).reshape(stop - start, self.width, count)
        else:
            values = np.empty((stop - start, self.width, count), self.key.dtype)
            for tile, top, left, sample in self._decoded(start, stop, threads):
                first, last = max(start, top), min(stop, top + tile.shape[0])
                right = min(self.width, left + tile.shape[1])
                into = values[first - start : last - start, left:right, sample : sample + tile.shape[2]]
                into[:] = tile[first - top : last - top, : right - left]
        if self.palette is not None:
            return self.palette[values[:, :, 0]]
        return ~values if self.key.photometric == MINISWHITE and values.dtype.kind in "ub" else values

    def _decoded(self, start: int, stop: int, threads: ThreadPoolExecutor) -> Iterator[tuple[NDArray[Any], int, int, int]]:
        """The tiles or strips of some rows: (rows, columns, samples), its first row, column and sample."""
        down, across = -(-self.height // self.tile[0]), -(-self.width // self.tile[1])
        rows = range(start // self.tile[0], -(-stop // self.tile[0]))
        planes = range(self.key.samplesperpixel if self.separate else 1)
        indices = [(plane * down + row) * across + column for plane in planes for row in rows for column in range(across)]
        offsets, counts = ([each[index] for index in indices] for each in (self.page.dataoffsets, self.page.databytecounts))
        for index, offset, count in zip(indices, offsets, counts, strict=True):
            if not (offset and count):
                row, column = divmod(index % (down * across), across)
                raise ValueError(f"the {_piece(self.key)} in row {row}, column {column} is missing")
        options = (
            {"jpegtables": self.page.jpegtables, "jpegheader": self.key.jpegheader} if self.key.compression in JPEG else {}
        )

        def decode(piece: tuple[bytes | None, int]) -> _Decoded:
            tile, place, _ = self.key.decode(*piece, **options)
            return tile[0], place[2], place[3], place[0]

        read = self.page.parent.filehandle.read_segments(offsets, counts, indices, flat=False, sort=True)
        for pieces in read:
            yield from threads.map(decode, pieces)


def check_pieces(page: Any) -> None:
    """Raise for a page whose tiles or strips cannot be those of its image."""
    key: TiffPage = page.keyframe
    what, (rows, columns) = _piece(key), _piece_size(key)
    height, width = key.imagelength, key.imagewidth
    if min(height, width, rows, columns) < 1:
        raise ValueError(f"its image is {height} x {width} in {what}s of {rows} x {columns}")
    if found := excess(columns, rows):
        raise ValueError(f"its {what}s are too large: {found}; or {CONVERT}")
    separate = key.planarconfig == 2 and key.samplesperpixel > 1
    needed = -(-height // rows) * -(-width // columns) * (key.samplesperpixel if separate else 1)
    offsets, counts = (np.asarray(each, np.int64) for each in (page.dataoffsets, page.databytecounts))
    if not len(offsets) == len(counts) == needed:
        raise ValueError(
            f"an image of {height:,} x {width:,} has {needed:,} {what}s of {rows} x {columns}, "
            f"but the file has {len(offsets):,}"
        )
    end, size = int((offsets + counts).max()), page.parent.filehandle.size
    if end > size:
        raise ValueError(f"it is truncated: its {what}s end at byte {end:,}, and it has {size:,}")


def _piece(page: TiffPage) -> str:
    return "tile" if page.is_tiled else "strip"


def _piece_size(page: TiffPage) -> tuple[int, int]:
    """The rows and columns of a tile or strip."""
    return (page.tilelength, page.tilewidth) if page.is_tiled else (min(page.rowsperstrip, page.imagelength), page.imagewidth)


def _level(plane: _Plane, height: int, width: int) -> Level:
    return Level(plane.height, plane.width, (height / plane.height + width / plane.width) / 2, plane.at_once)


def open_tiff(path: Path) -> TiffImageFile:
    """Open a TIFF."""
    tiff = TiffFile(path)
    try:
        return TiffImageFile(path, tiff)
    except BaseException:
        tiff.close()
        raise


def _meaning(page: TiffPage) -> tuple[tuple[str, ...], NDArray[np.uint8] | None]:
    """The names of a page's samples, and its colours (n, 3) if its samples are numbers of these."""
    samples, photometric = page.samplesperpixel, page.photometric
    if page.dtype is None:
        raise ValueError(f"its samples of {page.bitspersample} bits are of no known kind")
    if photometric == PALETTE and page.colormap is not None:
        return COLOURS, (page.colormap.T >> 8).astype(np.uint8)
    if photometric not in (MINISWHITE, MINISBLACK, RGB) and not (photometric == YCBCR and page.compression in JPEG):
        raise ValueError(f"its colours, {getattr(photometric, 'name', photometric)}, are not RGB or grey: convert it first")
    extra = tuple(int(each) for each in page.extrasamples)
    colours = samples - len(extra)
    plain = COLOURS if photometric in (RGB, YCBCR) and colours == 3 else tuple(str(number) for number in range(colours))
    if samples == 1:
        return ("0",), None
    return (*plain, *(ALPHAS.get(kind, str(colours + number)) for number, kind in enumerate(extra))), None


def _pixel_size(page: TiffPage) -> PixelSize | None:
    """The size of a pixel by the tags of resolution, unless these say how to print."""
    resolution = [page.tags.valueof(tag) for tag in (283, 282)]
    factor = TO_MICROMETRES.get(int(page.tags.valueof(296, 2)))
    if factor is None or not all(isinstance(each, tuple) and len(each) == 2 and all(each) for each in resolution):
        return None
    height, width = (factor * below / above for above, below in resolution)
    return PixelSize(height, width, "µm") if max(height, width) < PRINT else None
