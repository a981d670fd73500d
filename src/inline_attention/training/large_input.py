"""Image files that a model takes whole, by rows: how they are opened and augmented, and what a dry run tries of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..data.config import AugmentConfig, DataConfig
from ..data.loader import Batch
from ..data.transforms import normalisation
from ..large.augmented_rows import Augmentation, augmented
from ..large.disk import disk_needed
from ..large.image_reader import RowReader, open_image
from ..large.open_large_image import open_large_image
from ..lite.decode import BadImageError
from ..models.backbone import Backbone
from ..models.in_parts import ImageInParts
from .config import RunConfig
from .task import Trial

SMALLEST_TRIAL, MEASURED = 64, 16
"""Pixels of the shortest side of what a dry run tries; images whose size it looks up."""
UNCHANGED = Augmentation()
Watch = Callable[[int, int], None]
"""Called with (done, total) parts of one image."""


def unwatched(done: int, total: int) -> None:
    """Nobody looks."""


@dataclass
class FileImage(ImageInParts):
    """An image file, which is opened when a model takes it."""

    path: Path
    data: DataConfig
    options: RunConfig
    augmentation: Augmentation = UNCHANGED
    watch: Watch = unwatched
    rows: int | None = None
    """Only so many rows and columns of it, for a trial."""

    def open(self) -> RowReader:
        """The image by rows. What is wrong with its file is a `BadImageError`."""
        data = self.data
        mean, std = normalisation(data)
        try:
            image = open_large_image(
                self.path, level=data.level, mpp=data.mpp, channels=data.select, value_range=data.value_range,
                mask=data.valid,
            )  # fmt: skip
            source = open_image(image, channels=data.channels, mean=mean, std=std)
        except ValueError as error:
            raise BadImageError(str(error)) from error
        shape = (-1, 1, 1)
        centre, width = torch.tensor(mean).view(shape), torch.tensor(std).view(shape)
        source = source if self.rows is None else corner_of(source, self.rows)
        return augmented(source, self.augmentation, centre, width, self.options.folder)


def draw_augmentation(augment: AugmentConfig | None) -> Augmentation:
    """What is done to one image; nothing if None."""
    if augment is None:
        return UNCHANGED
    turn, hflip, vflip, *colours = torch.rand(6).tolist()
    quarters = int(torch.randint(1, 4, ())) if turn < augment.turn else 0
    factors = [1 + augment.color_jitter * (2 * colour - 1) for colour in colours]
    return Augmentation(quarters, hflip < augment.hflip, vflip < augment.vflip, *factors)


def trial_of(batch: Batch, images: Sequence[FileImage], backbone: Backbone, options: RunConfig) -> Trial:
    """A corner of an image, of about one band; an image takes as many times as long as it has more pixels.

    Args:
        batch: to be tried; its images are `FileImage`s.
        images: all those of the training set.
        backbone: of the model.
        options: how images go through it.
    """
    side = max(SMALLEST_TRIAL, int(options.tokens**0.5) * backbone.patch_size)
    opened = [images[index].open() for index in range(0, len(images), max(1, len(images) // MEASURED))]
    sizes = [(source.height, source.width) for source in opened]
    tried = [min(side, height) * min(side, width) for height, width in sizes]
    mean = sum(height * width for height, width in sizes) / len(sizes)
    largest = max(sizes, key=lambda size: size[0] * size[1])
    corners = [replace(image, rows=side, augmentation=UNCHANGED) for image in batch.pixels]
    return Trial(
        replace(batch, pixels=corners),
        times=max(1.0, mean * len(tried) / sum(tried)),
        memory=1 / sum(backbone.depths()),
        disk_bytes=disk_needed(backbone, largest, options.keep),
        largest=largest,
    )


def corner_of(source: RowReader, rows: int) -> RowReader:
    """The first rows and columns."""
    height, width = min(source.height, rows), min(source.width, rows)
    valid = source.valid
    return RowReader(
        height,
        width,
        lambda start, stop: source.read(start, stop)[..., :width],
        None if valid is None else lambda start, stop: valid(start, stop)[:, :width],
    )
