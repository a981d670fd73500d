"""Transforms of images with a label map (segmentation) or with objects (detection): random in training, fixed in evaluation.

All random numbers come from torch's global generator.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as F
from torchvision.tv_tensors import BoundingBoxFormat

from ..lite.decode import check_resize
from .coco import Objects
from .label_maps import IGNORED

CROP_ATTEMPTS = 11
MAX_CLASS_SHARE = 0.75
"""A crop is sampled again while one class fills more of it."""


@dataclass(frozen=True)
class SegmentationTrainTransform:
    """(image, label map) -> pixels (C, *size), normalised, and label map (*size): scaled, cropped, flipped, colour-jittered.

    Attributes:
        size: (height, width) of the output.
        resize: range of the scale, sampled uniformly; 1 brings the shorter side to that of `size`.
        hflip: probability of a horizontal flip.
        color_jitter: strength; 0 for none.
        mean, std: of the three channels, or of the one of grey images.
        interpolation: of pixels; label maps take the nearest.
    """

    size: tuple[int, int]
    resize: tuple[float, float]
    hflip: float
    color_jitter: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str = "bicubic"

    def __call__(self, image: Image.Image, classes: NDArray[Any]) -> tuple[Tensor, Tensor]:
        """Augment an image and its label map. What does not fill `size` is the mean colour, and ignored."""
        side = _uniform(*self.resize) * min(self.size)
        height, width = _scaled_size(image, side)
        image = _resize(image, height, width, self.interpolation)
        labels = _nearest(torch.tensor(classes), height, width)
        top, left = self._crop(labels)
        labels = labels[top : top + self.size[0], left : left + self.size[1]]
        pixels = F.crop(F.pil_to_tensor(image), top, left, *labels.shape)
        pixels = _normalise(_jitter_colours(pixels, self.color_jitter), self.mean, self.std)
        missing = [0, 0, self.size[1] - labels.shape[1], self.size[0] - labels.shape[0]]  # left, top, right, bottom
        pixels, labels = F.pad(pixels, missing, fill=0.0), F.pad(labels[None], missing, fill=IGNORED)[0]
        if _happens(self.hflip):
            pixels, labels = F.horizontal_flip_image(pixels), F.horizontal_flip_mask(labels)
        return pixels, labels.long()

    def _crop(self, labels: Tensor) -> tuple[int, int]:
        """Top and left of a random crop; crops that are nearly all of one class are sampled again, up to ten times."""
        spare = [max(whole - part, 0) for whole, part in zip(labels.shape, self.size, strict=True)]
        for _ in range(CROP_ATTEMPTS if any(spare) else 1):
            top, left = (int(torch.randint(room + 1, ())) for room in spare)
            part = labels[top : top + self.size[0], left : left + self.size[1]]
            counts = part[part != IGNORED].bincount()
            if len(counts) and int(counts.max()) <= MAX_CLASS_SHARE * int(counts.sum()):
                break
        return top, left


@dataclass(frozen=True)
class SegmentationEvalTransform:
    """(image, label map) -> pixels (C, H', W'), normalised, and label map (H, W) at its own size.

    Attributes:
        side: length of the shorter side after resizing; None keeps the image's size.
        longest: the most that the longer side may be after resizing.
        mean, std: of the three channels, or of the one of grey images.
        interpolation: of pixels.
    """

    side: int | None
    longest: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str = "bicubic"

    def __call__(self, image: Image.Image, classes: NDArray[Any]) -> tuple[Tensor, Tensor]:
        """The whole image, resized, and its label map unchanged."""
        if self.side is not None:
            side = min(self.side, self.longest * min(image.size) / max(image.size))
            image = _resize(image, *_scaled_size(image, side), self.interpolation)
        labels = torch.tensor(classes, dtype=torch.int64)
        return _normalise(F.pil_to_tensor(image), self.mean, self.std), labels


@dataclass(frozen=True)
class DetectionTrainTransform:
    """(image, objects) -> pixels (C, H, W) in 0..1, and targets: flipped, colour-jittered. The detector itself resizes.

    Attributes:
        hflip: probability of a horizontal flip.
        color_jitter: strength; 0 for none.
        masks: give the objects' masks, too.
    """

    hflip: float
    color_jitter: float
    masks: bool = True

    def __call__(self, image: Image.Image, objects: Objects) -> tuple[Tensor, dict[str, Tensor]]:
        """Target: "boxes" (n, 4) as x1, y1, x2, y2, "labels" (n,), "masks" (n, H, W) of uint8, "image_id" (); no crowds."""
        single = ~objects.crowd
        boxes = torch.from_numpy(objects.boxes[single])
        shapes = {"masks": torch.from_numpy(objects.masks(np.flatnonzero(single)))} if self.masks else {}
        pixels = _to_unit_range(_jitter_colours(F.pil_to_tensor(image), self.color_jitter))
        if _happens(self.hflip):
            pixels = F.horizontal_flip_image(pixels)
            shapes = {name: F.horizontal_flip_mask(masks) for name, masks in shapes.items()}
            boxes = F.horizontal_flip_bounding_boxes(boxes, BoundingBoxFormat.XYXY, (objects.height, objects.width))
        labels, image_id = torch.from_numpy(objects.labels[single]), torch.tensor(objects.image_id)
        return pixels, {"boxes": boxes, "labels": labels, **shapes, "image_id": image_id}


@dataclass(frozen=True)
class DetectionEvalTransform:
    """(image, objects) -> pixels (C, H, W) in 0..1, and "image_id" ()."""

    def __call__(self, image: Image.Image, objects: Objects) -> tuple[Tensor, dict[str, Tensor]]:
        """The image unchanged, and its id."""
        return _to_unit_range(F.pil_to_tensor(image)), {"image_id": torch.tensor(objects.image_id)}


def _uniform(low: float, high: float) -> float:
    return low + (high - low) * float(torch.rand(()))


def _happens(probability: float) -> bool:
    return float(torch.rand(())) < probability


def _scaled_size(image: Image.Image, side: float) -> tuple[int, int]:
    """Height and width with this shorter side and the same aspect."""
    scale = side / min(image.size)
    height, width = max(1, round(image.height * scale)), max(1, round(image.width * scale))
    check_resize(image, width, height)
    return height, width


def _resize(image: Image.Image, height: int, width: int, interpolation: str) -> Image.Image:
    resized: Image.Image = F.resize(image, [height, width], InterpolationMode(interpolation), antialias=True)
    return resized


def _nearest(labels: Tensor, height: int, width: int) -> Tensor:
    """(H, W) -> (height, width): the label at the middle of each pixel, as pillow's nearest does for images."""
    rows = ((torch.arange(height, dtype=torch.float64) + 0.5) * (labels.shape[0] / height)).long()
    columns = ((torch.arange(width, dtype=torch.float64) + 0.5) * (labels.shape[1] / width)).long()
    return labels[rows[:, None], columns]


def _jitter_colours(pixels: Tensor, strength: float) -> Tensor:
    """(C, H, W) of uint8 with other brightness, contrast, saturation and hue; grey images have no saturation or hue."""
    if not strength:
        return pixels
    varied: Tensor = v2.ColorJitter(strength, strength, strength, min(strength / 5, 0.5))(pixels)
    return varied


def _to_unit_range(pixels: Tensor) -> Tensor:
    """Uint8 -> 0..1."""
    return F.to_dtype(pixels, torch.float32, scale=True)


def _normalise(pixels: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    return F.normalize(_to_unit_range(pixels), list(mean), list(std))
