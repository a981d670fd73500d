"""Masks of image files: the tissue of a slide, found by its colour; or another file, of any size, stretched over the image."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import ImageFilter
from torch import Tensor

from .image_file import ALPHA, COLOURS, PREMULTIPLIED, ImageFile, listed_channels
from .large_image import LargeImage, holds_data
from .open_file import open_image_file
from .row_blocks import RowBlocks
from .thumbnail import coarsest_level, thumbnail

TISSUE_SIDE = 2048
"""The longer side of the thumbnail on which tissue is found."""
SMOOTHING = 2
"""The saturation is averaged over so many pixels to each side: specks are no tissue."""
SHAPE_TOLERANCE = 0.02
"""By how much the shape of a mask may differ from the image's: levels of a pyramid are rounded."""


class StretchedMask:
    """A mask that is stretched over an image: each pixel has the value of the nearest one in the mask.

    Args:
        read: (start, stop) -> (stop - start, w) bool: rows of the mask.
        size: (h, w) of the mask.
        image_size: (H, W) of the image.
        in_memory: whether rows can be read in any order.
    """

    def __init__(
        self,
        read: Callable[[int, int], NDArray[Any]],
        size: tuple[int, int],
        image_size: tuple[int, int],
        *,
        in_memory: bool = False,
    ) -> None:
        if abs(size[0] * image_size[1] / (size[1] * image_size[0]) - 1) > SHAPE_TOLERANCE + 1 / min(*size, *image_size):
            raise ValueError(
                f"the mask, {size[0]:,} x {size[1]:,}, has not the shape of the image, {image_size[0]:,} x {image_size[1]:,}"
            )
        self._read, self._size, self._height, self._in_memory = read, size, image_size[0], in_memory
        self._columns = _nearest(np.arange(image_size[1]), size[1], image_size[1])

    def rows(self, start: int, stop: int) -> Tensor:
        """(stop - start, W) bool: these rows of the image."""
        rows, read = self._nearest_rows(start, stop)
        return torch.from_numpy(read[rows - rows[0]][:, self._columns])

    def may_have(self, start: int, stop: int) -> bool:
        """Whether a pixel of these rows may count, as far as is known without reading a file."""
        return not self._in_memory or bool(self._nearest_rows(start, stop)[1].any())

    def _nearest_rows(self, start: int, stop: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Which rows of the mask are nearest to these of the image, and the mask from the first to the last of them."""
        rows = _nearest(np.arange(start, stop), self._size[0], self._height)
        return rows, self._read(int(rows[0]), int(rows[-1]) + 1)


def _nearest(places: NDArray[Any], old: int, new: int) -> NDArray[Any]:
    """Which of `old` pixels lies at the centre of these of `new`."""
    return (2 * places + 1) * old // (2 * new)


def tissue_mask(path: str | Path) -> NDArray[np.bool_]:
    """(h, w): where the thumbnail of a slide has tissue: where it is more coloured than Otsu's threshold, and next to it."""
    file = open_image_file(path)
    try:
        colours = _colours(file)
        height, width = file.levels[0].height, file.levels[0].width
        scale = min(1.0, TISSUE_SIDE / max(height, width))
        size = max(1, round(height * scale)), max(1, round(width * scale))
        image = LargeImage(file, level=coarsest_level(file, size), channels=colours, nodata=False, name=str(path))
    except BaseException:
        file.close()
        raise
    try:
        small = thumbnail(image, size)
    finally:
        image.close()
    saturation = np.asarray(small.convert("HSV").getchannel("S").filter(ImageFilter.BoxBlur(SMOOTHING)))
    coloured = torch.from_numpy((saturation > otsu(saturation)).astype(np.float32))
    return F.max_pool2d(coloured[None], 3, 1, 1)[0].numpy() > 0


def otsu(values: NDArray[np.uint8]) -> int:
    """The threshold that separates two kinds of values best: the variance between the kinds is greatest. Otsu, 1979."""
    counts = np.bincount(values.ravel(), minlength=256).astype(np.float64)
    below, sums = counts.cumsum(), (counts * np.arange(256)).cumsum()
    above = below[-1] - below
    with np.errstate(divide="ignore", invalid="ignore"):
        between = below * above * (sums / below - (sums[-1] - sums) / above) ** 2
    return int(np.nan_to_num(between).argmax()) if (counts > 0).sum() > 1 else int(values.flat[0])


def mask_from_file(path: str | Path, image_size: tuple[int, int]) -> StretchedMask:
    """The mask in another image file: what is not zero in it, nor its value for no data, is valid."""
    file = open_image_file(path)
    palette: NDArray[Any] | None = getattr(file, "palette", None)
    if palette is not None and palette[0].any():
        file.close()
        raise ValueError(f"the mask {path} has a palette in which 0 is not black, so all of it would count: write it without")
    channels = [number for number, name in enumerate(file.channels) if name not in (ALPHA, PREMULTIPLIED)]
    blocks = RowBlocks(file, 0, channels, name=str(path))
    size = file.levels[0].height, file.levels[0].width

    def read(start: int, stop: int) -> NDArray[Any]:
        values = blocks.read(start, stop)
        found: NDArray[Any] = (values != 0).any(2)
        return found if file.nodata is None else found & holds_data(values, file.nodata).numpy()

    return StretchedMask(read, size, image_size)


def _colours(file: ImageFile) -> list[int]:
    """The numbers of the channels red, green and blue."""
    if set(COLOURS) <= set(file.channels):
        return [file.channels.index(name) for name in COLOURS]
    if len(file.channels) == 3 and file.dtype == np.uint8:
        return [0, 1, 2]
    raise ValueError(
        f"tissue is found by its colour, and the image has no red, green and blue: {listed_channels(file.channels)}"
    )
