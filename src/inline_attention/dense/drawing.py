"""Draws predictions over images: objects with masks, boxes and labels, or a class for every pixel with a legend."""

from collections.abc import Sequence
from functools import cache
from math import ceil

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw
from torch import Tensor
from torchvision.ops import masks_to_boxes
from torchvision.transforms.v2.functional import pil_to_tensor, to_pil_image
from torchvision.utils import draw_bounding_boxes, draw_segmentation_masks

from ..data.label_maps import IGNORED
from .captions import CaptionStyle, Colour, Rectangle, draw_legend, draw_tag

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


def draw_objects(
    image: Image.Image,
    boxes: Tensor,
    labels: Sequence[str],
    scores: Sequence[float] | Tensor | None,
    masks: Tensor | None = None,
    opacity: float = 0.45,
) -> Image.Image:
    """Draw masks half transparent with a solid contour, thin boxes, and a tag for each with its class and score.

    Each object has its own colour, which its box, mask and tag share.

    Args:
        image: H x W pixels; below 480 it is enlarged by a whole factor.
        boxes: (n, 4), x1, y1, x2, y2.
        labels: n class names.
        scores: n scores in 0..1; None for the ground truth.
        masks: (n, H, W) bool; None for boxes alone.
        opacity: of the masks.
    """
    factor = enlargement(image)
    if masks is None:
        masks = torch.zeros(len(labels), image.height, image.width, dtype=torch.bool)
    _check_size("masks are", masks, image)
    colours = [class_colour(number) for number in range(len(labels))]
    shares = [None] * len(labels) if scores is None else [float(score) for score in scores]
    places = [_place(box, factor, image) for box in boxes.tolist()]
    if not len(places) == len(labels) == len(shares) == len(masks):
        raise ValueError(f"{len(places)} boxes, {len(labels)} labels, {len(shares)} scores and {len(masks)} masks do not fit")
    drawn = _enlarge(image, factor)
    style = CaptionStyle.of(drawn)
    masks = masks.detach().cpu().bool()
    pixels = pil_to_tensor(drawn)
    extent = [(int(mask.sum()), (right - x) * (below - y)) for mask, (x, y, right, below) in zip(masks, places, strict=True)]
    by_size = sorted(range(len(labels)), key=extent.__getitem__, reverse=True)  # small objects are drawn on top
    for number in by_size:
        _draw_mask(pixels, masks[number], colours[number], opacity, factor, style.line)
    if by_size:
        ordered, outlines = torch.tensor([places[number] for number in by_size]), [colours[number] for number in by_size]
        pixels = draw_bounding_boxes(pixels, ordered, colors=outlines, width=style.line)
    drawn = to_pil_image(pixels)
    draw = ImageDraw.Draw(drawn)
    tags: list[Rectangle] = []
    for number in sorted(range(len(labels)), key=lambda number: -(shares[number] or 0)):  # the highest score is placed first
        share = shares[number]
        text = labels[number] if share is None else f"{labels[number]} {100 * share:.0f}%"
        tags.append(draw_tag(draw, drawn.size, places[number], text, colours[number], style, tags, places))
    return drawn


