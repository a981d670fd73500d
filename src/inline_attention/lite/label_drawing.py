"""Draws a class for every pixel over an image, with a legend: in pillow and numpy."""

from collections.abc import Mapping, Sequence
from functools import cache
from math import ceil

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from .captions import CaptionStyle, Colour, draw_legend

IGNORED = 255
"""Of a label map: pixels of this label count neither in the loss nor in the scores, and have no colour."""
ENLARGE_BELOW = 480
"""Images whose shorter side is below it are enlarged, so that there is room for text."""
ENLARGE_UP_TO = 1600
"""Longest side of an enlarged image."""
FIRST_COLOUR = (235, 78, 60)
"""Red, green, blue of class 0."""
RGB_TO_LMS = (
    (0.4122214708, 0.5363325363, 0.0514459929),
    (0.2119034982, 0.6806995451, 0.1073969566),
    (0.0883024619, 0.2817188376, 0.6299787005),
)
LMS_TO_OKLAB = (
    (0.2104542553, 0.7936177850, -0.0040720468),
    (1.9779984951, -2.4285922050, 0.4505937099),
    (0.0259040371, 0.7827717662, -0.8086757660),
)


def draw_labels(image: Image.Image, label_map: ArrayLike, classes: Sequence[str], opacity: float = 0.55) -> Image.Image:
    """Draw every pixel in the colour of its class, solid at the borders, with a legend below the image.

    Args:
        image: H x W pixels; below 480 it is enlarged by a whole factor.
        label_map: (H, W), class numbers; where it is 255, the image is not changed.
        classes: class names.
        opacity: of the colours.

    Returns:
        The image with a strip below it that lists each class that occurs, with its share of the image.
    """
    labels = np.asarray(label_map).astype(np.int64)
    numbers, counts = np.unique(labels, return_counts=True)
    shares = {number: count / labels.size for number, count in zip(numbers.tolist(), counts.tolist(), strict=True)}
    shares.pop(IGNORED, None)
    drawn = colour_labels(image, labels, len(classes), opacity)
    return above(drawn, draw_shares(shares, classes, drawn.width, CaptionStyle.of(drawn)))


def colour_labels(
    image: Image.Image, label_map: ArrayLike, classes: int, opacity: float = 0.55, *, ignored: int = IGNORED
) -> Image.Image:
    """The image of `draw_labels` without the legend; where the label map is `ignored`, the image is not changed."""
    factor = enlargement(image)
    labels = np.asarray(label_map).astype(np.int64)
    check_size("label map is", labels.shape, image)
    inside = labels != ignored
    if unknown := sorted({*np.unique(labels[inside]).tolist()} - {*range(classes)}):
        raise ValueError(f"the label map has a class {unknown[0]}, there are names for 0 to {classes - 1}")
    drawn = enlarge(image, factor)
    line = CaptionStyle.of(drawn).line
    labels, inside = (part.repeat(factor, 0).repeat(factor, 1) for part in (labels, inside))
    palette = np.array([class_colour(number) for number in range(classes)], dtype=np.float32).reshape(-1, 3)
    before = np.asarray(drawn, dtype=np.float32)
    weight = (inside * np.where(borders(labels, line), np.float32(1), np.float32(opacity)))[..., None]
    mixed = before + weight * (palette[np.where(inside, labels, 0)] - before) if len(palette) else before
    return Image.fromarray(mixed.round().astype(np.uint8))


def draw_shares(shares: Mapping[int, float], classes: Sequence[str], width: int, style: CaptionStyle) -> Image.Image:
    """A legend of this width: the classes that occur, the largest first, with their shares."""
    entries = [
        (f"{classes[number]} {_percent(share)}", class_colour(number))
        for number, share in sorted(shares.items(), key=lambda entry: -entry[1])
    ]
    return draw_legend(entries, width, style)


def above(upper: Image.Image, lower: Image.Image) -> Image.Image:
    """One image above another of the same width."""
    whole = Image.new("RGB", (upper.width, upper.height + lower.height))
    whole.paste(upper, (0, 0))
    whole.paste(lower, (0, upper.height))
    return whole


def enlargement(image: Image.Image) -> int:
    """The whole factor by which an image is enlarged before drawing: 1 from 480 pixels on, or beyond 1,600 a side."""
    return max(1, min(ceil(ENLARGE_BELOW / min(image.size)), ENLARGE_UP_TO // max(image.size)))


def class_colour(number: int) -> Colour:
    """Red, green and blue of a class: always the same, and as far from those of lower numbers as possible."""
    red, green, blue = _palette()[number % len(_palette())]
    return red, green, blue


@cache
def _palette() -> list[list[int]]:
    """Colours neither dark, pale nor grey, each the farthest from all before it in OKLab, where equal steps look equal."""
    shades = np.linspace(0, 255, 14).round()
    colours = np.stack(np.meshgrid(shades, shades, shades, indexing="ij"), -1).reshape(-1, 3)
    linear = np.where(colours > 10, ((colours / 255 + 0.055) / 1.055) ** 2.4, colours / 255 / 12.92)
    lab = np.cbrt(linear @ np.array(RGB_TO_LMS).T) @ np.array(LMS_TO_OKLAB).T
    chroma = np.hypot(lab[:, 1], lab[:, 2])
    good = (lab[:, 0] > 0.5) & (lab[:, 0] < 0.86) & (chroma > 0.09) & (chroma < 0.24)
    colours, lab = colours[good].astype(int), lab[good]
    order = [int(np.abs(colours - FIRST_COLOUR).sum(1).argmin())]
    distance = np.full(len(lab), np.inf)
    while len(order) < len(lab):
        distance = np.minimum(distance, ((lab - lab[order[-1]]) ** 2).sum(1))
        order.append(int(distance.argmax()))
    palette: list[list[int]] = colours[order].tolist()
    return palette


def check_size(what: str, size: Sequence[int], image: Image.Image) -> None:
    """Raise unless a map (H, W) has the image's size."""
    if tuple(size) != (image.height, image.width):
        found = " x ".join(map(str, size))
        raise ValueError(f"the {what} of {found} pixels and the image is of {image.height} x {image.width}: sizes must agree")


def enlarge(image: Image.Image, factor: int) -> Image.Image:
    """In RGB, by a whole factor."""
    return image.convert("RGB").resize((image.width * factor, image.height * factor), Image.Resampling.BICUBIC)


def borders(values: NDArray[np.generic], line: int) -> NDArray[np.bool_]:
    """Where in (H, W) there is another value at most `line` rows and columns away."""
    found = np.zeros(values.shape, dtype=bool)
    highest = lowest = values
    for axis in (0, 1):
        highest, lowest = (_extreme(of, values, line, axis) for of, values in ((np.maximum, highest), (np.minimum, lowest)))
    np.not_equal(highest, lowest, out=found)
    return found


def _extreme(of: np.ufunc, values: NDArray[np.generic], line: int, axis: int) -> NDArray[np.generic]:
    """The largest or smallest value of the `line` before and after each, along one axis."""
    found = values.copy()
    source, target = np.moveaxis(values, axis, 0), np.moveaxis(found, axis, 0)
    for step in range(1, min(line, len(source) - 1) + 1):
        of(target[step:], source[:-step], out=target[step:])
        of(target[:-step], source[step:], out=target[:-step])
    return found


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%" if share >= 0.0995 else f"{100 * share:.1f}%" if share >= 0.0005 else "<0.1%"
