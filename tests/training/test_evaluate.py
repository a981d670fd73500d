"""Scores, against counting by hand."""

import pytest
import torch
from accelerate import Accelerator

from inline_attention.data.loader import Batch
from inline_attention.training.classify import ClassMeter
from inline_attention.training.task import evaluate_batches


class Says(torch.nn.Module):
    """Takes the logits from the first pixels of each image."""

    def forward(self, pixels):
        return pixels[:, 0, 0]


def batch(logits, labels, valid=None, bad=()):
    pixels = torch.tensor(logits, dtype=torch.float)[:, None, None]
    valid = torch.ones(len(labels), dtype=torch.bool) if valid is None else torch.tensor(valid)
    return Batch(pixels, torch.tensor(labels), valid, tuple(bad))


@pytest.fixture(scope="module")
def accelerator():
    return Accelerator(cpu=True)


def test_scores_by_hand(accelerator):
    eye = (torch.eye(7) * 10).tolist()
    batches = [batch([eye[0], eye[1], eye[2]], [0, 1, 3]), batch([eye[4], eye[4]], [4, 5], [True, False])]
    score = evaluate_batches(Says(), iter(batches), ClassMeter(7, accelerator), accelerator, skip_bad=False)
    assert score.images == 4
    assert score.metrics["top1"] == 75
    assert score.details["per_class"] == [100, 100, None, 0, 100, None, None]
    assert score.details["confusion"][3][2] == 1
    assert sum(map(sum, score.details["confusion"])) == 4
    right, wrong = -torch.log_softmax(torch.tensor(eye[0]), 0)[0], -torch.log_softmax(torch.tensor(eye[0]), 0)[1]
    assert score.metrics["loss"] == pytest.approx(float(3 * right + wrong) / 4)
    assert score.metrics["top5"] == 100, "the third is among the five likeliest, ties broken by place"


def test_top5_counts_the_five_likeliest(accelerator):
    falling = [7.0, 6, 5, 4, 3, 2, 1]
    score = evaluate_batches(
        Says(), iter([batch([falling] * 7, list(range(7)))]), ClassMeter(7, accelerator), accelerator, skip_bad=False
    )
    assert (score.metrics["top1"], score.metrics["top5"]) == (pytest.approx(100 / 7), pytest.approx(500 / 7))


def test_bad_images_stop_or_are_left_out(accelerator):
    bad = batch([[1.0, 0], [1.0, 0]], [0, 0], [True, False], ["a.png cannot be read: cut"])
    with pytest.raises(ValueError, match=r"a.png cannot be read: cut \(--skip-bad goes on without such images\)"):
        evaluate_batches(Says(), iter([bad]), ClassMeter(2, accelerator), accelerator, skip_bad=False)
    score = evaluate_batches(Says(), iter([bad]), ClassMeter(2, accelerator), accelerator, skip_bad=True)
    assert (score.images, score.bad) == (1, ("a.png cannot be read: cut",))
    with pytest.raises(ValueError, match="there is no image to evaluate on"):
        evaluate_batches(Says(), iter([]), ClassMeter(2, accelerator), accelerator, skip_bad=True)
