"""The heads of Cascade R-CNN, masks optional: three stages that refine each other's boxes (Cai & Vasconcelos, 2019)."""

from math import gcd
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection.faster_rcnn import FastRCNNConvFCHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.roi_heads import RoIHeads, maskrcnn_inference, maskrcnn_loss
from torchvision.ops import MultiScaleRoIAlign, clip_boxes_to_image

from ..ops.sums import to_fp32

MATCH_IOUS = (0.5, 0.6, 0.7)
"""Intersection over union from which on a box is matched to an object, by stage."""
OFFSET_WEIGHTS = ((10.0, 10.0, 5.0, 5.0), (20.0, 20.0, 10.0, 10.0), (30.0, 30.0, 15.0, 15.0))
"""Factors of the box offsets (x, y, log width, log height), by stage: torchvision's `bbox_reg_weights`."""
LOSS_WEIGHTS = (1.0, 0.5, 0.25)

Sizes = list[tuple[int, int]]
Targets = list[dict[str, Tensor]]


class AgnosticPredictor(nn.Module):
    """Features (n, features) -> logits (n, 1 + classes), and offsets (n, 4) of one box, whatever the class."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.cls_score = nn.Linear(features, 1 + classes)
        self.bbox_pred = nn.Linear(features, 4)
        for linear, deviation in ((self.cls_score, 0.01), (self.bbox_pred, 0.001)):
            nn.init.normal_(linear.weight, std=deviation)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """In float32 or finer: boxes inherit the dtype of their offsets, and half precision is too coarse for coordinates."""
        return to_fp32(self.cls_score(x)), to_fp32(self.bbox_pred(x))


def mask_parts(pool: MultiScaleRoIAlign | None, width: int, classes: int) -> dict[str, nn.Module | None]:
    """The mask branch of `RoIHeads` as its arguments: `width` channels, classes without background. Nothing without a pool."""
    return {
        "mask_roi_pool": pool,
        "mask_head": None if pool is None else MaskRCNNHeads(width, [width] * 4, 1),
        "mask_predictor": None if pool is None else MaskRCNNPredictor(width, width, 1 + classes),
    }


class CascadeHeads(RoIHeads):  # type: ignore[misc]
    """Three stages of boxes, and of masks if there is a pool for them.

    Each stage is a `RoIHeads` with its own IoU threshold, its own offset weights, and its own heads for boxes and masks. In
    training, stage 1 takes sampled proposals; the others take the refined boxes of the stage before, without gradient. In
    evaluation, scores and masks are means over the stages, boxes are the last stage's.

    Args:
        classes: without background.
        width: channels of the maps and of convolutions; the hidden layer has four times as many.
        box_roi_pool: pools boxes from the maps, side x side cells.
        mask_roi_pool: the same for masks; None for boxes alone.
        side: output side of `box_roi_pool`.
        options: other arguments of `RoIHeads`: batch_size_per_image, positive_fraction, score_thresh, nms_thresh,
            detections_per_img.
    """

    def __init__(
        self,
        classes: int,
        *,
        width: int,
        box_roi_pool: MultiScaleRoIAlign,
        mask_roi_pool: MultiScaleRoIAlign | None,
        side: int,
        **options: Any,
    ) -> None:
        def norm(channels: int) -> nn.Module:
            return nn.GroupNorm(gcd(32, channels), channels)

        super().__init__(box_roi_pool, None, None, MATCH_IOUS[0], MATCH_IOUS[0], bbox_reg_weights=None, **options)
        self.mask_roi_pool = mask_roi_pool
        self.stages = nn.ModuleList(
            RoIHeads(
                box_roi_pool,
                FastRCNNConvFCHead((width, side, side), [width] * 4, [4 * width], norm_layer=norm),
                AgnosticPredictor(4 * width, classes),
                iou,
                iou,
                bbox_reg_weights=weights,
                **mask_parts(mask_roi_pool, width, classes),
                **options,
            )
            for iou, weights in zip(MATCH_IOUS, OFFSET_WEIGHTS, strict=True)
        )

    def forward(
        self, features: dict[str, Tensor], proposals: list[Tensor], image_shapes: Sizes, targets: Targets | None = None
    ) -> tuple[Targets, dict[str, Tensor]]:
        """As `RoIHeads`: (nothing, losses) in training, (detections, nothing) in evaluation.

        Args:
            features: maps (B, width, h, w) by name.
            proposals: boxes (n, 4) of each image.
            image_shapes: height and width of each image without padding.
            targets: "boxes" (n, 4), "labels" (n,), and for masks "masks" (n, H, W) of each image.
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
                boxes, matched, labels, offsets = stage.select_training_samples(boxes, targets)
            else:
                boxes = [image[((image[:, 2:] - image[:, :2]) > 0).all(1)] for image in boxes]  # without empty boxes
                matched, labels, offsets = assign(stage, boxes, targets)
            logits, predicted = self._predict(stage, features, boxes, image_shapes)
            of_class, of_box = box_losses(logits, predicted, torch.cat(labels), torch.cat(tuple(offsets)))
            losses[f"loss_classifier_{number}"] = weight * of_class
            losses[f"loss_box_{number}"] = weight * of_box
            if self.mask_roi_pool is not None:
                of_mask = self._mask_loss(stage, features, boxes, image_shapes, targets, matched, labels)
                losses[f"loss_mask_{number}"] = weight * of_mask
            boxes = refine(stage, predicted, boxes, image_shapes)
        return losses

    def _stages(self) -> list[RoIHeads]:
        return [stage for stage in self.stages if isinstance(stage, RoIHeads)]

    @staticmethod
    def _predict(
        stage: RoIHeads, features: dict[str, Tensor], boxes: list[Tensor], image_shapes: Sizes
    ) -> tuple[Tensor, Tensor]:
        """Logits (n, 1 + classes) and offsets (n, 4) of the boxes of all images."""
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
        """Over boxes that are matched to an object; 0 if there is none."""
        positive = [label > 0 for label in labels]
        boxes = [image[chosen] for image, chosen in zip(boxes, positive, strict=True)]
        matched = [image[chosen] for image, chosen in zip(matched, positive, strict=True)]
        logits = stage.mask_predictor(stage.mask_head(stage.mask_roi_pool(features, boxes, image_shapes)))
        masks, classes = [target["masks"] for target in targets], [target["labels"] for target in targets]
        loss: Tensor = maskrcnn_loss(logits, boxes, masks, classes, matched)
        return loss

    def _detections(self, features: dict[str, Tensor], boxes: list[Tensor], image_shapes: Sizes) -> Targets:
        stages = self._stages()
        scores = []
        for number, stage in enumerate(stages):
            logits, predicted = self._predict(stage, features, boxes, image_shapes)
            scores.append(logits.softmax(-1))
            if number < len(stages) - 1:
                boxes = refine(stage, predicted, boxes, image_shapes)
        mean = torch.stack(scores).mean(0)
        # softmax(log(mean)) = mean; the one box is repeated for every class
        kept = stages[-1].postprocess_detections(mean.log(), predicted.repeat(1, mean.shape[1]), boxes, image_shapes)
        results = [{"boxes": boxes, "labels": labels, "scores": scores} for boxes, scores, labels in zip(*kept, strict=True)]
        if self.mask_roi_pool is None:
            return results
        pooled = self.mask_roi_pool(features, [result["boxes"] for result in results], image_shapes)
        labels = [result["labels"] for result in results]
        masks = [maskrcnn_inference(stage.mask_predictor(stage.mask_head(pooled)), labels) for stage in stages]
        for result, *of_stages in zip(results, *masks, strict=True):
            result["masks"] = torch.stack(of_stages).mean(0)
        return results


