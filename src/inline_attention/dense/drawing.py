"""Pictures with what was found on them: objects with their masks, or a class for every pixel."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil, sqrt

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from .overlap import IGNORED

SMALLEST = 480
"""Shorter side below which pictures are enlarged, so that there is room for words."""
LARGEST = 1600
"""Longer side that they are not enlarged beyond."""
TAKEN = 4
"""How much worse it is to cover another tag than to cover a small object."""

FIRST = (235, 78, 60)
"""Red, green, blue of class 0."""
TO_CONES = (
    (0.4122214708, 0.5363325363, 0.0514459929),
    (0.2119034982, 0.6806995451, 0.1073969566),
    (0.0883024619, 0.2817188376, 0.6299787005),
)
TO_LAB = (
    (0.2104542553, 0.7936177850, -0.0040720468),
    (1.9779984951, -2.4285922050, 0.4505937099),
    (0.0259040371, 0.7827717662, -0.8086757660),
)

Colour = tuple[int, int, int]
Area = tuple[int, int, int, int]
"""Left, top, right, bottom."""


def class_colour(number: int) -> Colour:
    """Red, green and blue of a class: always the same, and as far from those of lower numbers as may be."""
    red, green, blue = _palette()[number % len(_palette())]
    return red, green, blue


@cache
def _palette() -> list[list[int]]:
    """Colours neither dark, pale nor grey, each the farthest from all before it, in OKLab, where equal steps look equal."""
    shades = np.linspace(0, 255, 14).round()
    colours = np.stack(np.meshgrid(shades, shades, shades, indexing="ij"), -1).reshape(-1, 3)
    linear = np.where(colours > 10, ((colours / 255 + 0.055) / 1.055) ** 2.4, colours / 255 / 12.92)
    lab = np.cbrt(linear @ np.array(TO_CONES).T) @ np.array(TO_LAB).T
    chroma = np.hypot(lab[:, 1], lab[:, 2])
    good = (lab[:, 0] > 0.5) & (lab[:, 0] < 0.86) & (chroma > 0.09) & (chroma < 0.24)
    colours, lab = colours[good].astype(int), lab[good]
    order = [int(np.abs(colours - FIRST).sum(1).argmin())]
    far = np.full(len(lab), np.inf)
    while len(order) < len(lab):
        far = np.minimum(far, ((lab - lab[order[-1]]) ** 2).sum(1))
        order.append(int(far.argmax()))
    found: list[list[int]] = colours[order].tolist()
    return found


def enlargement(picture: Image.Image) -> int:
    """The whole factor by which a picture is enlarged before it is drawn on: 1 from 480 pixels on, or beyond 1,600 a side."""
    return max(1, min(ceil(SMALLEST / min(picture.size)), LARGEST // max(picture.size)))


def draw_objects(
    picture: Image.Image,
    boxes: Tensor,
    labels: Sequence[str],
    scores: Sequence[float] | Tensor | None,
    masks: Tensor,
    classes: Sequence[str] = (),
    opacity: float = 0.45,
) -> Image.Image:
    """Masks half transparent with a solid contour, thin boxes, and a tag at each: its class and how sure the model is.

    Args:
        picture: of H x W pixels; below 480 it is enlarged by a whole factor.
        boxes: (n, 4), x1, y1, x2, y2.
        labels: n names.
        scores: n shares in 0..1; None for objects that are known.
        masks: (n, H, W) bool.
        classes: all names in order, so that a class has one colour in all pictures; without them, names are coloured as they
            come.
        opacity: of the masks.
    """
    factor = enlargement(picture)
    regions = _whole(masks, picture, "masks are")
    colours = _colours(labels, classes)
    sure = [None] * len(labels) if scores is None else [float(score) for score in scores]
    places = [_place(box, factor, picture) for box in boxes.tolist()]
    if not len(places) == len(labels) == len(sure) == len(regions):
        raise ValueError(f"{len(places)} boxes, {len(labels)} labels, {len(sure)} scores and {len(regions)} masks do not fit")
    drawn = _enlarged(picture, factor)
    style = _Style.of(drawn)
    by_size = sorted(range(len(labels)), key=lambda number: -int(regions[number].sum()))  # small ones lie on top
    for number in by_size:
        _paint_object(drawn, regions[number], colours[number], opacity, factor, style.line)
    draw = ImageDraw.Draw(drawn)
    for number in by_size:
        draw.rectangle(places[number], outline=colours[number], width=style.line)
    tags: list[Area] = []
    for number in sorted(range(len(labels)), key=lambda number: -(sure[number] or 0)):  # the surest choose first
        share = sure[number]
        words = labels[number] if share is None else f"{labels[number]} {100 * share:.0f}%"
        tags.append(_tag(draw, drawn.size, places[number], words, colours[number], style, tags, places))
    return drawn


def draw_labels(picture: Image.Image, label_map: Tensor, classes: Sequence[str], opacity: float = 0.55) -> Image.Image:
    """Every pixel in the colour of its class, solid at borders, and below the picture which classes there are.

    Args:
        picture: of H x W pixels; below 480 it is enlarged by a whole factor.
        label_map: (H, W), numbers of classes; where it is 255, the picture stays as it is.
        classes: names.
        opacity: of the colours.

    Returns:
        The picture with a strip below it, in which each class that occurs stands with its share of the picture.
    """
    factor = enlargement(picture)
    labels = _whole(label_map[None], picture, "label map is")[0]
    numbers, pixels_of = np.unique(labels, return_counts=True)
    shares = {int(number): int(count) / labels.size for number, count in zip(numbers, pixels_of, strict=True)}
    shares.pop(IGNORED, None)
    if strange := [number for number in shares if not 0 <= number < len(classes)]:
        raise ValueError(f"the label map has a class {strange[0]}, there are names for 0 to {len(classes) - 1}")
    drawn = _enlarged(picture, factor)
    style = _Style.of(drawn)
    labels = _repeated(labels, factor)
    inside = np.not_equal(labels, IGNORED)
    palette = np.array([class_colour(number) for number in range(len(classes))], np.uint8)
    colours = Image.fromarray(palette[np.where(inside, labels, 0)])
    _paint(drawn, (0, 0), colours, inside, _alike(labels, style.line), opacity)
    entries = [
        (f"{classes[number]} {_percent(share)}", class_colour(number))
        for number, share in sorted(shares.items(), key=lambda entry: -entry[1])
    ]
    legend = _legend(entries, drawn.width, style)
    whole = Image.new("RGB", (drawn.width, drawn.height + legend.height))
    whole.paste(drawn, (0, 0))
    whole.paste(legend, (0, drawn.height))
    return whole


@dataclass(frozen=True)
class _Style:
    """Sizes that fit a picture: readable when it is seen as a whole, whether it has 480 pixels or 4,000."""

    font: ImageFont.FreeTypeFont | ImageFont.ImageFont
    height: int
    """Of a line of words, with room above and below."""
    margin: int
    line: int

    @classmethod
    def of(cls, picture: Image.Image) -> "_Style":
        size = max(13, round(sqrt(picture.width * picture.height) / 46))
        return cls(ImageFont.load_default(size=size), round(1.35 * size), max(3, size // 4), max(1, round(size / 9)))


def _whole(maps: Tensor, picture: Image.Image, what: str) -> NDArray[np.generic]:
    """(n, H, W) as an array, if it has the picture's size."""
    height, width = picture.height, picture.width
    if maps.ndim != 3 or tuple(maps.shape[1:]) != (height, width):
        size = " x ".join(map(str, maps.shape[1:]))
        raise ValueError(f"the {what} of {size} pixels and the picture is of {height} x {width}: sizes must agree")
    found: NDArray[np.generic] = maps.detach().cpu().numpy()
    return found


