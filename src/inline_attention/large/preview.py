"""Draws a small image of a result: the image beside the same in the colours of its classes, with a legend below both."""

import numpy as np
from PIL import Image

from ..lite.captions import CaptionStyle
from ..lite.label_drawing import above, colour_labels, draw_shares
from .segmented_map import SegmentedMap

LONGEST = 1024
"""Side of the thumbnail that a preview is drawn on, at most."""
WIDE = 1.6
"""Images that are wider than this times their height are put above one another instead of side by side."""
GAP = 8


def draw_preview(thumbnail: Image.Image, found: SegmentedMap) -> Image.Image:
    """The preview; the shares in its legend are those of the valid pixels of the whole map.

    Args:
        thumbnail: of the image, in any size.
        found: the segmentation.
    """
    labels = _labels_of_size(found, (thumbnail.height, thumbnail.width))
    coloured = colour_labels(thumbnail, labels, len(found.classes), ignored=found.ignored)
    plain = thumbnail.convert("RGB").resize(coloured.size, Image.Resampling.BICUBIC)
    if coloured.width > WIDE * coloured.height:
        both = Image.new("RGB", (coloured.width, 2 * coloured.height + GAP), "white")
        both.paste(coloured, (0, coloured.height + GAP))
    else:
        both = Image.new("RGB", (2 * coloured.width + GAP, coloured.height), "white")
        both.paste(coloured, (coloured.width + GAP, 0))
    both.paste(plain, (0, 0))
    valid = max(1, sum(found.counts))
    shares = {number: count / valid for number, count in enumerate(found.counts) if count}
    return above(both, draw_shares(shares, found.classes, both.width, CaptionStyle.of(coloured)))


def _labels_of_size(found: SegmentedMap, size: tuple[int, int]) -> "np.ndarray[tuple[int, ...], np.dtype[np.integer]]":
    """The labels at the centres of the thumbnail's pixels, of the coarsest level that is not coarser than it."""
    fitting = [
        level[0] for level in found.labels.levels if all(have >= want for have, want in zip(level[0].shape, size, strict=True))
    ]
    level = fitting[-1] if fitting else found.labels.levels[0][0]
    rows, columns = ((np.arange(want) + 0.5) * have // want for have, want in zip(level.shape, size, strict=True))
    return np.asarray(level[rows.astype(int)[:, None], columns.astype(int)])
