"""The evaluation transforms of classifiers and segmenters in pillow and numpy: the same numbers as with torch, without it."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import floor
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .decode import check_resize, per_channel

CROP_MODES = ("squash", "center")
INTERPOLATIONS = {method.name.lower(): method for method in Image.Resampling}
RENAMED_TRANSFORM_FIELDS = {"view": "crop_mode"}
"""Names of fields in files of the first version, and what they are called now."""


def upgrade_transform(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a transform by the names of this version, whichever version wrote them."""
    return {RENAMED_TRANSFORM_FIELDS.get(name, name): value for name, value in fields.items()}


@dataclass(frozen=True)
class NumpyTransform:
    """Resize, crop the centre, normalise. H, W: the model's input size; C: channels, 1 or 3."""

    size: tuple[int, int]
    """(H, W)."""
    channels: int
    crop_mode: str
    """'squash' resizes both sides to floor(side / crop), 'center' the shorter one."""
    crop: float
    """The share of the resized sides that is kept."""
    interpolation: str
    mean: tuple[float, ...]
    """Subtracted, for pixels in 0..1; see `per_channel`."""
    std: tuple[float, ...]
    """Divides after that."""

    def __call__(self, image: Image.Image) -> NDArray[np.float32]:
        """An image in RGB or grey -> (C, H, W)."""
        resized = self._resize(image)
        top, left = (round((side - kept) / 2) for side, kept in zip((resized.height, resized.width), self.size, strict=True))
        return _normalise(resized.crop((left, top, left + self.size[1], top + self.size[0])), self.mean, self.std)

    def _resize(self, image: Image.Image) -> Image.Image:
        to = resized_size(image, self.size, self.crop, self.crop_mode)
        check_resize(image, *to)
        if self.crop_mode == "center" and self.size[0] != self.size[1]:
            # timm resizes to rectangles bilinearly, whatever is asked for
            return image.resize(to, Image.Resampling.BILINEAR)
        return image.resize(to, INTERPOLATIONS[self.interpolation])


@dataclass(frozen=True)
class SegmentTransform:
    """Resize by the shorter side, normalise. C: channels, 1 or 3."""

    side: int
    """The shorter side after resizing; 0 keeps the image's size."""
    longest: int
    """The most that the longer side may be after resizing."""
    channels: int
    interpolation: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    windows: tuple[int, ...] | None = None
    """Height and width of the windows that the model sees, and the steps down and to the right; None for the whole image."""

    def __call__(self, image: Image.Image) -> NDArray[np.float32]:
        """An image in RGB or grey -> (C, H, W)."""
        if self.side:
            side = min(self.side, self.longest * min(image.size) / max(image.size))
            scale = side / min(image.size)
            width, height = (max(1, round(length * scale)) for length in image.size)
            check_resize(image, width, height)
            image = image.resize((width, height), INTERPOLATIONS[self.interpolation])
        return _normalise(image, self.mean, self.std)


def _normalise(image: Image.Image, mean: tuple[float, ...], std: tuple[float, ...]) -> NDArray[np.float32]:
    pixels = np.asarray(image, dtype=np.float32).reshape(image.height, image.width, -1).transpose(2, 0, 1)
    shift, scale = (np.array(per_channel(values, len(pixels)), dtype=np.float32).reshape(-1, 1, 1) for values in (mean, std))
    return np.ascontiguousarray((pixels / np.float32(255) - shift) / scale)


def resized_size(image: Image.Image, size: tuple[int, int], crop: float, crop_mode: str) -> tuple[int, int]:
    """(width, height) that an image is resized to before the centre, `size` (H, W), is cut out of it: as timm computes it."""
    height, width = (floor(side / crop) for side in size)
    if crop_mode == "squash":
        return width, height
    if height == width:
        short, long = sorted(image.size)
        other = int(height * long / short)
        return (height, other) if image.width <= image.height else (other, height)
    ratio = min(image.height / height, image.width / width)
    return round(image.width / ratio), round(image.height / ratio)


TRANSFORM_FIELDS = tuple(field.name for field in fields(NumpyTransform))
"""The fields that describe an evaluation transform in files of weights, hub folders and descriptions of exported files."""
