"""A small image of a large one, from the coarsest level of its file that is fine enough."""

import torch
from PIL import Image
from torch import Tensor

from .area_average import average_rows, covered
from .image_file import ImageFile
from .large_image import LargeImage

ROWS_AT_ONCE = 8
LOW, HIGH = 0.02, 0.98
"""Shares of the pixels that become black and white in images of other than 8 bits, which use little of their range."""


def coarsest_level(file: ImageFile, size: tuple[int, int]) -> int:
    """The coarsest level of a file that is not smaller than a size (height, width); else its finest."""
    return max(
        (number for number, level in enumerate(file.levels) if level.height >= size[0] and level.width >= size[1]),
        key=lambda number: file.levels[number].downsample,
        default=0,
    )


def thumbnail_size(size: tuple[int, int], longest: int) -> tuple[int, int]:
    """Height and width of a thumbnail of an image of this size, no side longer than this."""
    scale = min(1.0, longest / max(size))
    return max(1, round(scale * size[0])), max(1, round(scale * size[1]))


def thumbnail(image: LargeImage, size: tuple[int, int]) -> Image.Image:
    """The image averaged to a size (height, width): its first three channels in colour, or its first in grey.

    Pixels without data are white, and do not count in what becomes black and white. A coarse level is enough, see
    `coarsest_level`.
    """
    old, rows, shares = (image.height, image.width), [], []
    for start in range(0, size[0], ROWS_AT_ONCE):
        stop = min(start + ROWS_AT_ONCE, size[0])
        first, last = covered(start, stop, old[0], size[0])
        pixels = image.read(first, last)
        pixels = pixels[:, :, :3] if pixels.shape[2] >= 3 else pixels[:, :, :1]
        data = image.has_data(first, last)[:, :, None].float()
        rows.append(average_rows(pixels, start, stop, old, size))
        shares.append(average_rows(data, start, stop, old, size))
    values, share = torch.cat(rows), torch.cat(shares)
    if image.file.dtype != "uint8" and share.any():
        values = _stretched(values / share.clamp(min=1e-6), share[:, :, 0] > 0) * share
    small = (255 * (values + 1 - share).clamp(0, 1)).round().byte().expand(-1, -1, 3)
    return Image.fromarray(small.contiguous().numpy())


def _stretched(values: Tensor, valid: Tensor) -> Tensor:
    low, high = torch.quantile(values[valid].flatten(), torch.tensor([LOW, HIGH]))
    return ((values - low) / (high - low).clamp(min=1e-6)).clamp(0, 1)
