"""Draws objects over images: masks, boxes and tags."""

from collections.abc import Sequence

import torch
from PIL import Image, ImageDraw
from torch import Tensor
from torchvision.ops import masks_to_boxes
from torchvision.transforms.v2.functional import pil_to_tensor, to_pil_image
from torchvision.utils import draw_bounding_boxes, draw_segmentation_masks

from ..lite.captions import CaptionStyle, Colour, Rectangle, draw_tag
from ..lite.label_drawing import borders, check_size, class_colour, enlarge, enlargement


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
    check_size("masks are", masks.shape[1:], image)
    colours = [class_colour(number) for number in range(len(labels))]
    shares = [None] * len(labels) if scores is None else [float(score) for score in scores]
    places = [_place(box, factor, image) for box in boxes.tolist()]
    if not len(places) == len(labels) == len(shares) == len(masks):
        raise ValueError(f"{len(places)} boxes, {len(labels)} labels, {len(shares)} scores and {len(masks)} masks do not fit")
    drawn = enlarge(image, factor)
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
    inside = mask[top : below + 2, left : right + 2].repeat_interleave(factor, 0).repeat_interleave(factor, 1)
    height, width = inside.shape
    area = pixels[:, top * factor : top * factor + height, left * factor : left * factor + width]
    filled = draw_segmentation_masks(area, inside, opacity, colour)
    area.copy_(draw_segmentation_masks(filled, inside & torch.from_numpy(borders(inside.numpy(), line)), 1.0, colour))
