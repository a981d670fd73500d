"""COCO's average precision (mAP) of boxes and masks, by pycocotools."""

from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import numpy as np
from pycocotools import mask as rle
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torch import Tensor

NAMES = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large")
"""The first six numbers of COCO's summary."""


def to_results(
    image_id: int, detection: Mapping[str, Tensor], category_ids: Sequence[int], threshold: float = 0.5
) -> list[dict[str, Any]]:
    """Detections of one image in the format of COCO's result files.

    Args:
        image_id: of the image.
        detection: "boxes" (n, 4) as x1, y1, x2, y2, "labels" (n,) from 1 on, "scores" (n,), and "masks" (n, 1, H, W) in 0..1
            unless there are boxes alone.
        category_ids: COCO's category ids; label 1 is the first.
        threshold: probability from which on a pixel belongs to a mask.
    """
    corners = detection["boxes"].detach().cpu().double()
    boxes = [[x, y, right - x, below - y] for x, y, right, below in corners.tolist()]
    rows = zip(boxes, detection["labels"].tolist(), detection["scores"].tolist(), strict=True)
    results: list[dict[str, Any]] = [
        {"image_id": image_id, "category_id": category_ids[label - 1], "bbox": box, "score": score}
        for box, label, score in rows
    ]
    if "masks" in detection:
        masks = (detection["masks"][:, 0] > threshold).cpu().numpy().astype(np.uint8)
        for result, mask in zip(results, masks, strict=True):
            code = rle.encode(np.asfortranarray(mask))
            size = [int(side) for side in code["size"]]
            result["segmentation"] = {"size": size, "counts": code["counts"].decode("ascii")}
    return results


def average_precision(ground_truth: COCO, results: Sequence[Mapping[str, Any]], *, masks: bool = True) -> dict[str, Any]:
    """COCO's scores in percent, for boxes, and for masks if there are any; at most 100 objects of each class on each image.

    Args:
        ground_truth: the annotated objects. It is not changed.
        results: detections, from `to_results`. Those on images that `ground_truth` does not have do not count.
        masks: score the masks, too; otherwise neither the ground truth nor the results need any.

    Returns:
        "box_ap" (mean over IoU 0.50 to 0.95), "box_ap50", "box_ap75", "box_ap_small", "box_ap_medium", "box_ap_large", and
        "box_ap_by_class", a list in the order of `ground_truth.getCatIds()`; the same with "mask". None where the ground
        truth has no such object (of that size, of that class).
    """
    images = set(ground_truth.getImgIds())
    results = [result for result in results if result["image_id"] in images]
    scores: dict[str, Any] = {}
    with redirect_stdout(StringIO()):
        # The evaluation turns polygons into run-length codes in place: hence copies.
        annotations = ground_truth.dataset.get("annotations", [])
        truth = _with_objects(ground_truth, [{"iscrowd": 0, **annotation} for annotation in annotations])
        for kind, name in (("bbox", "box"), ("segm", "mask"))[: 1 + masks]:
            sized = [{**result, "iscrowd": 0, "area": _area(result, kind)} for result in results]
            detected = _with_objects(ground_truth, sized)
            scores |= {f"{name}_{key}": value for key, value in _evaluate(truth, detected, kind).items()}
    return scores


def _with_objects(ground_truth: COCO, objects: list[dict[str, Any]]) -> COCO:
    """The same images and classes with other objects, with ids from 1: pycocotools takes id 0 for "not matched"."""
    coco = COCO()
    coco.dataset = {
        "images": ground_truth.dataset["images"],
        "categories": ground_truth.dataset["categories"],
        "annotations": [{**entry, "id": number} for number, entry in enumerate(objects, 1)],
    }
    coco.createIndex()
    return coco


def _area(result: Mapping[str, Any], kind: str) -> float:
    """The area that makes a result small, medium or large: of its box for boxes, of its mask for masks."""
    return float(result["bbox"][2] * result["bbox"][3] if kind == "bbox" else rle.area(result["segmentation"]))


def _evaluate(truth: COCO, detected: COCO, kind: str) -> dict[str, float | list[float | None] | None]:
    evaluator = COCOeval(truth, detected, kind)
    evaluator.evaluate()
    evaluator.accumulate()
    evaluator.summarize()
    precision = evaluator.eval["precision"][:, :, :, 0, -1]  # (IoU, recall, class) of all sizes, 100 objects
    scores: dict[str, float | list[float | None] | None] = {
        name: None if value < 0 else 100 * float(value) for name, value in zip(NAMES, evaluator.stats[:6], strict=True)
    }
    # By id: pycocotools sorts the classes, and the file need not.
    by_class = dict(zip(evaluator.params.catIds, np.moveaxis(precision, 2, 0), strict=True))
    scores["ap_by_class"] = [
        None if (by_class[number] < 0).all() else 100 * float(by_class[number].mean()) for number in truth.getCatIds()
    ]
    return scores
