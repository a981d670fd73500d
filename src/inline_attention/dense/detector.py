"""Faster, Mask and Cascade R-CNN on a pyramid of maps, from torchvision's parts."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from timm.layers import freeze_batch_norm_2d
from torch import Tensor, nn
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN
from torchvision.models.detection.mask_rcnn import MaskRCNNPredictor
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.ops import FeaturePyramidNetwork, MultiScaleRoIAlign
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

from ..models.finite import nonfinite
from ..ops.sums import to_fp32
from .cascade import AgnosticPredictor, CascadeHeads, mask_parts
from .pyramid import Pyramid

DETECTORS = ("mask_rcnn", "cascade_mask_rcnn", "faster_rcnn", "cascade_rcnn")
"""The last two are the first two without masks: boxes alone."""
WITH_MASKS = DETECTORS[:2]
ANCHORS = (32, 64, 128, 256, 512)
RATIOS = (0.5, 1.0, 2.0)
LEVELS = ("0", "1", "2", "3")
"""Maps that boxes are pooled from; a fifth, coarser one is for proposals only."""
BOX_SIDE, MASK_SIDE = 7, 14
"""Output sides of RoIAlign."""


class Neck(nn.Module):
    """A pyramid with an FPN: maps of one width, from coarse to fine, and a fifth at half the coarsest one's resolution."""

    def __init__(self, body: Pyramid, width: int) -> None:
        super().__init__()
        self.body = body
        self.fpn = FeaturePyramidNetwork(list(body.channels), width, extra_blocks=LastLevelMaxPool())
        self.out_channels = width

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        """Images (B, C, H, W) -> maps (B, width, h, w) "0" to "3", of strides 4 to 32, and "pool"."""
        maps: dict[str, Tensor] = self.fpn(OrderedDict(zip(LEVELS, self.body(pixels), strict=True)))
        return maps