def draw_labels(image: Image.Image, label_map: Tensor, classes: Sequence[str], opacity: float = 0.55) -> Image.Image:
    """Draw every pixel in the colour of its class, solid at the borders, with a legend below the image.

    Args:
        image: H x W pixels; below 480 it is enlarged by a whole factor.
        label_map: (H, W), class numbers; where it is 255, the image is not changed.
        classes: class names.
        opacity: of the colours.

    Returns:
        The image with a strip below it that lists each class that occurs, with its share of the image.
    """
    factor = enlargement(image)
    _check_size("label map is", label_map[None], image)
    labels = label_map.detach().cpu().long()
    numbers, counts = labels.unique(return_counts=True)
    shares = {number: count / labels.numel() for number, count in zip(numbers.tolist(), counts.tolist(), strict=True)}
    shares.pop(IGNORED, None)
    if unknown := [number for number in shares if not 0 <= number < len(classes)]:
        raise ValueError(f"the label map has a class {unknown[0]}, there are names for 0 to {len(classes) - 1}")
    drawn = _enlarge(image, factor)
    style = CaptionStyle.of(drawn)
    labels = _repeat(labels, factor)
    inside = labels != IGNORED
    # One pass over the palette: draw_segmentation_masks would need a mask of the image's size for every class.
    palette = torch.tensor([class_colour(number) for number in range(len(classes))], dtype=torch.uint8)
    colours = palette[torch.where(inside, labels, 0)].permute(2, 0, 1)
    weight = inside * torch.where(_borders(labels, style.line), 1.0, opacity)
    drawn = to_pil_image(torch.lerp(pil_to_tensor(drawn).float(), colours.float(), weight).to(torch.uint8))
    entries = [
        (f"{classes[number]} {_percent(share)}", class_colour(number))
        for number, share in sorted(shares.items(), key=lambda entry: -entry[1])
    ]
    legend = draw_legend(entries, drawn.width, style)
    whole = Image.new("RGB", (drawn.width, drawn.height + legend.height))
    whole.paste(drawn, (0, 0))
    whole.paste(legend, (0, drawn.height))
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


def _check_size(what: str, maps: Tensor, image: Image.Image) -> None:
    """Raise unless maps (n, H, W) have the image's size."""
    if maps.ndim != 3 or tuple(maps.shape[1:]) != (image.height, image.width):
        size = " x ".join(map(str, maps.shape[1:]))
        raise ValueError(f"the {what} of {size} pixels and the image is of {image.height} x {image.width}: sizes must agree")


def _enlarge(image: Image.Image, factor: int) -> Image.Image:
    return image.convert("RGB").resize((image.width * factor, image.height * factor), Image.Resampling.BICUBIC)


def _repeat(values: Tensor, factor: int) -> Tensor:
    """(H, W) -> (H * factor, W * factor)."""
    return values.repeat_interleave(factor, 0).repeat_interleave(factor, 1)


def _place(box: Sequence[float], factor: int, image: Image.Image) -> Rectangle:
    """A box in pixels of the enlarged image, clipped to it."""
    right, below = image.width * factor - 1, image.height * factor - 1
    left, top = (min(max(round(side * factor), 0), most) for side, most in zip(box[:2], (right, below), strict=True))
    return (
        left,
        top,
        min(max(round(box[2] * factor) - 1, left), right),
        min(max(round(box[3] * factor) - 1, top), below),
    )


def _draw_mask(pixels: Tensor, mask: Tensor, colour: Colour, opacity: float, factor: int, line: int) -> None:
    """Draw one mask (H, W) into an enlarged image (3, H * factor, W * factor), in place.

    One mask at a time, since `draw_segmentation_masks` paints black where masks overlap; and only within the mask's own
    rectangle, since an image may have a hundred.
    """
    if not mask.any():
        return
    left, top, right, below = masks_to_boxes(mask[None])[0].long().tolist()
    # One pixel beyond the mask on each side, so that its border is a border there, too, except at the image's edge.
    top, left = max(top - 1, 0), max(left - 1, 0)
    inside = _repeat(mask[top : below + 2, left : right + 2], factor)
    height, width = inside.shape
    area = pixels[:, top * factor : top * factor + height, left * factor : left * factor + width]
    filled = draw_segmentation_masks(area, inside, opacity, colour)
    area.copy_(draw_segmentation_masks(filled, inside & _borders(inside, line), 1.0, colour))


def _borders(values: Tensor, line: int) -> Tensor:
    """Where in (H, W) there is another value at most `line` rows and columns away."""
    maps = torch.stack([values, -values.long()]).float()
    for kernel, padding in (((2 * line + 1, 1), (line, 0)), ((1, 2 * line + 1), (0, line))):
        maps = F.max_pool2d(maps, kernel, 1, padding)
    highest, lowest = maps[0], -maps[1]
    return highest != lowest


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%" if share >= 0.0995 else f"{100 * share:.1f}%" if share >= 0.0005 else "<0.1%"
