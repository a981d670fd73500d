"""One image forward through a segmenter to a loss, and back.

The decoder is gone back over first, from the pixels to the backbone's maps, in bands whose graphs end at what is in files
(`replay.py`); then the backbone (`training_pass.py`).

Shapes: maps in files (1, H, W, C) or (H, W, C), rows (1, C, n, W).
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..dense.pyramid import STRIDES
from ..dense.segmenter import COARSEST_STRIDE, Segmenter, SemanticFpn
from ..layers.bands import Limits, split_rows
from .autocast_state import AutocastState
from .decoder_rows import coarse_logit_rows, file_shapes, swept_sizes
from .gradients import on_model
from .image_reader import RowReader
from .label_rows import LabelReader
from .map_files import StoredMap
from .parameter_gradients import ParameterGradients
from .pyramid_maps import fitted, padded
from .replay import Leaves, RecordedSweeps, ReplayedSweeps, with_gradients
from .row_maps import convolved, each_pixel, kept
from .segment import STRIDE, upsampling
from .sweep import Sweeps
from .training_pass import TrainingPass

LEAST_ROWS = 8
"""Of a band of the decoder that is gone back over: the rows around it are computed for each band anew."""
PixelLoss = Callable[[Tensor, Tensor], Tensor]
"""Logits (1, classes, n, W) and labels (1, n, W) -> the sum of the losses of these pixels."""


class _Output(NamedTuple):
    """Logits by rows."""

    rows: RowReader
    stride: int
    weight: float


class SegmentPass:
    """The passes over one image."""

    def __init__(self, segmenter: Segmenter, source: RowReader, labels: LabelReader, loss: PixelLoss) -> None:
        self.segmenter, self.source, self.labels, self.loss = segmenter, source, labels, loss
        learned = [parameter for parameter in segmenter.parameters() if parameter.requires_grad]
        self.gradients = ParameterGradients(learned)
        self.done = False

    def prepare(
        self,
        auxiliary: float,
        ignore: int,
        tokens: int,
        folder: str | Path | None,
        keep: int | None,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        """Make the steps and the files; what is drawn for the image is drawn here."""
        segmenter = self.segmenter
        self.backbone, indices, self.norm = segmenter.backbone.taps()
        self.whole = on_model(padded(self.source, COARSEST_STRIDE), segmenter)
        taps = self.backbone.taps(indices)
        self.tokens, self.ignore = tokens, ignore
        self.steps = TrainingPass(
            self.backbone, self.whole, self.gradients,
            tokens=tokens, folder=folder, keep=keep, progress=progress, taps=taps,
        )  # fmt: skip
        self.tapped = [self.steps.ends[tap] + 1 for tap in taps]
        self.auxiliary = auxiliary if segmenter.training and segmenter.auxiliary is not None else 0.0
        self.dropped = _draw(segmenter)
        self.like = segmenter.head.weight
        self.autocast = AutocastState.now(self.like.device)
        self.size = self.whole.height // STRIDE, self.whole.width // STRIDE
        self.layers = nn.ModuleList([segmenter.decoder, segmenter.head, self.backbone.norm])
        if self.auxiliary:
            assert segmenter.auxiliary is not None
            self.layers.append(segmenter.auxiliary)
        swept = swept_sizes(segmenter, self.size)
        forward, back = split_rows(self.size, tokens), self._limits(self.size)
        pixels = sum(1 for limits in (forward, back) for _ in self._pixels(limits))
        self.steps.counter.total += pixels + sum(len(split_rows(grid, tokens)) + len(self._limits(grid)) for grid in swept)

    def forward(self) -> Tensor:
        """The loss."""
        self.steps.forward()
        shapes = file_shapes(self.segmenter, self.size)
        self.files: list[StoredMap] = [self.steps.files.take(shape, self.like.dtype) for shape in shapes]
        sweeps = RecordedSweeps(self.tokens, self.files, self._band_done)
        outputs = self._outputs(self._plain_maps(), sweeps)
        self.records = sweeps.records
        outputs = [output._replace(rows=kept(output.rows)) for output in outputs]
        total, count = torch.zeros((), dtype=torch.float64), 0
        for start, stop in self._pixels(split_rows(self.size, self.tokens)):
            labels = self._labels(start, stop)
            count += int((labels != self.ignore).sum())
            total += self._sum(outputs, start, stop, labels).double().cpu()
            self._band_done()
        self.count = max(1, count)
        return (total / self.count).to(self.like.device, torch.promote_types(self.like.dtype, torch.float32))

    def backward(self, gradient: Tensor) -> list[Tensor | None]:
        """The gradients of all parameters."""
        if self.done:
            raise RuntimeError("this image's backward pass was done before, and its files are gone: compute the loss again")
        self.done = True
        with self.autocast.again():
            tapped = {number: self._zeros(self.steps.inputs[number].tensor) for number in dict.fromkeys(self.tapped)}
            self.into = {number: file.tensor for number, file in tapped.items()}
            files: list[StoredMap] = []
            for number, record in enumerate(self.records):
                if record.file is not None:
                    files.append(self._zeros(record.file))
                self.records[number] = with_gradients(record, None if record.file is None else files[-1].tensor)
            for start, stop in self._pixels(self._limits(self.size)):
                self._back_from_pixels(start, stop, gradient / self.count)
            for number in reversed(range(len(self.records))):
                self._back_from_sweep(number)
            for file in (*files, *self.files):
                self.steps.files.give_back(file)
            self.steps.backward(self.steps.take_gradient(), None, known=False, tapped=tapped)
        return self.gradients.of_all()

    def _back_from_pixels(self, start: int, stop: int, gradient: Tensor) -> None:
        leaves = Leaves(self.like.device)
        with torch.enable_grad():
            outputs = self._outputs(self._leaf_maps(leaves), ReplayedSweeps(self.records, leaves))
            value = self._sum(outputs, start, stop, self._labels(start, stop))
        self._go_back(leaves, [value], [gradient])
        self._band_done()

    def _back_from_sweep(self, number: int) -> None:
        """Back over the bands of the map that one of the decoder's sweeps went over."""
        source = self._replayed(Leaves(self.like.device)).sources[number]
        for band in self._limits((source.height, source.width)):
            leaves = Leaves(self.like.device)
            with torch.enable_grad():
                results, gradients = self._replayed(leaves).result(number, band)
            self._go_back(leaves, results, gradients)
            self._band_done()

    def _replayed(self, leaves: Leaves) -> ReplayedSweeps:
        """The decoder's sweeps, with leaves in place of what they gave."""
        sweeps = ReplayedSweeps(self.records, leaves)
        self._outputs(self._leaf_maps(leaves), sweeps)
        return sweeps

    def _go_back(self, leaves: Leaves, outputs: list[Tensor], gradients: list[Tensor]) -> None:
        found = self.gradients.go_back(self.layers, outputs, gradients, [each.tensor for each in leaves.all])
        for each, gradient in zip(leaves.all, found, strict=True):
            each.add(gradient)

    # The decoder

    def _outputs(self, features: list[RowReader], sweeps: Sweeps) -> list[_Output]:
        """The logits by rows, and those of the auxiliary head."""
        segmenter = self.segmenter
        maps = [
            fitted(level, reduction, stride, (self.whole.height // stride, self.whole.width // stride), self.like.dtype)
            for level, reduction, stride in zip(features, segmenter.backbone.reductions, STRIDES, strict=True)
        ]
        coarse = coarse_logit_rows(segmenter, maps, sweeps, self.dropped[0])
        outputs = [_Output(coarse, STRIDE, 1.0)]
        if self.auxiliary:
            convolution, norm, activation, _, classifier = segmenter.auxiliary  # type: ignore[misc]
            hidden = convolved(nn.Sequential(convolution, norm, activation), maps[2])
            factors = self.dropped[1]
            hidden = hidden if factors is None else each_pixel(lambda rows: rows * factors, hidden)
            outputs.append(_Output(convolved(classifier, hidden), STRIDES[2], self.auxiliary))
        return outputs

    def _plain_maps(self) -> list[RowReader]:
        return [
            self._normed(place, _stored_rows(self.steps.inputs[number].tensor[0], self.like.device))
            for place, number in enumerate(self.tapped)
        ]

    def _leaf_maps(self, leaves: Leaves) -> list[RowReader]:
        return [
            self._normed(place, leaves.rows_of(self.steps.inputs[number].tensor[0], self.into[number][0]))
            for place, number in enumerate(self.tapped)
        ]

    def _normed(self, place: int, rows: RowReader) -> RowReader:
        """A map of the last stage through the model's last norm, if it is wanted; zero where masked."""
        of = self.steps.steps[self.tapped[place] - 1].of
        if not self.norm or of is not self.steps.last:
            return rows
        mask = of.mask

        def read(start: int, stop: int) -> Tensor:
            normed: Tensor = self.backbone.norm(rows.read(start, stop).permute(0, 2, 3, 1))
            if mask is not None:
                normed = normed.masked_fill(~mask[:, start:stop].to(normed.device).unsqueeze(-1), 0)
            return normed.permute(0, 3, 1, 2)

        return rows._replace(read=read)

    # Pixels

    def _sum(self, outputs: list[_Output], start: int, stop: int, labels: Tensor) -> Tensor:
        """The sum of the losses of some rows of pixels."""
        total: Tensor | None = None
        for rows, stride, weight in outputs:
            coarse, upsample = upsampling(rows, stride, start, stop, self.source.width)
            logits = upsample(coarse).unsqueeze(0)
            own = weight * self.loss(logits if logits.dtype == torch.float64 else logits.float(), labels)
            total = own if total is None else total + own
        assert total is not None
        return total

    def _labels(self, start: int, stop: int) -> Tensor:
        return torch.as_tensor(self.labels(start, stop)).unsqueeze(0).to(self.like.device)

    def _pixels(self, limits: list[Limits]) -> Iterator[Limits]:
        """Bands of the logits as rows of pixels."""
        for start, stop in limits:
            if STRIDE * start < self.source.height:
                yield STRIDE * start, min(STRIDE * stop, self.source.height)

    def _limits(self, grid: tuple[int, ...]) -> list[Limits]:
        """Bands for going back."""
        return split_rows(grid, max(self.tokens, LEAST_ROWS * grid[1]))

    def _zeros(self, like: Tensor) -> StoredMap:
        """A file of zeros."""
        file = self.steps.files.take(like.shape, like.dtype)
        rows = file.tensor[0] if like.ndim == 4 else file.tensor
        for start, stop in split_rows((rows.shape[0], rows.shape[1]), self.tokens):
            rows[start:stop].zero_()
            file.release()
        return file

    def _band_done(self) -> None:
        self.steps.counter.add()
        self.steps.files.release()


def _draw(segmenter: Segmenter) -> tuple[Tensor | None, Tensor | None]:
    """Which channels are dropped for this image: factors (1, C, 1, 1) of the decoder and of the auxiliary head."""
    found: list[Tensor | None] = []
    weight = segmenter.head.weight
    decoder = segmenter.decoder
    for part, channels in (
        (decoder.dropout if isinstance(decoder, SemanticFpn) else None, weight.shape[1]),
        (None if segmenter.auxiliary is None else segmenter.auxiliary[3], weight.shape[1] // 2),  # type: ignore[index]
    ):
        ones = torch.ones(1, channels, 1, 1, dtype=weight.dtype, device=weight.device)
        found.append(None if part is None else part(ones))
    return found[0], found[1]


def _stored_rows(stored: Tensor, device: torch.device) -> RowReader:
    def read(start: int, stop: int) -> Tensor:
        return stored[start:stop].to(device).permute(2, 0, 1).unsqueeze(0)

    return RowReader(stored.shape[0], stored.shape[1], read)
