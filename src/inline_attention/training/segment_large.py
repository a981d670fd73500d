"""Semantic segmentation of whole images of any size, read by rows, with masks as large, forward and back.

The masks are files of numbers that are read by rows too, so they may be TIFFs of any size. Evaluation goes over the pixels by
rows and counts each once.
"""

from dataclasses import dataclass, replace
from math import ceil, prod
from pathlib import Path
from typing import Any, cast
from weakref import finalize

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from ..data.datasets import ImageDataset
from ..data.label_maps import IGNORED, LabelMapDataset
from ..data.loader import Batch, Transform
from ..data.splits import Source
from ..dense.segmenter import Segmenter
from ..large.augmented_rows import augmented
from ..large.decoder_rows import file_shapes
from ..large.image_file import ImageFile
from ..large.image_reader import RowReader
from ..large.open_file import open_image_file
from ..large.segment import STRIDE, stream_segment
from ..large.segment_gradients import freeze_batch_norms, stream_segment_loss
from ..large.stages import ways_through
from ..lite.decode import BadImageError
from ..models.backbone import Backbone
from ..models.finite import check_outputs
from .config import Recipe
from .large_input import FileImage, corner_of, draw_augmentation, trial_of
from .segment import PixelMeter, Segment
from .task import Trial


@dataclass
class LabelledImage(FileImage):
    """An image and its mask, which are opened when a segmenter takes them."""

    labels: LabelMapDataset | None = None
    """Whose numbers are classes."""
    mask: Path = Path()
    auxiliary: float = 0.0
    """Weight of the auxiliary head's loss."""

    def open_labels(self, source: RowReader) -> RowReader:
        """The classes of an image's pixels by rows, as a map (1, 1, rows, W)."""
        assert self.labels is not None
        labels, mask = self.labels, self.mask
        file = open_mask(mask)
        level = file.levels[0]

        def read(start: int, stop: int) -> Tensor:
            numbers = file.read(0, start, stop)[:, :, 0].astype(np.int64)
            return torch.from_numpy(labels.classes_of(numbers, mask, start)).float()[None, None]

        finalize(read, file.close)
        rows = RowReader(level.height, level.width, read)
        if self.rows is not None:
            rows = corner_of(rows, self.rows)
        one = torch.ones(1, 1, 1)
        geometric = self.augmentation._replace(brightness=1.0, contrast=1.0, saturation=1.0)
        rows = augmented(rows, geometric, one, one, self.options.folder)
        if (rows.height, rows.width) != (source.height, source.width):
            raise BadImageError(
                f"{mask} is {rows.width} x {rows.height} (width x height), and its image {self.path} is "
                f"{source.width} x {source.height}"
            )
        return rows

    @override
    def run(self, model: nn.Module) -> Tensor:
        """The loss of a segmenter."""
        source, options = self.open(), self.options
        labels = self.open_labels(source)
        freeze_batch_norms(model)
        return stream_segment_loss(
            cast("Segmenter", model), source, lambda start, stop: labels.read(start, stop)[0, 0].long(),
            auxiliary=self.auxiliary, tokens=options.tokens, folder=options.folder, keep=options.keep, progress=self.watch,
        )  # fmt: skip


def open_mask(path: Path) -> ImageFile:
    """A file with one number for each pixel."""
    try:
        file = open_image_file(path)
    except ValueError as error:
        raise BadImageError(str(error)) from error
    if len(file.channels) != 1 or file.dtype.kind not in "iub":
        file.close()
        raise BadImageError(
            f"{path} is no mask: it has {len(file.channels)} channels of {file.dtype}, and one of whole numbers is needed"
        )
    return file


@dataclass(frozen=True)
class LabelledFiles(ImageDataset):
    """The files of a dataset of label maps, which are not read here."""

    label_maps: LabelMapDataset

    def __len__(self) -> int:
        return len(self.label_maps)

    @override
    def name(self, index: int) -> str:
        return self.label_maps.name(index)

    @override
    def load(self, index: int, channels: int = 0) -> tuple[tuple[Path, Path], LabelMapDataset]:
        """The image's file and its mask's, and whose they are."""
        return self.label_maps.paths(index), self.label_maps.choose([index])

    @override
    def files(self) -> list[str]:
        return self.label_maps.files()

    @override
    def entries(self) -> list[str]:
        return self.label_maps.entries()

    def choose(self, indices: Any) -> "LabelledFiles":
        """Some of them."""
        return LabelledFiles(self.label_maps.choose(indices))


