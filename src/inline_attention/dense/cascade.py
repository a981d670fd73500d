"""Cascade Mask R-CNN's heads: three stages, each of which refines the boxes of the one before (Cai & Vasconcelos, 2019)."""

from math import gcd
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection.faster_rcnn import FastRCNNConvFCHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.roi_heads import RoIHeads, maskrcnn_inference, maskrcnn_loss
from torchvision.ops import MultiScaleRoIAlign, clip_boxes_to_image

OVERLAPS = (0.5, 0.6, 0.7)
"""Intersection over union from which on a box is an object's, by stage."""
CODE_WEIGHTS = ((10.0, 10.0, 5.0, 5.0), (20.0, 20.0, 10.0, 10.0), (30.0, 30.0, 15.0, 15.0))
"""By which offsets (x, y, log width, log height) are multiplied, by stage."""
LOSS_WEIGHTS = (1.0, 0.5, 0.25)

Sizes = list[tuple[int, int]]
Targets = list[dict[str, Tensor]]


class AgnosticPredictor(nn.Module):
    """Features (n, features) -> logits (n, 1 + classes), and codes (n, 4) of one box, whatever the class."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.cls_score = nn.Linear(features, 1 + classes)
        self.bbox_pred = nn.Linear(features, 4)
        for linear, deviation in ((self.cls_score, 0.01), (self.bbox_pred, 0.001)):
            nn.init.normal_(linear.weight, std=deviation)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """In float32 at least."""
        return full_precision(self.cls_score(x)), full_precision(self.bbox_pred(x))


def full_precision(x: Tensor) -> Tensor:
    """In float32 at least: boxes inherit the type of their codes, and half precision has no room for coordinates."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class CascadeHeads(RoIHeads):  # type: ignore[misc]
    """Three stages of boxes and masks.

    Each stage is a `RoIHeads` with its own overlap, its own weights of codes, and its own heads for boxes and for masks. In
    training, stage 1 takes sampled proposals; the others take the same boxes as the stage before left them, without
    gradient. In evaluation, scores and masks are means over the stages, boxes are the last stage's.

    Args:
        classes: without background.
        width: channels of the maps, of convolutions, and a quarter of the hidden layer's.
        box_roi_pool: cuts boxes out of the maps, side x side cells.
        mask_roi_pool: likewise, for masks.
        side: cells a side of what `box_roi_pool` gives.
        options: what `RoIHeads` takes besides: batch_size_per_image, positive_fraction, score_thresh, nms_thresh,
            detections_per_img.
    """

    def __init__(
        self,
        classes: int,
        *,
        width: int,
        box_roi_pool: MultiScaleRoIAlign,
        mask_roi_pool: MultiScaleRoIAlign,
        side: int,
        **options: Any,
    ) -> None:
        def norm(channels: int) -> nn.Module:
            return nn.GroupNorm(gcd(32, channels), channels)

        super().__init__(box_roi_pool, None, None, OVERLAPS[0], OVERLAPS[0], bbox_reg_weights=None, **options)
        self.mask_roi_pool = mask_roi_pool
        self.stages = nn.ModuleList(
            RoIHeads(
                box_roi_pool,
                FastRCNNConvFCHead((width, side, side), [width] * 4, [4 * width], norm_layer=norm),
                AgnosticPredictor(4 * width, classes),
                overlap,
                overlap,
                bbox_reg_weights=weights,
                mask_roi_pool=mask_roi_pool,
                mask_head=MaskRCNNHeads(width, [width] * 4, 1),
                mask_predictor=MaskRCNNPredictor(width, width, 1 + classes),
                **options,
            )
            for overlap, weights in zip(OVERLAPS, CODE_WEIGHTS, strict=True)
        )

    def forward(
        self, features: dict[str, Tensor], proposals: list[Tensor], image_shapes: Sizes, targets: Targets | None = None
    ) -> tuple[Targets, dict[str, Tensor]]:
        """As `RoIHeads`: (nothing, losses) in training, (detections, nothing) in evaluation.

        Args:
            features: maps (B, width, h, w) by name.
            proposals: boxes (n, 4) of each picture.
            image_shapes: height and width of each picture, without what it is padded with.
            targets: "boxes" (n, 4), "labels" (n,), "masks" (n, H, W) of each picture.
        """
        if self.training:
            if targets is None:
                raise ValueError("targets are needed in training")
            return [], self._losses(features, proposals, image_shapes, targets)
        return self._detections(features, proposals, image_shapes), {}

    def _losses(
        self, features: dict[str, Tensor], boxes: list[Tensor], image_shapes: Sizes, targets: Targets
    ) -> dict[str, Tensor]:
        losses: dict[str, Tensor] = {}
        for number, (stage, weight) in enumerate(zip(self._stages(), LOSS_WEIGHTS, strict=True), 1):
            if number == 1:
                boxes, matched, labels, wanted = stage.select_training_samples(boxes, targets)
            else:
                boxes = [found[((found[:, 2:] - found[:, :2]) > 0).all(1)] for found in boxes]
                matched, labels, wanted = assign(stage, boxes, targets)
            logits, codes = self._predict(stage, features, boxes, image_shapes)
            of_class, of_box = box_losses(logits, codes, torch.cat(labels), torch.cat(tuple(wanted)))
            of_mask = self._mask_loss(stage, features, boxes, image_shapes, targets, matched, labels)
            losses[f"loss_classifier_{number}"] = weight * of_class
            losses[f"loss_box_{number}"] = weight * of_box
            losses[f"loss_mask_{number}"] = weight * of_mask
            boxes = refine(stage, codes, boxes, image_shapes)
        return losses

    def _stages(self) -> list[RoIHeads]:
        return [stage for stage in self.stages if isinstance(stage, RoIHeads)]

    @staticmethod
    def _predict(
        stage: RoIHeads, features: dict[str, Tensor], boxes: list[Tensor], image_shapes: Sizes
    ) -> tuple[Tensor, Tensor]:
        """Logits (n, 1 + classes) and codes (n, 4) of all pictures' boxes."""
        predicted: tuple[Tensor, Tensor] = stage.box_predictor(
            stage.box_head(stage.box_roi_pool(features, boxes, image_shapes))
        )
        return predicted

    @staticmethod
    def _mask_loss(
        stage: RoIHeads,
        features: dict[str, Tensor],
        boxes: list[Tensor],
        image_shapes: Sizes,
        targets: Targets,
        matched: list[Tensor],
        labels: list[Tensor],
    ) -> Tensor:
        """Over boxes that are an object's; 0 if there is none."""
        positive = [label > 0 for label in labels]
        boxes = [found[chosen] for found, chosen in zip(boxes, positive, strict=True)]
        matched = [found[chosen] for found, chosen in zip(matched, positive, strict=True)]
        logits = stage.mask_predictor(stage.mask_head(stage.mask_roi_pool(features, boxes, image_shapes)))
        masks, classes = [target["masks"] for target in targets], [target["labels"] for target in targets]
        loss: Tensor = maskrcnn_loss(logits, boxes, masks, classes, matched)
        return loss

    def _detections(self, features: dict[str, Tensor], boxes: list[Tensor], image_shapes: Sizes) -> Targets:
        stages = self._stages()
        scores = []
        for number, stage in enumerate(stages):
            logits, codes = self._predict(stage, features, boxes, image_shapes)
            scores.append(logits.softmax(-1))
            if number < len(stages) - 1:
                boxes = refine(stage, codes, boxes, image_shapes)
        mean = torch.stack(scores).mean(0)
        # softmax of the logarithm gives the mean back; the one box stands for every class
        found = stages[-1].postprocess_detections(mean.log(), codes.repeat(1, mean.shape[1]), boxes, image_shapes)
        results = [{"boxes": boxes, "labels": labels, "scores": scores} for boxes, scores, labels in zip(*found, strict=True)]
        cut = self.mask_roi_pool(features, [result["boxes"] for result in results], image_shapes)
        labels = [result["labels"] for result in results]
        masks = [maskrcnn_inference(stage.mask_predictor(stage.mask_head(cut)), labels) for stage in stages]
        for result, *of_stages in zip(results, *masks, strict=True):
            result["masks"] = torch.stack(of_stages).mean(0)
        return results


