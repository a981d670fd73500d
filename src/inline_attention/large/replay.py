"""Going back through a decoder that works by rows.

A decoder is a chain of readers, and its sweeps write maps to files, with their moments, and add up totals. The forward pass
remembers these (`RecordedSweeps`). For each band that is gone back over, the chain is built again with leaves in their place
(`ReplayedSweeps`): so the graph of a band ends at rows of files and at totals, whose gradients are added up. When all bands of
what came later are done, those of a map that was written are gone back over, too.

Shapes: maps in files (H, W, C), rows (1, C, n, W).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..layers.bands import Limits
from .image_reader import RowReader
from .map_files import StoredMap
from .map_sums import Moments
from .parameter_gradients import leaf
from .sweep import MapBand, Sweeps


@dataclass
class Recorded:
    """What one sweep gave, and its gradients."""

    file: Tensor | None
    """(H, W, C): the map that was written; None if totals were added up."""
    values: list[Tensor]
    """The totals; or the mean and the sum of squared deviations of each channel."""
    gradients: list[Tensor] = field(default_factory=list)
    """Of `values`."""
    of_file: Tensor | None = None
    """The gradient of the map, (H, W, C)."""


class RecordedSweeps(Sweeps):
    """The sweeps of the forward pass, which remember what they gave."""

    def __init__(self, tokens: int, files: Sequence[StoredMap], done: Callable[[], None]) -> None:
        super().__init__(tokens, files, done)
        self.records: list[Recorded] = []
        self.counts: list[int] = []

    def totals(self, source: RowReader, function: Callable[[MapBand], list[Tensor]]) -> list[Tensor]:
        """As in `Sweeps`."""
        totals = super().totals(source, function)
        self.records.append(Recorded(None, totals))
        return totals

    def write(self, source: RowReader) -> tuple[RowReader, Moments]:
        """As in `Sweeps`."""
        file = self._files[sum(record.file is not None for record in self.records)]
        stored, moments = super().write(source)
        self.records.append(Recorded(file.tensor, [moments.mean, moments.squares]))
        return stored, moments


@dataclass(eq=False)
class Leaf:
    """A tensor at which the graph of a band ends."""

    tensor: Tensor
    add: Callable[[Tensor], None]
    """Adds its gradient to where it belongs."""


class Leaves:
    """The leaves of one band's graph.

    Args:
        device: where the model is.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.all: list[Leaf] = []

    def rows_of(self, stored: Tensor, gradient: Tensor) -> RowReader:
        """A map in a file, (H, W, C), whose gradient is added to another file."""

        def read(start: int, stop: int) -> Tensor:
            rows = leaf(stored[start:stop].to(self.device).permute(2, 0, 1).unsqueeze(0))
            self.all.append(Leaf(rows, lambda found: _add_rows(gradient, start, found)))
            return rows

        return RowReader(stored.shape[0], stored.shape[1], read)

    def value_of(self, value: Tensor, gradients: list[Tensor], place: int) -> Tensor:
        """A total, whose gradient is added to those at a place in a list."""

        def add(found: Tensor) -> None:
            gradients[place] = gradients[place] + found

        self.all.append(Leaf(leaf(value), add))
        return self.all[-1].tensor


class ReplayedSweeps(Sweeps):
    """Sweeps that are not done again: what they gave are leaves.

    Args:
        records: of the forward pass.
        leaves: where the leaves are put.
    """

    def __init__(self, records: Sequence[Recorded], leaves: Leaves) -> None:
        super().__init__(1, (), lambda: None)
        self.records, self.leaves = records, leaves
        self.sources: list[RowReader] = []
        """The map that each sweep went over."""
        self.functions: list[Callable[[MapBand], list[Tensor]] | None] = []

    def totals(self, source: RowReader, function: Callable[[MapBand], list[Tensor]]) -> list[Tensor]:
        """The totals as leaves."""
        return self._values(self._next(source, function))

    def write(self, source: RowReader) -> tuple[RowReader, Moments]:
        """The map that was written, and its moments, as leaves."""
        record = self._next(source, None)
        assert record.file is not None and record.of_file is not None  # noqa: PT018
        mean, squares = self._values(record)
        rows = self.leaves.rows_of(record.file, record.of_file)
        return rows, Moments(record.file.shape[0] * record.file.shape[1], mean, squares)

    def _next(self, source: RowReader, function: Callable[[MapBand], list[Tensor]] | None) -> Recorded:
        self.sources.append(source)
        self.functions.append(function)
        return self.records[len(self.sources) - 1]

    def _values(self, record: Recorded) -> list[Tensor]:
        return [self.leaves.value_of(value, record.gradients, place) for place, value in enumerate(record.values)]

    def result(self, number: int, limits: Limits) -> tuple[list[Tensor], list[Tensor]]:
        """What a sweep computes of one band, and the gradients of it."""
        record, (start, stop) = self.records[number], limits
        function, rows = self.functions[number], self.sources[number].read(start, stop)
        if function is not None:
            return function(MapBand(start, stop, rows)), record.gradients
        return [rows], [_gradient_of_written(record, start, stop).to(rows)]


def _gradient_of_written(record: Recorded, start: int, stop: int) -> Tensor:
    """The gradient of some rows of a map that was written: from its readers, and through its moments."""
    assert record.file is not None and record.of_file is not None  # noqa: PT018
    mean, (of_mean, of_squares) = record.values[0], record.gradients
    pixels, count = record.file[start:stop].to(mean.device), record.file.shape[0] * record.file.shape[1]
    through = of_mean / count + 2 * (pixels - mean) * of_squares
    total: Tensor = record.of_file[start:stop].to(mean.device) + through
    return total.permute(2, 0, 1).unsqueeze(0)


def with_gradients(record: Recorded, of_file: Tensor | None) -> Recorded:
    """A record with gradients of zero, and a file of zeros for that of its map."""
    return replace(record, gradients=[torch.zeros_like(value) for value in record.values], of_file=of_file)


def _add_rows(gradient: Tensor, start: int, found: Tensor) -> None:
    rows = found[0].permute(1, 2, 0)
    gradient[start : start + len(rows)] += rows.to(gradient.device, gradient.dtype)
