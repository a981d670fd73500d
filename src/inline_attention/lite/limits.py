"""The most pixels that one image may have, checked from headers and settings before anything is allocated."""

import os

VARIABLE = "INLINE_MAX_PIXELS"
"""The environment variable that sets the limit of every command and function."""
MAX_PIXELS = 2**27
"""Of an image that is decoded and resized: 134 million, which take 1.1 GB."""
MAX_INPUT_PIXELS = 2**24
"""Of a model's input, in a recipe or a file of weights: 4,096 x 4,096."""
MAX_STREAMED_PIXELS = 2**28
"""Of an image that pillow decodes for `stream`: 268 million, 1.1 GB; and of sizes that `count` computes."""


NARROWEST = 8
"""Pixels that a row counts as at least: pillow keeps a pointer for each row."""
TINY, HUGE = 1e-30, 1e30
"""Between these, numbers and their quotients are finite in float32."""


def max_pixels(usual: int = MAX_PIXELS) -> int:
    """The limit: that of the environment variable, or the usual one."""
    text = os.environ.get(VARIABLE, "").strip().replace("_", "").replace(",", "")
    if not text:
        return usual
    if not (text.isascii() and text.isdecimal() and int(text[:20]) > 0 and len(text) <= 20):
        raise ValueError(f"{VARIABLE} must be a positive whole number, got {os.environ[VARIABLE]!r}")
    return int(text)


def excess(width: int, height: int, limit: float | None = None) -> str | None:
    """What to say of a size (in pixels) that is above the limit; None for one that is not."""
    limit = max_pixels() if limit is None else limit
    if max(width, NARROWEST) * height <= limit:
        return None
    return f"{width:,} x {height:,} pixels (width x height) are more than {limit:,}: {VARIABLE} sets the limit"


def input_fault(size: tuple[int, int], crop: float) -> str | None:
    """What is wrong with a model's input size (H, W), that is cut out of an image of size / crop; None if nothing is."""
    height, width = size
    if found := excess(width, height, max_pixels(MAX_INPUT_PIXELS)):
        return f"data.size: {found}"
    resized = (int(min(side / crop, HUGE)) for side in (width, height))
    return f"data.crop {crop:g} of data.size {height} {width} is too small" if excess(*resized) else None