def assign(stage: RoIHeads, boxes: list[Tensor], targets: Targets) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Match each box to an object, at the IoU threshold of a stage.

    Args:
        boxes: (n, 4) of each image, any number, none included.

    Returns:
        For each image the index of the object (n,), its class (n,), 0 for background, and the offsets (n, 4) to it.
    """
    matched, labels, offsets = [], [], []
    for image, target in zip(boxes, targets, strict=True):
        objects = target["boxes"].to(image.dtype)
        if not len(image) or not len(objects):
            none = torch.zeros(len(image), dtype=torch.int64, device=image.device)
            numbers, classes, moves = none, none, torch.zeros_like(image)
        else:
            (numbers,), (classes,) = stage.assign_targets_to_proposals([image], [objects], [target["labels"]])
            (moves,) = stage.box_coder.encode([objects[numbers]], [image])
        matched.append(numbers)
        labels.append(classes)
        offsets.append(moves)
    return matched, labels, offsets


def refine(stage: RoIHeads, offsets: Tensor, boxes: list[Tensor], image_shapes: Sizes) -> list[Tensor]:
    """Boxes (n, 4) of each image, moved by a stage's offsets, clipped to the image, without gradient."""
    moved = stage.box_coder.decode(offsets.detach(), boxes).reshape(-1, 4).split([len(image) for image in boxes])
    return [clip_boxes_to_image(image, size) for image, size in zip(moved, image_shapes, strict=True)]


def box_losses(logits: Tensor, offsets: Tensor, labels: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Cross entropy over all boxes, and smooth L1 of those that are matched to an object; both divided by the number of all.

    Args:
        logits: (n, 1 + classes).
        offsets, targets: (n, 4).
        labels: (n,), 0 for background.
    """
    count = max(1, len(labels))
    positive = labels > 0
    of_class = F.cross_entropy(logits, labels, reduction="sum") / count
    of_box = F.smooth_l1_loss(offsets[positive], targets[positive], reduction="sum") / count
    return of_class, of_box