def assign(stage: RoIHeads, boxes: list[Tensor], targets: Targets) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Which object each box is of, at the overlap of a stage.

    Args:
        boxes: (n, 4) of each picture, any number, none included.

    Returns:
        For each picture the object's number (n,), its class (n,), 0 for background, and the codes (n, 4) that lead to it.
    """
    matched, labels, wanted = [], [], []
    for found, target in zip(boxes, targets, strict=True):
        objects = target["boxes"].to(found.dtype)
        if not len(found) or not len(objects):
            nothing = torch.zeros(len(found), dtype=torch.int64, device=found.device)
            numbers, classes, codes = nothing, nothing, torch.zeros_like(found)
        else:
            (numbers,), (classes,) = stage.assign_targets_to_proposals([found], [objects], [target["labels"]])
            (codes,) = stage.box_coder.encode([objects[numbers]], [found])
        matched.append(numbers)
        labels.append(classes)
        wanted.append(codes)
    return matched, labels, wanted


def refine(stage: RoIHeads, codes: Tensor, boxes: list[Tensor], image_shapes: Sizes) -> list[Tensor]:
    """Boxes (n, 4) of each picture, moved as a stage's codes say, clipped to the picture, without gradient."""
    moved = stage.box_coder.decode(codes.detach(), boxes).reshape(-1, 4).split([len(found) for found in boxes])
    return [clip_boxes_to_image(found, size) for found, size in zip(moved, image_shapes, strict=True)]


def box_losses(logits: Tensor, codes: Tensor, labels: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy over all boxes, and smooth L1 of those that are an object's; both are divided by the number of all.

    Args:
        logits: (n, 1 + classes).
        codes, wanted: (n, 4).
        labels: (n,), 0 for background.
    """
    count = max(1, len(labels))
    positive = labels > 0
    of_class = F.cross_entropy(logits, labels, reduction="sum") / count
    of_box = F.smooth_l1_loss(codes[positive], wanted[positive], reduction="sum") / count
    return of_class, of_box
