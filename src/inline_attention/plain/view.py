"""What a classifier is shown of a picture, by pillow and numpy alone: the very numbers of timm's transforms for evaluation."""

from dataclasses import dataclass
from math import floor

import numpy as np
from numpy.typing import NDArray
from PIL import Image

VIEWS = ("squash", "center")
INTERPOLATIONS = {method.name.lower(): method for method in Image.Resampling}


@dataclass(frozen=True)
class PlainView:
    """Resize, crop the middle, normalise. H, W: the size that the model takes; C: channels, 1 or 3."""

    size: tuple[int, int]
    """(H, W)."""
    channels: int
    view: str
    """'squash' resizes both sides to floor(side / crop), 'center' the shorter one."""
    crop: float
    """The share of the resized sides that is kept."""
    interpolation: str
    mean: tuple[float, ...]
    """Of each channel, in 0..1; a grey picture takes the mean of all."""
    std: tuple[float, ...]

    def __call__(self, picture: Image.Image) -> NDArray[np.float32]:
        """A picture in RGB or grey -> (C, H, W)."""
        resized = self._resized(picture)
        top, left = (round((side - kept) / 2) for side, kept in zip((resized.height, resized.width), self.size, strict=True))
        middle = resized.crop((left, top, left + self.size[1], top + self.size[0]))
        pixels = np.asarray(middle, dtype=np.float32).reshape(*self.size, self.channels).transpose(2, 0, 1)
        mean, std = (self._by_channel(part) for part in (self.mean, self.std))
        return np.ascontiguousarray((pixels / np.float32(255) - mean) / std)

    def _resized(self, picture: Image.Image) -> Image.Image:
        height, width = (floor(side / self.crop) for side in self.size)
        method = INTERPOLATIONS[self.interpolation]
        if self.view == "squash":
            return picture.resize((width, height), method)
        if height == width:
            short, long = sorted(picture.size)
            other = int(height * long / short)
            return picture.resize((height, other) if picture.width <= picture.height else (other, height), method)
        ratio = min(picture.height / height, picture.width / width)
        to = (round(picture.width / ratio), round(picture.height / ratio))
        return picture.resize(to, Image.Resampling.BILINEAR)  # timm's choice for rectangles, whatever is asked for

    def _by_channel(self, values: tuple[float, ...]) -> NDArray[np.float32]:
        """(C, 1, 1)."""
        kept = values if len(values) == self.channels else (sum(values) / len(values),)
        return np.array(kept, dtype=np.float32).reshape(-1, 1, 1)
