"""A sweep goes once over a map, a band at a time from the top down: to add up sums, and to write the map to a file."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from torch import Tensor

from ..layers.bands import Limits, split_rows
from .image_reader import RowReader
from .map_files import StoredMap
from .map_sums import Moments


class MapBand(NamedTuple):
    """Rows of a map."""

    start: int
    stop: int
    rows: Tensor
    """(1, C, stop - start, W)."""


class Sweeps:
    """The sweeps over the maps of one image.

    Args:
        tokens: how many pixels of a map a band has, at least a row of them.
        files: for the maps that are written, (H, W, C), in the order in which they are.
        done: called after each band.
    """

    def __init__(self, tokens: int, files: Sequence[StoredMap], done: Callable[[], None]) -> None:
        self.tokens, self.done = tokens, done
        self._files, self._unused = files, iter(files)

    def limits(self, source: RowReader) -> Iterator[Limits]:
        """Of the bands of a map. What was read of the files is freed after each."""
        for limits in split_rows((source.height, source.width), self.tokens):
            yield limits
            for file in self._files:
                file.release()
            self.done()

    def bands(self, source: RowReader) -> Iterator[MapBand]:
        """The bands of a map."""
        for start, stop in self.limits(source):
            yield MapBand(start, stop, source.read(start, stop))

    def totals(self, source: RowReader, function: Callable[[MapBand], list[Tensor]]) -> list[Tensor]:
        """What a function gives for each band of a map, summed over the bands."""
        totals: list[Tensor] = []
        for band in self.bands(source):
            own = function(band)
            totals = own if not totals else [total + part for total, part in zip(totals, own, strict=True)]
        return totals

    def write(self, source: RowReader) -> tuple[RowReader, Moments]:
        """Compute a map once: what is written can be read again, and the moments of its channels are known."""
        file = next(self._unused)
        moments: Moments | None = None
        for start, stop, rows in self.bands(source):
            device = rows.device
            file.tensor[start:stop] = rows[0].permute(1, 2, 0)
            own = Moments.of(rows)
            moments = own if moments is None else moments + own
        assert moments is not None
        stored = file.tensor.permute(2, 0, 1).unsqueeze(0)
        return source._replace(read=lambda start, stop: stored[:, :, start:stop].to(device)), moments
