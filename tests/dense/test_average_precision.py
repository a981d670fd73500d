"""COCO's scores, at places where they can be computed by hand."""

import json
from contextlib import redirect_stdout
from copy import deepcopy
from io import StringIO

import numpy as np
import pytest
import torch
from pycocotools import mask as rle
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from inline_attention.dense.average_precision import average_precision, to_results

CATEGORIES = [{"id": 18, "name": "dog"}, {"id": 3, "name": "car"}, {"id": 44, "name": "bottle"}]
"""Neither sorted nor without gaps, as a file may have them."""
IDS = [18, 3, 44]
SIDE = 400


def polygon(x, y, width, height):
    return [[x, y, x + width, y, x + width, y + height, x, y + height]]


def thing(image_id, category_id, box, **more):
    area = box[2] * box[3]
    return {
        "image_id": image_id,
        "category_id": category_id,
        "bbox": box,
        "segmentation": polygon(*box),
        "area": area,
        "iscrowd": 0,
        **more,
    }


def truth(*things, images=(1, 2, 3)):
    """COCO in memory; its numbers of objects begin at 0, which COCO's own code cannot tell from "not found"."""
    coco = COCO()
    coco.dataset = {
        "images": [{"id": number, "height": SIDE, "width": SIDE} for number in images],
        "categories": CATEGORIES,
        "annotations": [{"id": number, **one} for number, one in enumerate(things)],
    }
    with redirect_stdout(StringIO()):
        coco.createIndex()
    return coco


def mask(x, y, width, height):
    found = torch.zeros(SIDE, SIDE)
    found[y : y + height, x : x + width] = 0.9
    return found


def detected(*objects):
    """What a detector gives: objects as (box as x, y, width, height; label; score)."""
    boxes = torch.tensor([box for box, _, _ in objects], dtype=torch.float).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    masks = torch.stack([mask(*box) for box, _, _ in objects])[:, None] if objects else torch.zeros(0, 1, SIDE, SIDE)
    labels = torch.tensor([label for _, label, _ in objects], dtype=torch.long)
    return {"boxes": boxes, "labels": labels, "scores": torch.tensor([score for _, _, score in objects]), "masks": masks}


def found(image_id, *objects):
    return to_results(image_id, detected(*objects), IDS)


def test_results_are_as_coco_writes_them():
    (result,) = found(2, ([10, 20, 30, 40], 2, 0.75))
    assert json.loads(json.dumps(result)) == result
    assert (result["image_id"], result["category_id"], result["score"]) == (2, 3, 0.75)
    assert result["bbox"] == [10, 20, 30, 40]
    assert isinstance(result["segmentation"]["counts"], str)
    assert result["segmentation"]["size"] == [SIDE, SIDE]
    assert rle.area(result["segmentation"]) == 30 * 40
    assert rle.toBbox(result["segmentation"]).tolist() == [10, 20, 30, 40]
    assert to_results(2, detected(), IDS) == []
    (empty,) = to_results(2, detected(([10, 20, 30, 40], 2, 0.75)), IDS, threshold=0.95)
    assert rle.area(empty["segmentation"]) == 0


def test_the_truth_against_itself_scores_100_with_polygons_codes_a_crowd_and_an_empty_image():
    region = np.zeros((SIDE, SIDE), np.uint8, order="F")
    region[50:90, 60:160] = 1
    code = rle.encode(region)
    crowd = thing(2, 18, [0, 200, 300, 100], iscrowd=1)
    crowd["segmentation"] = {"size": [SIDE, SIDE], "counts": [200, 100, 100 * SIDE - 300, SIDE * (SIDE - 100)]}
    ground_truth = truth(
        thing(1, 18, [10, 10, 20, 20]),  # small: below 32 x 32
        thing(1, 18, [100, 10, 50, 50]),
        thing(1, 44, [100, 100, 150, 200]),  # large: above 96 x 96
        thing(2, 18, [60, 50, 100, 40], segmentation={"size": [SIDE, SIDE], "counts": code["counts"].decode()}),
        crowd,
    )
    before = deepcopy(ground_truth.dataset)
    results = [
        *found(1, ([10, 10, 20, 20], 1, 0.9), ([100, 10, 50, 50], 1, 0.8), ([100, 100, 150, 200], 3, 0.1)),
        *found(2, ([60, 50, 100, 40], 1, 0.5)),
    ]
    written = deepcopy(results)
    scores = average_precision(ground_truth, results)
    for kind in ("box", "mask"):
        names = [f"{kind}_ap{rest}" for rest in ("", "50", "75", "_small", "_medium", "_large")]
        assert {name: scores[name] for name in names} == {name: pytest.approx(100) for name in names}
        assert scores[f"{kind}_ap_by_class"] == [pytest.approx(100), None, pytest.approx(100)], "dog, car, bottle"
    assert len(scores) == 14
    assert ground_truth.dataset == before
    assert results == written


