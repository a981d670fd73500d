"""`stream_segment`: the class of every pixel of an image that is larger than memory, equal to what the segmenter itself gives.

The backbone's maps come from `stream`. Decoder, classifier and upsampling follow by rows: a band of the result is computed when
it is asked for, from the top down.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..dense.inference import argmax_labels
from ..dense.segmenter import COARSEST_STRIDE, Segmenter
from ..layers.bands import split_rows
from ..lite.label_drawing import IGNORED
from .decoder_rows import check_decoder, coarse_logit_rows, file_shapes, swept_sizes
from .image_reader import RowReader
from .pyramid_maps import padded, stream_pyramid
from .resize_rows import Resize, resize_rows, rows_needed
from .row_maps import kept
from .sweep import Sweeps
from .tensor_file import make_tensor_files
from .valid_rows import masked_reader

STRIDE = 4
"""Of the decoders' output."""
IGNORED_16 = 65_535
"""What IGNORED is in labels of 16 bits."""


class LabelRows(NamedTuple):
    """The classes of some rows of pixels."""

    start: int
    stop: int
    labels: NDArray[np.unsignedinteger[Any]]
    """(stop - start, W), uint8 or uint16."""


class LogitRows(NamedTuple):
    """The logits of some rows of pixels."""

    start: int
    stop: int
    logits: Tensor
    """(classes, stop - start, W)."""


class ProbabilityRows(NamedTuple):
    """The probabilities of the classes of some rows of pixels."""

    start: int
    stop: int
    probabilities: NDArray[np.float32]
    """(stop - start, W, classes), NaN for pixels that are not valid."""


def label_type(classes: int) -> tuple[np.dtype[Any], int]:
    """The type of labels of so many classes, and the label of pixels that are not valid."""
    return (np.dtype(np.uint8), IGNORED) if classes <= IGNORED else (np.dtype(np.uint16), IGNORED_16)