def _colours(labels: Sequence[str], classes: Sequence[str]) -> list[Colour]:
    names = list(dict.fromkeys([*classes, *labels]))
    return [class_colour(names.index(label)) for label in labels]


def _enlarged(picture: Image.Image, factor: int) -> Image.Image:
    picture = picture.convert("RGB")
    if factor == 1:
        return picture
    return picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.BICUBIC)


def _place(box: Sequence[float], factor: int, picture: Image.Image) -> Area:
    """A box in pixels of the enlarged picture, inside it."""
    right, below = picture.width * factor - 1, picture.height * factor - 1
    left, top = (min(max(round(side * factor), 0), most) for side, most in zip(box[:2], (right, below), strict=True))
    return (
        left,
        top,
        min(max(round(box[2] * factor) - 1, left), right),
        min(max(round(box[3] * factor) - 1, top), below),
    )


def _paint_object(
    drawn: Image.Image, region: NDArray[np.generic], colour: Colour, opacity: float, factor: int, line: int
) -> None:
    """Paint one mask; only its own rectangle is looked at."""
    rows, columns = np.flatnonzero(region.any(1)), np.flatnonzero(region.any(0))
    if not len(rows):
        return
    # A pixel beyond the region on each side, so that its border is seen as such, save at the picture's edge.
    top, left = max(int(rows[0]) - 1, 0), max(int(columns[0]) - 1, 0)
    inside = _repeated(region[top : rows[-1] + 2, left : columns[-1] + 2], factor).astype(bool)
    plain = Image.new("RGB", inside.shape[::-1], colour)
    _paint(drawn, (left * factor, top * factor), plain, inside, _alike(inside, line), opacity)


def _repeated(values: NDArray[np.generic], factor: int) -> NDArray[np.generic]:
    return values if factor == 1 else values.repeat(factor, 0).repeat(factor, 1)


