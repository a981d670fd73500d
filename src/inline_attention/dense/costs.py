"""Parameters and multiply-adds of detectors and segmenters, counted without computing anything."""

from dataclasses import dataclass

from torch import Tensor, nn
from torchvision.models.detection.roi_heads import RoIHeads

from ..models.counting import count
from .cascade import CascadeHeads
from .detector import BOX_SIDE, MASK_SIDE, Detector
from .pyramid import backbone_of

PROPOSALS, MASKS = 1000, 100
"""Boxes and masks of an image that the heads are counted for, as in mmdetection."""


@dataclass(frozen=True)
class Cost:
    """The cost of one image."""

    params: int
    """Parameters."""
    flops: int
    """Multiply-adds, as papers count FLOPs."""


def detector_costs(model: Detector, height: int, width: int) -> Cost:
    """Cost of a detector: backbone, neck and proposals at a size, heads for 1,000 boxes, and 100 masks if there are any.

    What depends on the image's content is left out. InLine is counted as its equation is written: see `count`.
    """
    return _cost(_CountedDetector(model), height, width)


def segmenter_costs(model: nn.Module, height: int, width: int) -> Cost:
    """Cost of a segmenter in evaluation mode; an auxiliary head is among the parameters, but is not computed."""
    return _cost(_CountedSegmenter(model), height, width)


def _cost(model: nn.Module, height: int, width: int) -> Cost:
    counted = count(model, (height, width))
    return Cost(params=counted.params, flops=counted.flops)


class _CountedSegmenter(nn.Module):
    """The whole model, with `in_chans`, which `count` needs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.in_chans = next(part.in_channels for part in backbone_of(model).modules() if isinstance(part, nn.Conv2d))

    def forward(self, pixels: Tensor) -> None:
        self.model(pixels)


class _CountedDetector(_CountedSegmenter):
    """The parts of a detector whose cost does not depend on the image's content."""

    model: Detector

    def forward(self, pixels: Tensor) -> None:
        maps = self.model.backbone(pixels)
        self.model.rpn.head(list(maps.values()))
        heads = self.model.roi_heads
        width = self.model.backbone.out_channels
        boxes = pixels.new_empty(PROPOSALS, width, BOX_SIDE, BOX_SIDE)
        masks = pixels.new_empty(MASKS, width, MASK_SIDE, MASK_SIDE)
        for stage in heads.stages if isinstance(heads, CascadeHeads) else [heads]:
            if isinstance(stage, RoIHeads):
                stage.box_predictor(stage.box_head(boxes))
                if stage.mask_head is not None:
                    stage.mask_predictor(stage.mask_head(masks))
