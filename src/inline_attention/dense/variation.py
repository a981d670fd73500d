"""What the model gets to see of a picture with a map or with objects: varied in training, fixed in evaluation.

All chance comes from torch's global generator.
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

from .coco import Objects
from .overlap import IGNORED

REDRAWS = 10
MOST = 0.75
"""A crop is drawn again while one class fills more of it."""


@dataclass(frozen=True)
class MapTraining:
    """(picture, map) -> pixels (C, *size), normalised, and map (*size): scaled, cropped, flipped, its colours varied.

    Attributes:
        size: (height, width) of what comes out.
        resize: the factor is drawn uniformly from this range; 1 brings the shorter side to that of `size`.
        hflip: how often left and right are exchanged.
        color_jitter: strength; 0 leaves colours alone.
        mean, std: of the three channels, or of the one of grey pictures.
        interpolation: of pixels; maps take the nearest.
    """

    size: tuple[int, int]
    resize: tuple[float, float]
    hflip: float
    color_jitter: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str = "bicubic"

    def __call__(self, picture: Image.Image, classes: NDArray[Any]) -> tuple[Tensor, Tensor]:
        """The picture and its map, varied. Where they do not fill the size: the mean colour, and ignored."""
        side = _uniform(*self.resize) * min(self.size)
        height, width = _scaled(picture, side)
        picture = _resized(picture, height, width, self.interpolation)
        labels = _nearest(torch.tensor(classes), height, width)
        top, left = self._crop(labels)
        labels = labels[top : top + self.size[0], left : left + self.size[1]]
        pixels = F.crop(F.pil_to_tensor(picture), top, left, *labels.shape)
        pixels = _normalised(_colours(pixels, self.color_jitter), self.mean, self.std)
        missing = [0, 0, self.size[1] - labels.shape[1], self.size[0] - labels.shape[0]]  # left, top, right, bottom
        pixels, labels = F.pad(pixels, missing, fill=0.0), F.pad(labels[None], missing, fill=IGNORED)[0]
        if _happens(self.hflip):
            pixels, labels = pixels.flip(-1), labels.flip(-1)
        return pixels, labels.long()

    def _crop(self, labels: Tensor) -> tuple[int, int]:
        """Top and left of a crop that is not all of one class, if chance finds one."""
        spare = [max(whole - part, 0) for whole, part in zip(labels.shape, self.size, strict=True)]
        for _ in range(REDRAWS + 1 if any(spare) else 1):
            top, left = (int(torch.randint(room + 1, ())) for room in spare)
            part = labels[top : top + self.size[0], left : left + self.size[1]]
            counts = part[part != IGNORED].bincount()
            if len(counts) and int(counts.max()) <= MOST * int(counts.sum()):
                break
        return top, left


@dataclass(frozen=True)
class MapEvaluation:
    """(picture, map) -> pixels (C, H', W'), normalised, and map (H, W) at its own size.

    Attributes:
        side: what the shorter side is brought to; None leaves the picture's size.
        longest: what the longer side may not exceed then.
        mean, std: of the three channels, or of the one of grey pictures.
        interpolation: of pixels.
    """

    side: int | None
    longest: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str = "bicubic"

    def __call__(self, picture: Image.Image, classes: NDArray[Any]) -> tuple[Tensor, Tensor]:
        """The whole picture, and its map as it is."""
        if self.side is not None:
            side = min(self.side, self.longest * min(picture.size) / max(picture.size))
            picture = _resized(picture, *_scaled(picture, side), self.interpolation)
        labels = torch.tensor(classes, dtype=torch.int64)
        return _normalised(F.pil_to_tensor(picture), self.mean, self.std), labels


@dataclass(frozen=True)
class ObjectTraining:
    """(picture, objects) -> pixels (C, H, W) in 0..1, and the objects: flipped, colours varied. A detector scales by itself.

    Attributes:
        hflip: how often left and right are exchanged.
        color_jitter: strength; 0 leaves colours alone.
    """

    hflip: float
    color_jitter: float

    def __call__(self, picture: Image.Image, objects: Objects) -> tuple[Tensor, dict[str, Tensor]]:
        """Target: "boxes" (n, 4) as x1, y1, x2, y2, "labels" (n,), "masks" (n, H, W) of uint8, "image_id" (); no crowds."""
        single = ~objects.crowd
        boxes, masks = torch.from_numpy(objects.boxes[single]), torch.from_numpy(objects.masks(np.flatnonzero(single)))
        pixels = _unit(_colours(F.pil_to_tensor(picture), self.color_jitter))
        if _happens(self.hflip):
            pixels, masks = pixels.flip(-1), masks.flip(-1)
            left, top, right, bottom = boxes.unbind(1)
            boxes = torch.stack([objects.width - right, top, objects.width - left, bottom], 1)
        labels, image_id = torch.from_numpy(objects.labels[single]), torch.tensor(objects.image_id)
        return pixels, {"boxes": boxes, "labels": labels, "masks": masks, "image_id": image_id}


@dataclass(frozen=True)
class ObjectEvaluation:
    """(picture, objects) -> pixels (C, H, W) in 0..1, and "image_id" ()."""

    def __call__(self, picture: Image.Image, objects: Objects) -> tuple[Tensor, dict[str, Tensor]]:
        """The picture as it is, and its number."""
        return _unit(F.pil_to_tensor(picture)), {"image_id": torch.tensor(objects.image_id)}


def _uniform(low: float, high: float) -> float:
    return low + (high - low) * float(torch.rand(()))


def _happens(share: float) -> bool:
    return float(torch.rand(())) < share


def _scaled(picture: Image.Image, side: float) -> tuple[int, int]:
    """Height and width with this shorter side, aspect kept."""
    scale = side / min(picture.size)
    return max(1, round(picture.height * scale)), max(1, round(picture.width * scale))


def _resized(picture: Image.Image, height: int, width: int, interpolation: str) -> Image.Image:
    resized: Image.Image = F.resize(picture, [height, width], InterpolationMode(interpolation), antialias=True)
    return resized


def _nearest(labels: Tensor, height: int, width: int) -> Tensor:
    """(H, W) -> (height, width): what is at the middle of each pixel."""
    rows = ((torch.arange(height, dtype=torch.float64) + 0.5) * (labels.shape[0] / height)).long()
    columns = ((torch.arange(width, dtype=torch.float64) + 0.5) * (labels.shape[1] / width)).long()
    return labels[rows[:, None], columns]


def _colours(pixels: Tensor, strength: float) -> Tensor:
    """(C, H, W) of uint8, in other colours; those of grey pictures have no saturation or hue."""
    if not strength:
        return pixels
    varied: Tensor = v2.ColorJitter(strength, strength, strength, min(strength / 5, 0.5))(pixels)
    return varied


def _unit(pixels: Tensor) -> Tensor:
    """Uint8 -> 0..1."""
    return F.to_dtype(pixels, torch.float32, scale=True)


def _normalised(pixels: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    return F.normalize(_unit(pixels), list(mean), list(std))
