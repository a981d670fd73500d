"""What a detector or a segmenter costs: parameters and multiply-adds, nothing computed."""

from dataclasses import dataclass

from torch import Tensor, nn
from torchvision.models.detection.roi_heads import RoIHeads

from ..models.counting import count
from .cascade import CascadeHeads
from .detector import BOX_SIDE, MASK_SIDE, Detector
from .pyramid import backbone_of

PROPOSALS, MASKS = 1000, 100
"""Boxes a picture that heads are counted for, as mmdetection counts."""


@dataclass(frozen=True)
class Cost:
    """What one picture costs."""

    params: int
    """Parameters."""
    flops: int
    """Multiply-adds, as papers count FLOPs."""


def detector_costs(model: Detector, height: int, width: int) -> Cost:
    """Backbone, neck and proposals at a size, heads for 1,000 boxes and 100 masks; what depends on the picture is left out.

    InLine is counted as its equation is written: see `count`.
    """
    return _cost(_Detecting(model), height, width)


def segmenter_costs(model: nn.Module, height: int, width: int) -> Cost:
    """A segmenter as it is used, in evaluation mode; an auxiliary head is among the parameters, but not computed."""
    return _cost(_Segmenting(model), height, width)


def _cost(model: nn.Module, height: int, width: int) -> Cost:
    counted = count(model, (height, width))
    return Cost(params=counted.params, flops=counted.flops)


class _Segmenting(nn.Module):
    """The whole model, and how many channels its pictures have."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.in_chans = next(part.in_channels for part in backbone_of(model).modules() if isinstance(part, nn.Conv2d))

    def forward(self, pixels: Tensor) -> None:
        self.model(pixels)


class _Detecting(_Segmenting):
    """The parts of a detector whose cost does not depend on what is in the picture."""

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
                stage.mask_predictor(stage.mask_head(masks))
