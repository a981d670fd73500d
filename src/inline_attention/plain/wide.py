"""Pictures of more than 8 bits."""

from PIL import Image

WIDE = ("I;16", "I;16L", "I;16B", "I;16N", "I", "F")
"""Modes of pillow's with more than 8 bits, which it would clip instead of scaling."""


def wide_range(image: Image.Image) -> float:
    """What is white in a picture of more than 8 bits: 65,535 for whole numbers, 1 or 255 for real ones."""
    if image.mode != "F":
        return 65535.0
    greatest = image.getextrema()[1]
    return 1.0 if isinstance(greatest, float) and greatest <= 1 else 255.0