def _alike(values: NDArray[np.generic], line: int) -> NDArray[np.bool_]:
    """Where in (H, W) all values at most so many rows and columns away are the same."""
    alike = np.ones(values.shape, bool)
    for _ in range(2):
        found = alike.copy()
        for step in range(1, line + 1):
            same = values[step:] == values[:-step]
            found[step:] &= same & alike[:-step]
            found[:-step] &= same & alike[step:]
        alike, values = np.ascontiguousarray(found.T), np.ascontiguousarray(values.T)
    return alike


def _paint(
    drawn: Image.Image,
    corner: tuple[int, int],
    colours: Image.Image,
    inside: NDArray[np.bool_],
    core: NDArray[np.bool_],
    opacity: float,
) -> None:
    """Mix colours into a rectangle of the picture, where it is inside; and put them there whole, where it is not core."""
    part = drawn.crop((*corner, corner[0] + colours.width, corner[1] + colours.height))
    for paint, where in ((Image.blend(part, colours, opacity), inside & core), (colours, inside & ~core)):
        part.paste(paint, mask=Image.fromarray(where.astype(np.uint8) * 255))
    drawn.paste(part, corner)


def _fit(draw: ImageDraw.ImageDraw, words: str, room: float, style: _Style) -> str:
    """The words, cut where there is no room for more."""
    if draw.textlength(words, font=style.font) <= room:
        return words
    while words and draw.textlength(f"{words}...", font=style.font) > room:
        words = words[:-1]
    return f"{words}..."


def _tag(
    draw: ImageDraw.ImageDraw,
    size: tuple[int, int],
    box: Area,
    words: str,
    colour: Colour,
    style: _Style,
    tags: Sequence[Area],
    boxes: Sequence[Area],
) -> Area:
    """Words on a filled rectangle at a box, inside the picture, where they hide least of other tags and of small objects."""
    words = _fit(draw, words, size[0] - 2 * style.margin, style)
    width, height = ceil(draw.textlength(words, font=style.font)) + 2 * style.margin, style.height
    left, top, right, below = box
    small = [other for other in boxes if (other[2] - other[0]) * (other[3] - other[1]) < 8 * width * height]
    corners = [(x, y) for x in (left, right - width + 1) for y in (top - height, top, below + 1, below - height + 1)]
    corners += [(x, y) for x in (right + 1, left - width) for y in (top, below - height + 1)]
    places = []
    for x, y in corners:
        x, y = min(max(x, 0), size[0] - width), min(max(y, 0), size[1] - height)
        places.append((x, y, x + width, y + height))
    place = min(
        places,
        key=lambda place: TAKEN * sum(_common(place, tag) for tag in tags) + sum(_common(place, other) for other in small),
    )
    draw.rectangle((place[0], place[1], place[2] - 1, place[3] - 1), fill=colour)
    draw.text((place[0] + style.margin, (place[1] + place[3]) / 2), words, _ink(colour), style.font, anchor="lm")
    return place


def _common(one: Area, other: Area) -> int:
    """Pixels that two rectangles share."""
    return max(0, min(one[2], other[2]) - max(one[0], other[0])) * max(0, min(one[3], other[3]) - max(one[1], other[1]))


def _ink(colour: Colour) -> Colour:
    """Black or white, whichever is read more easily on a colour."""
    red, green, blue = colour
    return (0, 0, 0) if 0.299 * red + 0.587 * green + 0.114 * blue > 120 else (255, 255, 255)


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%" if share >= 0.0995 else f"{100 * share:.1f}%" if share >= 0.0005 else "<0.1%"


def _legend(entries: Sequence[tuple[str, Colour]], width: int, style: _Style) -> Image.Image:
    """A white strip with a square of each colour and its words, in as many lines as it takes."""
    draw = ImageDraw.Draw(Image.new("RGB", (1, 1)))
    edge, square, gap = 2 * style.margin, round(0.6 * style.height), 4 * style.margin
    room = width - 2 * edge - square - style.margin
    placed: list[tuple[int, int, str, Colour]] = []
    x, line = edge, 0
    for words, colour in entries:
        words = _fit(draw, words, room, style)
        length = square + style.margin + ceil(draw.textlength(words, font=style.font))
        if x > edge and x + length > width - edge:
            x, line = edge, line + 1
        placed.append((x, line, words, colour))
        x += length + gap
    strip = Image.new("RGB", (width, (line + 1) * style.height + 2 * style.margin if entries else 0), "white")
    draw = ImageDraw.Draw(strip)
    for x, line, words, colour in placed:
        middle = style.margin + line * style.height + style.height // 2
        draw.rectangle((x, middle - square // 2, x + square - 1, middle - square // 2 + square - 1), fill=colour)
        draw.text((x + square + style.margin, middle), words, (0, 0, 0), style.font, anchor="lm")
    return strip
