"""Text on images: a tag at each box, a legend below the image, in sizes that fit the image."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt

from PIL import Image, ImageDraw, ImageFont

Colour = tuple[int, int, int]
Rectangle = tuple[int, int, int, int]
"""Left, top, right, bottom."""
TAG_OVERLAP_COST = 4
"""How much worse it is to cover another tag than to cover a small object."""


@dataclass(frozen=True)
class CaptionStyle:
    """Sizes that fit an image: readable when the whole image is on the screen, whether it has 480 pixels or 4,000."""

    font: ImageFont.FreeTypeFont | ImageFont.ImageFont
    height: int
    """Of a line of text, with room above and below."""
    margin: int
    line: int

    @classmethod
    def of(cls, image: Image.Image) -> "CaptionStyle":
        """The sizes for an image."""
        size = max(13, round(sqrt(image.width * image.height) / 46))
        return cls(ImageFont.load_default(size=size), round(1.35 * size), max(3, size // 4), max(1, round(size / 9)))


def _fit_text(draw: ImageDraw.ImageDraw, text: str, room: float, style: CaptionStyle) -> str:
    """The text, shortened to the room."""
    if draw.textlength(text, font=style.font) <= room:
        return text
    while text and draw.textlength(f"{text}...", font=style.font) > room:
        text = text[:-1]
    return f"{text}..."


def draw_tag(
    draw: ImageDraw.ImageDraw,
    size: tuple[int, int],
    box: Rectangle,
    text: str,
    colour: Colour,
    style: CaptionStyle,
    tags: Sequence[Rectangle],
    boxes: Sequence[Rectangle],
) -> Rectangle:
    """Draw text on a filled rectangle at a box, inside the image, where it hides least of other tags and of small objects.

    `draw_bounding_boxes` can draw labels, too, but always at the upper left: they hide each other and leave the image.
    """
    text = _fit_text(draw, text, size[0] - 2 * style.margin, style)
    width, height = ceil(draw.textlength(text, font=style.font)) + 2 * style.margin, style.height
    left, top, right, below = box
    small = [other for other in boxes if (other[2] - other[0]) * (other[3] - other[1]) < 8 * width * height]
    corners = [(x, y) for x in (left, right - width + 1) for y in (top - height, top, below + 1, below - height + 1)]
    corners += [(x, y) for x in (right + 1, left - width) for y in (top, below - height + 1)]
    places = []
    for x, y in corners:
        x, y = min(max(x, 0), size[0] - width), min(max(y, 0), size[1] - height)
        places.append((x, y, x + width, y + height))

    def hidden(place: Rectangle) -> int:
        return TAG_OVERLAP_COST * sum(_common_area(place, tag) for tag in tags) + sum(_common_area(place, box) for box in small)

    place = min(places, key=hidden)
    draw.rectangle((place[0], place[1], place[2] - 1, place[3] - 1), fill=colour)
    draw.text((place[0] + style.margin, (place[1] + place[3]) / 2), text, _text_colour(colour), style.font, anchor="lm")
    return place


def _common_area(one: Rectangle, other: Rectangle) -> int:
    """Pixels that two rectangles share."""
    return max(0, min(one[2], other[2]) - max(one[0], other[0])) * max(0, min(one[3], other[3]) - max(one[1], other[1]))


def _text_colour(background: Colour) -> Colour:
    """Black or white, whichever is easier to read."""
    red, green, blue = background
    return (0, 0, 0) if 0.299 * red + 0.587 * green + 0.114 * blue > 120 else (255, 255, 255)


def draw_legend(entries: Sequence[tuple[str, Colour]], width: int, style: CaptionStyle) -> Image.Image:
    """A white strip with a square of each colour and its text, in as many lines as needed."""
    draw = ImageDraw.Draw(Image.new("RGB", (1, 1)))
    edge, square, gap = 2 * style.margin, round(0.6 * style.height), 4 * style.margin
    room = width - 2 * edge - square - style.margin
    placed: list[tuple[int, int, str, Colour]] = []
    x, line = edge, 0
    for text, colour in entries:
        text = _fit_text(draw, text, room, style)
        length = square + style.margin + ceil(draw.textlength(text, font=style.font))
        if x > edge and x + length > width - edge:
            x, line = edge, line + 1
        placed.append((x, line, text, colour))
        x += length + gap
    strip = Image.new("RGB", (width, (line + 1) * style.height + 2 * style.margin if entries else 0), "white")
    draw = ImageDraw.Draw(strip)
    for x, line, text, colour in placed:
        middle = style.margin + line * style.height + style.height // 2
        draw.rectangle((x, middle - square // 2, x + square - 1, middle - square // 2 + square - 1), fill=colour)
        draw.text((x + square + style.margin, middle), text, (0, 0, 0), style.font, anchor="lm")
    return strip