class StreamedSegmentation:
    """The result of `stream_segment`. Each call of `labels`, `logits` or `probabilities` is a sweep over the image.

    Attributes:
        height, width: of the image.
        classes: how many there are.
        dtype: of the labels: uint8 for up to 255 classes, uint16 for more.
        ignored: the label of pixels that are not valid: 255, or 65,535 in uint16.
    """

    def __init__(self, coarse: RowReader, classes: int, image: RowReader, sweeps: Sweeps) -> None:
        self.height, self.width, self.classes = image.height, image.width, classes
        self.dtype, self.ignored = label_type(classes)
        self._coarse, self._sweeps, self._valid = kept(coarse), sweeps, image.valid

    @torch.no_grad()
    def labels(self) -> Iterator[LabelRows]:
        """The most probable class of each pixel, by rows, each row once, from the top down.

        Bands without a valid pixel are not computed.
        """
        for start, stop in self._pixel_rows():
            invalid = self._invalid(start, stop)
            if invalid is not None and invalid.all():
                yield LabelRows(start, stop, np.full(invalid.shape, self.ignored, self.dtype))
                continue
            coarse, upsample = self._upsampling(start, stop)
            labels = argmax_labels(coarse, upsample).labels.cpu().numpy().astype(self.dtype)
            if invalid is not None:
                labels[invalid] = self.ignored
            yield LabelRows(start, stop, labels)

    @torch.no_grad()
    def logits(self) -> Iterator[LogitRows]:
        """The logits of each pixel, by rows, each row once, from the top down."""
        for start, stop in self._pixel_rows():
            coarse, upsample = self._upsampling(start, stop)
            yield LogitRows(start, stop, upsample(coarse))

    def probabilities(self) -> Iterator[ProbabilityRows]:
        """The softmax of the logits of each pixel, by rows, each row once, from the top down."""
        for start, stop, logits in self.logits():
            values = logits.permute(1, 2, 0).float().softmax(2).cpu().numpy()
            invalid = self._invalid(start, stop)
            if invalid is not None:
                values[invalid] = np.nan
            yield ProbabilityRows(start, stop, values)

    def _invalid(self, start: int, stop: int) -> NDArray[np.bool_] | None:
        """Which pixels of these rows are not valid; None if no mask says so."""
        return None if self._valid is None else ~self._valid(start, stop).cpu().numpy()

    def _pixel_rows(self) -> Iterator[tuple[int, int]]:
        """The bands, in rows of pixels."""
        for start, stop in self._sweeps.limits(self._coarse):
            if STRIDE * start < self.height:  # else there is only padding
                yield STRIDE * start, min(STRIDE * stop, self.height)

    def _upsampling(self, start: int, stop: int) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The logits (classes, n, w) that these rows of pixels are made from, and how: (m, n, w) -> (m, stop - start, W)."""
        return upsampling(self._coarse, STRIDE, start, stop, self.width)


def upsampling(coarse: RowReader, stride: int, start: int, stop: int, width: int) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """The logits (classes, n, w) that some rows of pixels are made from, and how: (m, n, w) -> (m, stop - start, width).

    Args:
        coarse: the logits of the padded image.
        stride: theirs.
        start, stop: the rows of pixels.
        width: of the image without padding.
    """
    how, old = Resize(), coarse.height
    size = stride * old, stride * coarse.width
    first, last = rows_needed(start, stop, old, size[0], how, torch.float64)

    def upsample(logits: Tensor) -> Tensor:
        rows = resize_rows(logits.unsqueeze(0), first, old, start, stop, size, how)
        return rows[0, :, :, :width]

    return coarse.read(first, last)[0], upsample


@torch.no_grad()
def stream_segment(
    segmenter: Segmenter,
    image: Any,
    *,
    mask: Any = None,
    tokens: int = 8192,
    folder: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> StreamedSegmentation:
    """Segment one image of any size, in the memory of a band, with the labels that the segmenter gives to the whole image.

    Global are the summaries of the backbone's blocks; SemanticFPN's means and variances of GroupNorm; and UperNet's averages of
    the pyramid pooling. All are sums over bands, so that the size of the bands does not matter.

    Args:
        segmenter: with a backbone that `stream` takes, in evaluation mode.
        image, mask: as for `stream`. The labels of pixels that are not valid are `ignored`. Tokens without a valid pixel reach
            the decoder as zeros, and count in its means and variances: as in `Segmenter.forward` with the mask.
        tokens: how many to hold in memory at once, at least a row of the finest map.
        folder: for temporary files: those of `stream`, and for SemanticFPN about 0.24 bytes x its width for each pixel in fp32.
        progress: called with (done, total) after each band, those of the first sweep over the result included.

    Returns:
        Labels or logits by rows.
    """
    if segmenter.training:
        raise ValueError("stream_segment works in evaluation mode: call segmenter.eval() first")
    source = masked_reader(segmenter.backbone.bare(), image, mask)
    whole = padded(source, COARSEST_STRIDE)
    check_decoder(segmenter, folder)
    size = whole.height // STRIDE, whole.width // STRIDE
    counter = _Progress(progress, sum(len(split_rows(grid, tokens)) for grid in (*swept_sizes(segmenter, size), size)))
    files = make_tensor_files(file_shapes(segmenter, size), segmenter.head.weight.dtype, folder)
    maps = stream_pyramid(segmenter.backbone, whole, tokens=tokens, folder=folder, progress=counter.of_backbone)
    sweeps = Sweeps(tokens, files, counter.add)
    coarse = coarse_logit_rows(segmenter, maps, sweeps)
    return StreamedSegmentation(coarse, segmenter.head.out_channels, source, sweeps)


class _Progress:
    """Counts bands: those of the backbone, then those of the decoder, up to the end of the first sweep over the result."""

    def __init__(self, report: Callable[[int, int], None] | None, total: int) -> None:
        self.report, self.left, self.done, self.total = report, total, 0, total

    def of_backbone(self, done: int, total: int) -> None:
        """So many of the backbone's bands are done."""
        self._set(done, total + self.left)

    def add(self) -> None:
        """One more of the decoder's bands is done."""
        if self.done < self.total:
            self._set(self.done + 1, self.total)

    def _set(self, done: int, total: int) -> None:
        self.done, self.total = done, total
        if self.report is not None:
            self.report(done, total)
