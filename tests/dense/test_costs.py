"""Multiply-adds, counted by hand."""

import pytest
import torch.nn.functional as F
from torch import nn

from inline_attention.dense.costs import detector_costs, segmenter_costs
from inline_attention.dense.detector import DETECTORS, WITH_MASKS, make_detector
from inline_attention.dense.pyramid import make_pyramid
from inline_attention.models.counting import count

WIDTH, CLASSES = 8, 2
CELLS = [24 * 16, 12 * 8, 6 * 4, 3 * 2, 2 * 1]
"""Of the five maps of an image of 64 x 96."""


@pytest.mark.parametrize("head", DETECTORS)
def test_a_detector_by_hand(head):
    pyramid = make_pyramid("inline_pvt_nano", {"patch_size": 4})
    body = count(pyramid, (64, 96)).flops
    neck = sum(cells * (channels * WIDTH + 9 * WIDTH**2) for cells, channels in zip(CELLS[:4], pyramid.channels, strict=True))
    proposals = sum(cells * (9 * WIDTH**2 + WIDTH * (3 + 12)) for cells in CELLS)
    hidden, outputs = 4 * WIDTH, 1 + CLASSES
    if "cascade" not in head:
        boxes = WIDTH * 49 * hidden + hidden * hidden + hidden * 5 * outputs
    else:
        boxes = 4 * 49 * 9 * WIDTH**2 + WIDTH * 49 * hidden + hidden * (outputs + 4)
    masks = (4 * 196 * 9 * WIDTH**2 + 196 * 4 * WIDTH**2 + 784 * WIDTH * outputs) * (head in WITH_MASKS)
    model = make_detector(pyramid, head, CLASSES, width=WIDTH, mean=(0.5,) * 3, std=(0.5,) * 3)
    cost = detector_costs(model, 64, 96)
    assert cost.flops == body + neck + proposals + (3 if "cascade" in head else 1) * (1000 * boxes + 100 * masks)
    assert cost.params == sum(parameter.numel() for parameter in model.parameters())
    assert model.training, "counting changes nothing"
    assert not any(parameter.is_meta for parameter in model.parameters())


class OneConvolution(nn.Module):
    """The smallest segmenter: a convolution of the finest map, and a head that only training uses."""

    def __init__(self, pyramid):
        super().__init__()
        self.pyramid = pyramid
        self.head = nn.Conv2d(pyramid.channels[0], CLASSES, 3, padding=1)
        self.auxiliary = nn.Conv2d(pyramid.channels[2], CLASSES, 1)

    def forward(self, pixels):
        maps = self.pyramid(pixels)
        logits = F.interpolate(self.head(maps[0]), size=pixels.shape[-2:])
        return (logits, self.auxiliary(maps[2])) if self.training else logits


@pytest.mark.parametrize(("name", "channels"), [("inline_pvt_nano", 3), ("inline_pvt_nano", 1), ("resnet18", 4)])
def test_a_segmenter_by_hand(name, channels):
    pyramid = make_pyramid(name, {"in_chans": channels})
    model = OneConvolution(pyramid)
    cost = segmenter_costs(model, 61, 90)
    pyramid.in_chans = channels
    assert cost.flops == count(pyramid, (61, 90)).flops + 16 * 23 * 9 * pyramid.channels[0] * CLASSES
    assert cost.params == sum(parameter.numel() for parameter in model.parameters())


def test_the_cost_of_inline_grows_with_the_pixels():
    model = make_detector(make_pyramid("inline_swin_nano", {}), "mask_rcnn", 1, width=WIDTH, mean=(0.5,) * 3, std=(0.5,) * 3)
    small, middle, large = (detector_costs(model, 64, width).flops for width in (64, 128, 256))
    assert large - middle == pytest.approx(2 * (middle - small), rel=0.02)
