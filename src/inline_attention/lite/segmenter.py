"""A segmenter in an exported file: the class of every pixel of an image, at the image's own size."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .exported import ExportedModel
from .finite import check_images
from .transform import SegmentTransform

Logits = NDArray[np.float32]


@dataclass(frozen=True)
class ExportedSegmenter(ExportedModel):
    """An exported segmenter. Open it by `ExportedSegmenter.open_with(file, ONNX)`, or OPENVINO."""

    def labels(self, image: Image.Image, name: str = "the image") -> NDArray[np.int64]:
        """An image in RGB or grey -> its classes, (H, W). Outputs that are not finite raise, with the image's name."""
        transform = self.description.transform
        assert isinstance(transform, SegmentTransform)
        pixels = transform(image)[None]
        found = self.logits(pixels) if transform.windows is None else slide(self.logits, pixels, transform.windows)
        expected = (1, len(self.description.classes), *pixels.shape[2:])
        if found.shape != expected:
            raise ValueError(f"{self.file} gave {found.shape} for an image of {expected[2]} x {expected[3]}")
        check_images([bool(np.isfinite(found).all())], [name], str(self.file), f"{self.description.precision} is not enough")
        best, labels = (
            np.full((image.height, image.width), -np.inf, np.float32),
            np.zeros((image.height, image.width), np.int64),
        )
        for number, logits in enumerate(found[0]):  # one class at a time: memory does not grow with their number
            resized = resize_bilinear(logits, image.height, image.width)
            labels[resized > best] = number
            np.maximum(best, resized, out=best)
        return labels


def slide(model: Callable[[Logits], Logits], pixels: Logits, windows: tuple[int, ...]) -> Logits:
    """The mean of the logits of overlapping windows, (1, C, H, W) -> (1, classes, H, W).

    `windows` are height, width, and steps down and to the right. The last of a row or column is moved back to lie inside.
    """
    total, covered = None, np.zeros(pixels.shape[2:], np.float32)
    for rows in window_slices(pixels.shape[2], windows[0], windows[2]):
        for columns in window_slices(pixels.shape[3], windows[1], windows[3]):
            logits = model(pixels[..., rows, columns])
            total = np.zeros((*logits.shape[:2], *pixels.shape[2:]), np.float32) if total is None else total
            total[..., rows, columns] += logits
            covered[rows, columns] += 1
    assert total is not None
    mean: Logits = (total / covered).astype(np.float32)
    return mean


def window_slices(length: int, crop: int, stride: int) -> list[slice]:
    """The windows along one side; as long as the side where that is shorter."""
    crop = min(crop, length)
    last = length - crop
    return [slice(start, start + crop) for start in [*range(0, last, stride), last]]


def resize_bilinear(logits: Logits, height: int, width: int) -> Logits:
    """(h, w) -> (height, width), as torch's bilinear interpolation: pixels are areas, and nothing is averaged."""
    (top, below, down), (left, right, across) = (_neighbours(n, m) for n, m in zip(logits.shape, (height, width), strict=True))
    rows = logits[top] * (1 - down)[:, None] + logits[below] * down[:, None]
    resized: Logits = (rows[:, left] * (1 - across) + rows[:, right] * across).astype(np.float32)
    return resized


def _neighbours(n: int, m: int) -> tuple[NDArray[np.int64], NDArray[np.int64], Logits]:
    """Of each of m outputs: the two inputs of n that it lies between, and the share of the second."""
    places = ((np.arange(m) + 0.5) * (n / m) - 0.5).clip(0)
    first = np.minimum(places.astype(np.int64), n - 1)
    return first, np.minimum(first + 1, n - 1), (places - first).astype(np.float32)
