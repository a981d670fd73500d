"""A thumbnail of a large image that options choose, from the coarsest level of its file that is fine enough."""

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image

    from .large_options import LargeOptions


def open_thumbnail(options: "LargeOptions", path: str, longest: int) -> "Image.Image":
    """The whole image, whatever the mask, with its longer side at most this long."""
    from ..large.thumbnail import coarsest_level, thumbnail, thumbnail_size

    unmasked = replace(options, mask=None)
    image = unmasked.open(path)
    try:
        size = thumbnail_size((image.height, image.width), longest)
        level = coarsest_level(image.file, size)
    finally:
        image.close()
    coarse = replace(unmasked, level=level, mpp=None).open(path)
    try:
        return thumbnail(coarse, size)
    finally:
        coarse.close()