class Proposer(RPNHead):  # type: ignore[misc]
    """torchvision's head of the region proposal network, with outputs in float32 or finer."""

    def forward(self, x: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Maps (B, width, h, w) -> logits (B, 3, h, w) and box offsets (B, 12, h, w) of the anchors of each."""
        logits, offsets = super().forward(x)
        return [to_fp32(level) for level in logits], [to_fp32(level) for level in offsets]


class Predictor(FastRCNNPredictor):  # type: ignore[misc]
    """torchvision's box predictor, with outputs in float32 or finer."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features (n, features) -> logits (n, 1 + classes) and box offsets (n, 4 * (1 + classes))."""
        logits, offsets = super().forward(x)
        return to_fp32(logits), to_fp32(offsets)


class Detector(GeneralizedRCNN):  # type: ignore[misc]
    """torchvision's R-CNN, with the parameter groups that timm's optimizers ask for."""

    backbone: Neck

    def group_matcher(self, coarse: bool = False) -> Callable[[str], tuple[float, ...]]:
        """The depth of a parameter by its name, for layer-wise learning rates: the backbone's layers, then all else."""
        inner = self.backbone.body.group_matcher(coarse)
        return lambda name: inner(name.removeprefix("backbone.body.")) if name.startswith("backbone.body.") else (float("inf"),)

    def no_weight_decay(self) -> set[str]:
        """Names of the backbone's parameters without weight decay."""
        return {f"backbone.body.{name}" for name in self.backbone.body.no_weight_decay()}


def make_detector(
    backbone: Pyramid,
    head: str,
    classes: int,
    *,
    width: int = 256,
    sides: tuple[int, ...] = (800,),
    longest: int = 1333,
    mean: Sequence[float],
    std: Sequence[float],
    freeze_norm: bool = True,
    anchors: tuple[int, ...] = ANCHORS,
    samples: int = 512,
) -> Detector:
    """Make a detector on a backbone, whose weights it keeps.

    Training: (list of images (C, H, W) in 0..1, list of {"boxes" (n, 4) xyxy, "labels" (n,) of 1..classes, "masks"
    (n, H, W)}) -> losses by name. Evaluation: list of images -> list of {"boxes", "labels", "scores", "masks"
    (n, 1, H, W) in 0..1} at the images' own sizes. The heads for boxes alone take and give no "masks".

    Args:
        backbone: becomes part of the detector; `freeze_norm` changes it.
        head: one of `DETECTORS`.
        classes: without background, which is label 0.
        width: channels of the maps and of the mask head; the box head is four times as wide.
        sides: shorter sides in pixels; training samples one of them, evaluation takes the last.
        longest: the most that the longer side may be, in pixels.
        mean, std: of the images' channels.
        freeze_norm: freeze the backbone's batch norms, their statistics and their weights.
        anchors: sides of the anchor boxes in pixels, one for each of the five maps.
        samples: boxes of an image that the heads are trained on, a quarter of them on objects.
    """
    if head not in DETECTORS:
        raise ValueError(f"there is no detector {head!r}; there are {', '.join(DETECTORS)}")
    if classes < 1:
        raise ValueError(f"classes must be 1 or more, background not counted, got {classes}")
    if len(anchors) != len(ANCHORS) or min(anchors) < 1:
        raise ValueError(f"anchors must be {len(ANCHORS)} sides in pixels, one for each map, got {anchors}")
    if not sides or min(sides) < 1 or longest < min(sides):
        raise ValueError(f"sides must be one or more lengths in pixels, not all above longest={longest}, got {sides}")
    if samples < 4:
        raise ValueError(f"samples must be 4 or more, a quarter of them on objects, got {samples}")
    if freeze_norm:
        freeze_batch_norm_2d(backbone)
    detector = Detector(
        Neck(backbone, width),
        _proposals(width, anchors),
        _heads(head, classes, width, samples),
        GeneralizedRCNNTransform(list(sides), longest, list(mean), list(std)),
    )
    for module in detector.modules():
        if isinstance(module, Proposer | Predictor | AgnosticPredictor | MaskRCNNPredictor):
            module.register_forward_hook(_refuse_nonfinite)
    return detector


def _refuse_nonfinite(module: nn.Module, _: object, outputs: Any) -> None:
    """A hook for evaluation: boxes whose scores are not finite would be left out, as if there were no objects."""
    parts = [outputs] if isinstance(outputs, Tensor) else [*outputs[0], *outputs[1]]
    if not module.training and any(map(nonfinite, parts)):
        raise FloatingPointError(f"the detector's {type(module).__name__} gives numbers that are not finite (NaN or infinity)")


def _proposals(width: int, anchors: tuple[int, ...]) -> RegionProposalNetwork:
    generator = AnchorGenerator(tuple((side,) for side in anchors), (RATIOS,) * len(anchors))
    return RegionProposalNetwork(
        generator,
        Proposer(width, generator.num_anchors_per_location()[0]),
        fg_iou_thresh=0.7,
        bg_iou_thresh=0.3,
        batch_size_per_image=256,
        positive_fraction=0.5,
        pre_nms_top_n={"training": 2000, "testing": 1000},
        post_nms_top_n={"training": 1000, "testing": 1000},
        nms_thresh=0.7,
    )


def _heads(head: str, classes: int, width: int, samples: int) -> RoIHeads:
    box_pool = MultiScaleRoIAlign(list(LEVELS), BOX_SIDE, 2)
    mask_pool = MultiScaleRoIAlign(list(LEVELS), MASK_SIDE, 2) if head in WITH_MASKS else None
    options: dict[str, Any] = {
        "batch_size_per_image": samples,
        "positive_fraction": 0.25,
        "score_thresh": 0.05,
        "nms_thresh": 0.5,
        "detections_per_img": 100,
    }
    if head.startswith("cascade"):
        return CascadeHeads(classes, width=width, box_roi_pool=box_pool, mask_roi_pool=mask_pool, side=BOX_SIDE, **options)
    return RoIHeads(
        box_pool,
        TwoMLPHead(width * BOX_SIDE**2, 4 * width),
        Predictor(4 * width, 1 + classes),
        fg_iou_thresh=0.5,
        bg_iou_thresh=0.5,
        bbox_reg_weights=None,
        **mask_parts(mask_pool, width, classes),
        **options,
    )
