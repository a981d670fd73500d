"""The whole result of a streamed segmentation, in temporary files: labels, probabilities on request, counts of pixels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .image_file import Georeference, PixelSize
from .large_image import LargeImage
from .map_levels import MapLevels, average, majority
from .segment import StreamedSegmentation, label_type

ProbabilityType = Literal["uint8", "float16", "float32"]


@dataclass(frozen=True)
class Place:
    """Where the map lies on the slide or on the earth, in its own pixels."""

    pixel_size: PixelSize | None = None
    georeference: Georeference | None = None
    downsample: tuple[float, float] = (1.0, 1.0)
    """How many pixels of the file's finest level lie along the height and the width of one of the map."""

    @classmethod
    def of(cls, image: LargeImage) -> "Place":
        """The place of a map of the same size as the image."""
        finest = image.file.levels[0]
        return cls(image.pixel_size, image.georeference, (finest.height / image.height, finest.width / image.width))


@dataclass(frozen=True)
class SegmentedMap:
    """A segmentation, of which every level is at hand.

    Attributes:
        classes: their names.
        labels: one plane.
        probabilities: a plane for each class, if they were asked for. uint8 holds 255 times the probability. Pixels that are
            not valid are NaN, in uint8 zero in every plane.
        counts: how many pixels each class has.
        ignored: the label of pixels that are not valid.
        place: where it lies.
    """

    classes: tuple[str, ...]
    labels: MapLevels
    probabilities: MapLevels | None
    counts: tuple[int, ...]
    ignored: int
    place: Place

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        height, width = self.labels.levels[0].shape[1:]
        return height, width


class MapFiles(NamedTuple):
    """The temporary files of a result. Their disk space is reserved when they are made, so before hours of work."""

    labels: MapLevels
    probabilities: MapLevels | None

    @classmethod
    def reserve(
        cls,
        size: tuple[int, int],
        classes: int,
        probabilities: ProbabilityType | None = None,
        folder: str | Path | None = None,
    ) -> "MapFiles":
        """For an image of this height and width.

        Args:
            size: height and width of the image.
            classes: how many there are.
            probabilities: their type, if they are wanted.
            folder: for the files; None for the system's.
        """
        labels = MapLevels(1, size, label_type(classes)[0].name, majority, folder)
        return cls(labels, None if probabilities is None else MapLevels(classes, size, probabilities, average, folder))


def collect_map(
    found: StreamedSegmentation,
    classes: Sequence[str],
    place: Place | None = None,
    files: MapFiles | None = None,
    *,
    folder: str | Path | None = None,
) -> SegmentedMap:
    """Sweep once over a streamed segmentation.

    Args:
        found: by `stream_segment`.
        classes: the names of the classes.
        place: of the map; None if it is not known.
        files: where to, by `MapFiles.reserve`, with or without probabilities; None for labels alone.
        folder: for files that are not given; None for the system's.
    """
    if len(classes) != found.classes:
        raise ValueError(f"the segmenter has {found.classes} classes, {len(classes)} names were given")
    labels, planes = files or MapFiles.reserve((found.height, found.width), found.classes, folder=folder)
    counts = np.zeros(found.classes, dtype=np.int64)

    def add(start: int, rows: NDArray[Any]) -> None:
        labels.write(start, rows[None])
        counts[:] += np.bincount(rows.ravel(), minlength=found.ignored + 1)[: found.classes]

    if planes is None:
        for start, _, rows in found.labels():
            add(start, rows)
    else:
        _sweep_probabilities(found, planes, add)
        planes.finish()
    labels.finish()
    return SegmentedMap(tuple(classes), labels, planes, tuple(counts.tolist()), found.ignored, place or Place())


def _sweep_probabilities(
    found: StreamedSegmentation, planes: MapLevels, add_labels: Callable[[int, NDArray[Any]], None]
) -> None:
    for start, _, rows in found.probabilities():
        labels = rows.argmax(2).astype(found.dtype)
        labels[np.isnan(rows[:, :, 0])] = found.ignored
        add_labels(start, labels)
        if planes.dtype == np.uint8:
            rows = np.rint(255 * np.nan_to_num(rows))
        planes.write(start, rows.transpose(2, 0, 1).astype(planes.dtype))
