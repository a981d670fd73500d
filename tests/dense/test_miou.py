"""Scores of label maps, against counts made by hand."""

import pytest
import torch

from inline_attention.dense.miou import MeanIoU


def scored(labels, truth, classes):
    meter = MeanIoU(classes)
    meter.update(torch.tensor(labels), torch.tensor(truth))
    return meter.compute()


def test_a_perfect_prediction_scores_100():
    truth = torch.randint(0, 4, (13, 7))
    meter = MeanIoU(6)
    meter.update(truth, truth)
    assert meter.compute() == {"miou": 100, "macc": 100, "aacc": 100, "iou": [100, 100, 100, 100, None, None]}


def test_scores_of_a_shifted_square_counted_by_hand():
    truth = torch.zeros(10, 10, dtype=torch.long)
    truth[2:6, 2:6] = 1
    meter = MeanIoU(2)
    meter.update(truth.roll(1, 1), truth)
    found = meter.compute()
    # 12 of 16 pixels are in both squares, 20 in either; outside 80 in both, 88 in either.
    assert meter.confusion_matrix().tolist() == [[80, 4], [4, 12]]
    assert found["iou"] == [pytest.approx(100 * 80 / 88), pytest.approx(60)]
    assert found["miou"] == pytest.approx((100 * 80 / 88 + 60) / 2)
    assert found["macc"] == pytest.approx((100 * 80 / 84 + 75) / 2)
    assert found["aacc"] == pytest.approx(92)


def test_rows_of_the_confusion_matrix_are_true_classes():
    meter = MeanIoU(3)
    meter.update(torch.tensor([[2, 2, 1]]), torch.tensor([[0, 0, 1]]))
    assert meter.confusion_matrix().tolist() == [[0, 0, 2], [0, 1, 0], [0, 0, 0]]


def test_ignored_pixels_do_not_count_whatever_is_predicted_there():
    with_ignored = scored([[0, 1, 2, 2, 77]], [[0, 1, 255, 255, 255]], 3)
    assert with_ignored == scored([[0, 1]], [[0, 1]], 3)
    assert with_ignored["iou"] == [100, 100, None]


def test_a_class_that_is_predicted_but_absent_counts_in_miou_and_not_in_macc():
    found = scored([[0, 0, 0, 2]], [[0, 0, 0, 0]], 4)
    assert found["iou"] == [75, None, 0, None]
    assert found["miou"] == 37.5, "classes 0 and 2"
    assert found["macc"] == 75, "class 0 alone"
    assert found["aacc"] == 75


def test_a_class_that_is_present_but_never_predicted_counts_in_both():
    found = scored([[0, 0, 0, 0]], [[0, 0, 0, 1]], 2)
    assert (found["iou"], found["miou"], found["macc"]) == ([75, 0], 37.5, 50)


def test_images_are_summed_before_they_are_divided():
    images = [(torch.randint(0, 3, size), torch.randint(0, 3, size)) for size in ((4, 5), (9, 2), (30, 30))]
    whole = MeanIoU(3)
    for image in images:
        whole.update(*image)
    assert whole.confusion_matrix().dtype == torch.int64
    assert int(whole.confusion_matrix().sum()) == 20 + 18 + 900
    together = [torch.cat([image[kind].flatten() for image in images])[None] for kind in (0, 1)]
    assert scored(together[0].tolist(), together[1].tolist(), 3) == whole.compute()


def test_processes_are_summed_before_they_are_divided():
    """torchmetrics gathers the matrix of every process; here a second process that counted twice as much."""
    meter, truth, labels = MeanIoU(3), torch.tensor([[0, 1, 2, 2]]), torch.tensor([[0, 1, 1, 2]])
    meter.update(labels, truth)
    mine = meter.confusion_matrix()
    meter.update(labels, truth)
    meter.confusion.distributed_available_fn = lambda: True
    meter.confusion.dist_sync_fn = lambda matrix, group=None: [matrix, 2 * matrix]
    assert torch.equal(meter.confusion_matrix(), 6 * mine)
    assert meter.compute()["aacc"] == 75


def test_many_pixels_are_counted_exactly():
    """float32 cannot count beyond 2^24."""
    meter = MeanIoU(2)
    meter.update(torch.tensor([[0, 1]]), torch.tensor([[0, 1]]))
    meter.confusion.confmat = torch.tensor([[2**24 + 1, 1], [0, 7]])
    assert meter.compute()["iou"][0] == 100 * (2**24 + 1) / (2**24 + 2)


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def test_memory_is_small_in_deterministic_mode(deterministic):
    """torchmetrics would take pixels x classes^2 x 8 bytes, here 40 TB, unless it counts by `torch.bincount`."""
    meter, truth = MeanIoU(2000), torch.randint(0, 2000, (1200, 1000))
    meter.update(truth, truth)
    assert meter.compute()["aacc"] == 100
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.is_deterministic_algorithms_warn_only_enabled()


def test_without_an_image_it_raises():
    with pytest.raises(ValueError, match=r"^there is no pixel to score: no image was counted"):
        MeanIoU(3).compute()


def test_uint8_labels_do_not_overflow():
    meter = MeanIoU(150)
    truth = torch.full((3, 3), 149, dtype=torch.uint8)
    meter.update(truth.clone(), truth)
    assert int(meter.confusion_matrix()[149, 149]) == 9


@pytest.mark.parametrize(
    ("labels", "truth", "message"),
    [
        ([[0, 1]], [[0, 3]], "the truth has a class 3: classes are 0 to 2, and 255 for ignored"),
        ([[0, -1]], [[0, 1]], "the prediction has a class -1: classes are 0 to 2, and 255 for ignored"),
        ([[0, 255]], [[0, 1]], "the prediction has a class 255: classes are 0 to 2, and 255 for ignored"),
        ([[0, 1]], [[0], [1]], r"predicted labels are \(1, 2\) and the truth is \(2, 1\): sizes must agree"),
        ([[0, 1]], [[255, 255]], "there is no pixel to score: no image was counted, or all of the truth is ignored"),
    ],
)
def test_wrong_input_raises_one_line(labels, truth, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        scored(labels, truth, 3)