@dataclass(frozen=True)
class LabelledTransform:
    """From two files to a segmenter's input."""

    recipe: Recipe
    training: bool

    def __call__(self, paths: tuple[Path, Path], labels: LabelMapDataset) -> tuple[LabelledImage, Tensor]:
        """(image with its mask, nothing)."""
        recipe = self.recipe
        image = LabelledImage(paths[0], recipe.data, recipe.run, labels=labels, mask=paths[1], auxiliary=recipe.task.auxiliary)
        image.open_labels(image.open())  # files that cannot be read are found here
        drawn = draw_augmentation(recipe.augment if self.training else None)
        return replace(image, augmentation=drawn), torch.zeros(0)


class SegmentLarge(Segment):
    """Cross entropy over all pixels of an image; mean intersection over union."""

    @override
    def read_split(self, root: Path, split: str, known: tuple[str, ...] | None) -> tuple[Any, tuple[str, ...], tuple[()]]:
        found, classes, bad = super().read_split(root, split, known)
        return LabelledFiles(found), classes, bad

    @override
    def learned(self) -> str:
        return f"{self.head} on whole images by rows"

    @override
    def suited_to(self, source: Source) -> "SegmentLarge":
        if (at_once := self.recipe.optim.device_batch) != 1:
            raise ValueError(f"large images go through the model one by one: optim.device-batch must be 1, got {at_once}")
        return self

    @override
    def add_head(self, pyramid: Any, classes: int) -> nn.Module:
        ways_through(pyramid.bare(), "--large")
        return super().add_head(pyramid, classes)

    @override
    def transform(self, *, training: bool) -> Transform:
        return LabelledTransform(self.recipe, training)

    @override
    def loss(self, model: nn.Module, batch: Batch, classes: int) -> Tensor:
        losses = [model(replace(image, watch=self.watch)) for image in batch.pixels]
        return torch.stack(losses).mean()

    @override
    def meter(self, source: Source, accelerator: Any) -> "LargePixelMeter":
        return LargePixelMeter(self, len(source.classes), accelerator)

    @override
    def trial(self, batch: Batch, model: nn.Module, source: Source) -> Trial:
        """A corner of the image."""
        train, segmenter = source.train, cast("Segmenter", model)
        assert isinstance(train, LabelledFiles)
        paths = [train.label_maps.paths(index)[0] for index in range(len(train))]
        images = [LabelledImage(path, self.recipe.data, self.recipe.run) for path in paths]
        found = trial_of(batch, images, cast("Backbone", self.backbone(model)), self.recipe.run)
        height, width = found.largest
        shapes = file_shapes(segmenter, (ceil(height / STRIDE), ceil(width / STRIDE)))
        decoder = 2 * sum(prod(shape) for shape in shapes) * segmenter.head.weight.element_size()  # maps and gradients
        return replace(found, disk_bytes=found.disk_bytes + decoder)


class LargePixelMeter(PixelMeter):
    """The metrics of `PixelMeter`, by rows."""

    @override
    def update(self, model: nn.Module, batch: Batch) -> None:
        for image, valid, name in zip(batch.pixels, batch.valid.tolist(), batch.names or [""] * len(batch.pixels), strict=True):
            if valid:
                self._count(cast("Segmenter", model), image, name)

    def _count(self, model: Segmenter, image: LabelledImage, name: str) -> None:
        source = image.open()
        labels, options = image.open_labels(source), image.options
        folder = None if options.folder == "memory" else options.folder
        found = stream_segment(model, source, tokens=options.tokens, folder=folder, progress=self.task.watch)
        for start, stop, logits in found.logits():
            check_outputs(logits, [name])
            truth = labels.read(start, stop)[0, 0].long().to(logits.device)
            if source.valid is not None:
                truth = truth.masked_fill(~source.valid(start, stop).to(truth.device), IGNORED)
            loss = F.cross_entropy(logits[None].float(), truth[None], ignore_index=IGNORED, reduction="sum")
            self.miou.update(logits.argmax(0), truth)
            self.loss += torch.tensor([float(loss), int((truth != IGNORED).sum())], dtype=torch.float64)