@pytest.mark.parametrize(
    ("shift", "thresholds", "ap75"),
    [(10, 7, 100), (25, 3, 0)],  # IoU 90 / 110 = 0.818: 0.50 to 0.80; IoU 75 / 125 = 0.6: 0.50 to 0.60
)
def test_shifted_copies_match_up_to_their_overlap(shift, thresholds, ap75):
    boxes = [[20, 30, 100, 80], [150, 200, 100, 150]]
    ground_truth = truth(*(thing(1, 18, box) for box in boxes))
    scores = average_precision(ground_truth, found(1, *(([x + shift, y, w, h], 1, 0.9) for x, y, w, h in boxes)))
    for kind in ("box", "mask"):
        assert scores[f"{kind}_ap"] == pytest.approx(10 * thresholds)
        assert (scores[f"{kind}_ap50"], scores[f"{kind}_ap75"]) == (pytest.approx(100), pytest.approx(ap75))
        assert scores[f"{kind}_ap_small"] is None


def test_a_false_alarm_ranked_first_costs_precision():
    ground_truth = truth(thing(1, 18, [20, 20, 60, 60]), thing(2, 18, [20, 20, 60, 60]))
    alarm = found(3, ([200, 200, 50, 50], 1, 0.99))
    hits = [*found(1, ([20, 20, 60, 60], 1, 0.9)), *found(2, ([20, 20, 60, 60], 1, 0.8))]
    # Precision is 1/2 at recall 1/2 and 2/3 at recall 1; with the best to the right of each recall, 2/3 everywhere.
    assert average_precision(ground_truth, alarm + hits)["box_ap"] == pytest.approx(200 / 3)
    # Ranked between the hits: 1 up to recall 0.5, which are 51 of 101 points, and 2/3 at the other 50.
    alarm[0]["score"] = 0.85
    assert average_precision(ground_truth, alarm + hits)["mask_ap"] == pytest.approx(100 * (51 + 50 * 2 / 3) / 101)
    alarm[0]["score"] = 0.1
    assert average_precision(ground_truth, alarm + hits)["box_ap"] == pytest.approx(100)


def test_missed_objects_cost_recall():
    ground_truth = truth(thing(1, 18, [20, 20, 60, 60]), thing(2, 18, [20, 20, 60, 60]))
    assert average_precision(ground_truth, found(1, ([20, 20, 60, 60], 1, 0.9)))["box_ap"] == pytest.approx(100 * 51 / 101)


def test_detections_on_a_crowd_are_neither_right_nor_wrong():
    ground_truth = truth(thing(1, 18, [20, 20, 60, 60]), thing(1, 18, [200, 200, 150, 150], iscrowd=1))
    on_the_crowd = found(1, ([210, 210, 40, 40], 1, 0.99), ([260, 260, 40, 40], 1, 0.98))
    hit, beside = found(1, ([20, 20, 60, 60], 1, 0.5)), found(1, ([100, 100, 40, 40], 1, 0.99))
    for kind in ("box", "mask"):
        assert average_precision(ground_truth, on_the_crowd + hit)[f"{kind}_ap"] == pytest.approx(100)
        assert average_precision(ground_truth, on_the_crowd)[f"{kind}_ap"] == 0
        assert average_precision(ground_truth, beside + hit)[f"{kind}_ap"] == pytest.approx(50)


def test_random_objects_score_as_in_pycocotools_own_loading_of_results():
    draw = np.random.default_rng(0)
    boxes = [[int(side) for side in draw.integers((0, 0, 10, 10), (200, 200, 150, 150))] for _ in range(40)]
    ground_truth = truth(*(thing(1 + n % 3, IDS[n % 2], box, iscrowd=int(n % 9 == 8)) for n, box in enumerate(boxes)))
    results = []
    for number, (x, y, width, height) in enumerate(boxes):
        moved = [x + int(draw.integers(0, 12)), y + int(draw.integers(0, 12)), width, height]
        results += found(
            1 + number % 3, (moved, 1 + number % 2, float(draw.random())), (boxes[-number], 1, float(draw.random()))
        )
    scores = average_precision(ground_truth, results)
    for annotation in ground_truth.dataset["annotations"]:
        annotation["id"] += 1  # 0 would be lost
    for kind, name in (("bbox", "box"), ("segm", "mask")):
        written = [{key: value for key, value in result.items() if kind == "bbox" or key != "bbox"} for result in results]
        with redirect_stdout(StringIO()):
            ground_truth.createIndex()
            evaluator = COCOeval(ground_truth, ground_truth.loadRes(written), kind)
            evaluator.evaluate()
            evaluator.accumulate()
            evaluator.summarize()
        names = [f"{name}_ap{rest}" for rest in ("", "50", "75", "_small", "_medium", "_large")]
        assert [scores[name] for name in names] == pytest.approx((100 * evaluator.stats[:6]).tolist())
        assert 5 < scores[f"{name}_ap"] < 95


