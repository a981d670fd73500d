"""Scores of label maps, against counting by hand."""

import pytest
import torch

from inline_attention.dense.overlap import OverlapMeter


def scored(labels, truth, classes):
    meter = OverlapMeter(classes)
    meter.add(torch.tensor(labels), torch.tensor(truth))
    return meter.result()


def test_the_truth_against_itself_is_all_right():
    truth = torch.randint(0, 4, (13, 7))
    meter = OverlapMeter(6)
    meter.add(truth, truth)
    assert meter.result() == {"miou": 100, "macc": 100, "aacc": 100, "iou": [100, 100, 100, 100, None, None]}


def test_a_shifted_square_by_hand():
    truth = torch.zeros(10, 10, dtype=torch.long)
    truth[2:6, 2:6] = 1
    meter = OverlapMeter(2)
    meter.add(truth.roll(1, 1), truth)
    found = meter.result()
    # 12 of 16 pixels are in both squares, 20 in either; outside 80 in both, 88 in either.
    assert meter.counts.tolist() == [[80, 4], [4, 12]]
    assert found["iou"] == [pytest.approx(100 * 80 / 88), pytest.approx(60)]
    assert found["miou"] == pytest.approx((100 * 80 / 88 + 60) / 2)
    assert found["macc"] == pytest.approx((100 * 80 / 84 + 75) / 2)
    assert found["aacc"] == pytest.approx(92)


def test_rows_are_the_truth():
    meter = OverlapMeter(3)
    meter.add(torch.tensor([[2, 2, 1]]), torch.tensor([[0, 0, 1]]))
    assert meter.counts.tolist() == [[0, 0, 2], [0, 1, 0], [0, 0, 0]]


def test_ignored_pixels_count_for_nothing_whatever_is_said_there():
    with_ignored = scored([[0, 1, 2, 2, 77]], [[0, 1, 255, 255, 255]], 3)
    assert with_ignored == scored([[0, 1]], [[0, 1]], 3)
    assert with_ignored["iou"] == [100, 100, None]


def test_a_class_that_is_said_but_not_there_counts_in_miou_and_not_in_macc():
    found = scored([[0, 0, 0, 2]], [[0, 0, 0, 0]], 4)
    assert found["iou"] == [75, None, 0, None]
    assert found["miou"] == 37.5, "classes 0 and 2"
    assert found["macc"] == 75, "class 0 alone"
    assert found["aacc"] == 75


def test_a_class_that_is_there_but_never_said_counts_in_both():
    found = scored([[0, 0, 0, 0]], [[0, 0, 0, 1]], 2)
    assert (found["iou"], found["miou"], found["macc"]) == ([75, 0], 37.5, 50)


def test_pictures_are_summed_before_they_are_divided_and_so_are_processes():
    pictures = [(torch.randint(0, 3, size), torch.randint(0, 3, size)) for size in ((4, 5), (9, 2), (30, 30))]
    whole, parts = OverlapMeter(3), [OverlapMeter(3) for _ in pictures]
    for part, picture in zip(parts, pictures, strict=True):
        whole.add(*picture)
        part.add(*picture)
    assert whole.counts.dtype == torch.int64
    assert int(whole.counts.sum()) == 20 + 18 + 900
    total = OverlapMeter(3)
    total.counts = sum(part.counts for part in parts)
    assert total.result() == whole.result()
    together = [torch.cat([picture[kind].flatten() for picture in pictures])[None] for kind in (0, 1)]
    assert scored(together[0].tolist(), together[1].tolist(), 3) == whole.result()


def test_labels_of_eight_bits_do_not_overflow():
    meter = OverlapMeter(150)
    truth = torch.full((3, 3), 149, dtype=torch.uint8)
    meter.add(truth.clone(), truth)
    assert int(meter.counts[149, 149]) == 9


@pytest.mark.parametrize(
    ("labels", "truth", "says"),
    [
        ([[0, 1]], [[0, 3]], "the truth has a class 3: classes are 0 to 2, and 255 for ignored"),
        ([[0, -1]], [[0, 1]], "the prediction has a class -1: classes are 0 to 2, and 255 for ignored"),
        ([[0, 255]], [[0, 1]], "the prediction has a class 255: classes are 0 to 2, and 255 for ignored"),
        ([[0, 1]], [[0], [1]], r"predicted labels are \(1, 2\) and the truth is \(2, 1\): sizes must agree"),
        ([[0, 1]], [[255, 255]], "there is no pixel to score: no picture was counted, or all of the truth is ignored"),
    ],
)
def test_what_cannot_be_scored_is_said_in_one_line(labels, truth, says):
    with pytest.raises(ValueError, match=f"^{says}$"):
        scored(labels, truth, 3)
