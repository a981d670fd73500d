"""Maps that are computed by rows, when these are asked for. Each is made from rows of other maps, down to those in files.

So a decoder is a chain of readers, and whoever asks the last one for a band makes every map compute what that band needs: its
own rows, and those around them that convolutions see. A map that is read with neighbours keeps its last rows, so that bands
that overlap are not computed twice; for that, bands must be asked for from the top down.

Nothing here changes the rows that it was given. Shapes: rows (1, C, rows, W), of maps with a height and a width.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .image_reader import RowReader


def rows_of(stored: Tensor) -> RowReader:
    """A map that is there, (1, C, H, W)."""
    return RowReader(stored.shape[2], stored.shape[3], lambda start, stop: stored[:, :, start:stop])


def each_pixel(function: Callable[[Tensor], Tensor], source: RowReader) -> RowReader:
    """A function of each pixel alone: of its channels, with the same weights everywhere."""
    return source._replace(read=lambda start, stop: function(source.read(start, stop)))


def added(sources: Sequence[RowReader]) -> RowReader:
    """The sum of maps of one size."""
    return _together(sources, lambda rows: sum(rows[1:], rows[0]))


def joined(sources: Sequence[RowReader]) -> RowReader:
    """Maps of one size, one after the other in the channels."""
    return _together(sources, lambda rows: torch.cat(rows, 1))


def _together(sources: Sequence[RowReader], function: Callable[[list[Tensor]], Tensor]) -> RowReader:
    sizes = {(source.height, source.width) for source in sources}
    if len(sizes) != 1:
        raise ValueError(f"maps of one size are expected, got {sorted(sizes)}")
    return sources[0]._replace(read=lambda start, stop: function([source.read(start, stop) for source in sources]))


def convolved(layers: nn.Module, source: RowReader) -> RowReader:
    """A convolution that keeps the size of the map, then layers that see each pixel alone.

    Args:
        layers: `nn.Conv2d`, or an `nn.Sequential` that begins with it.
        source: its rows should be `kept`: those around a band are read again with the next one.
    """
    first, *others = layers if isinstance(layers, nn.Sequential) else [layers]
    convolution = _checked(first)
    reach = int(convolution.padding[0])
    pointwise = nn.Sequential(*map(_checked_pointwise, others))

    def read(start: int, stop: int) -> Tensor:
        result: Tensor = pointwise(convolve_rows(convolution, rows_around(source, start - reach, stop + reach)))
        return result

    return source._replace(read=read)


def convolve_rows(convolution: nn.Conv2d, rows: Tensor) -> Tensor:
    """Rows with all that a convolution sees above and below them -> the rows without those."""
    padding = (0, int(convolution.padding[1]))
    return F.conv2d(rows, convolution.weight, convolution.bias, 1, padding, 1, convolution.groups)


def rows_around(source: RowReader, start: int, stop: int) -> Tensor:
    """Rows of a map, zeros where there are none."""
    rows = source.read(max(0, start), min(stop, source.height))
    above, below = max(0, -start), max(0, stop - source.height)
    return F.pad(rows, (0, 0, above, below)) if above or below else rows


def _checked(convolution: nn.Module) -> nn.Conv2d:
    """A convolution, if it keeps the size of a map, and so sees as many rows above and below as it pads."""
    if isinstance(convolution, nn.Conv2d) and not isinstance(convolution.padding, str):
        (tall, wide), padding = convolution.kernel_size, convolution.padding
        plain = convolution.padding_mode == "zeros" and set(convolution.stride + convolution.dilation) == {1}
        if plain and tall == 2 * padding[0] + 1 and wide == 2 * padding[1] + 1:
            return convolution
    raise ValueError(f"rows can be convolved with stride 1, dilation 1 and zeros around the map, got {convolution}")


def _checked_pointwise(layer: nn.Module) -> nn.Module:
    """A layer, if it sees each pixel alone in evaluation mode."""
    stored = isinstance(layer, nn.BatchNorm2d) and layer.track_running_stats
    if stored or isinstance(layer, nn.ReLU | nn.Identity):
        return layer
    raise ValueError(f"after a convolution, rows can go through BatchNorm2d with stored statistics and ReLU, got {layer}")


def kept(source: RowReader, above: int = 0) -> RowReader:
    """The same map. It keeps the rows of the last band, and computes only those of the next that are not among them.

    Args:
        above: how many rows more to keep, for a map that is read by several others: how far one may be behind another.
    """
    return source._replace(read=_KeptRows(source, above).read)


class _KeptRows:
    """The rows from `first` on that were read last."""

    def __init__(self, source: RowReader, above: int) -> None:
        self.source, self.above = source, above
        self.first = 0
        self.rows: Tensor | None = None

    def read(self, start: int, stop: int) -> Tensor:
        """Rows of the map, in the main from before."""
        if self.rows is None or not self.first <= start <= self.first + self.rows.shape[2]:
            self.first, self.rows = start, self.source.read(start, stop)
        end = self.first + self.rows.shape[2]
        if stop > end:
            first = max(self.first, start - self.above)
            self.rows = torch.cat([self.rows[:, :, first - self.first :], self.source.read(end, stop)], 2)
            self.first = first
        return self.rows[:, :, start - self.first : stop - self.first]