def test_boxes_and_masks_are_scored_separately():
    ground_truth = truth(thing(1, 18, [20, 20, 60, 60]))
    right_box = detected(([20, 20, 60, 60], 1, 0.9))
    right_box["masks"] = mask(200, 200, 60, 60)[None, None]
    scores = average_precision(ground_truth, to_results(1, right_box, IDS))
    assert (scores["box_ap"], scores["mask_ap"]) == (pytest.approx(100), 0)


def test_a_mask_is_small_by_its_own_area_and_not_by_its_box():
    """A false alarm beyond the sizes in question is no alarm: its mask is small, its box is not."""
    ground_truth = truth(thing(1, 18, [20, 20, 60, 60]))
    alarm = detected(([200, 200, 60, 60], 1, 0.99))
    alarm["masks"] = mask(200, 200, 10, 10)[None, None]
    scores = average_precision(ground_truth, [*to_results(1, alarm, IDS), *found(1, ([20, 20, 60, 60], 1, 0.5))])
    assert scores["box_ap_medium"] == pytest.approx(50)
    assert scores["mask_ap_medium"] == pytest.approx(100)


def test_the_second_hit_on_an_object_is_wrong():
    ground_truth = truth(thing(1, 18, [20, 20, 60, 60]), thing(2, 18, [20, 20, 60, 60]))
    twice = found(1, ([20, 20, 60, 60], 1, 0.9), ([20, 20, 60, 60], 1, 0.8))
    scores = average_precision(ground_truth, [*twice, *found(2, ([20, 20, 60, 60], 1, 0.7))])
    assert scores["box_ap"] == pytest.approx(100 * (51 + 50 * 2 / 3) / 101)


def test_classes_are_scored_separately_and_in_the_order_of_the_file():
    ground_truth = truth(thing(1, 3, [20, 20, 60, 60]), thing(1, 44, [120, 20, 60, 60]))
    scores = average_precision(ground_truth, found(1, ([20, 20, 60, 60], 1, 0.9), ([120, 20, 60, 60], 3, 0.9)))
    assert ground_truth.getCatIds() == IDS
    assert scores["box_ap_by_class"] == [None, 0, pytest.approx(100)], "no dog is there, the car was called a dog"
    assert scores["mask_ap"] == pytest.approx(50)


def test_no_detections_score_zero(capfd):
    scores = average_precision(truth(thing(1, 18, [20, 20, 60, 60])), [])
    assert (scores["box_ap"], scores["mask_ap50"], scores["box_ap_medium"]) == (0, 0, 0)
    assert scores["mask_ap_large"] is None
    assert scores["box_ap_by_class"] == [0, None, None]
    assert capfd.readouterr() == ("", "")


def test_no_objects_score_none():
    scores = average_precision(truth(), found(1, ([20, 20, 60, 60], 1, 0.9)))
    assert scores["box_ap"] is None
    assert scores["mask_ap_by_class"] == [None, None, None]


def test_other_images_do_not_count():
    ground_truth = truth(thing(1, 18, [20, 20, 60, 60]))
    results = [*found(77, ([20, 20, 60, 60], 1, 0.99)), *found(1, ([20, 20, 60, 60], 1, 0.9))]
    assert average_precision(ground_truth, results)["box_ap"] == pytest.approx(100)


def test_a_hundred_objects_of_a_class_count_on_an_image():
    ground_truth = truth(thing(1, 18, [20, 20, 60, 60]))
    (hit,) = found(1, ([20, 20, 60, 60], 1, 0.1))
    (alarm,) = found(1, ([200, 200, 60, 60], 1, 0.9))
    assert average_precision(ground_truth, [*[alarm] * 99, hit])["box_ap"] == pytest.approx(1)
    assert average_precision(ground_truth, [*[alarm] * 100, hit])["box_ap"] == 0
