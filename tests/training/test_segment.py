"""Segmentation through the one loop: losses and numbers by hand, a killed run, weights of a classifier."""

import math
from dataclasses import replace

import pytest
import torch
from accelerate import Accelerator
from torch import nn

from inline_attention.data.loader import evaluation_batches
from inline_attention.training.model_factory import build_model
from inline_attention.training.segment import pixel_loss
from inline_attention.training.task import evaluate_batches, make_task

from .small import metrics, weights
from .small_dense import run, segment_recipe, write_maps


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_maps(tmp_path_factory.mktemp("segment"))


def test_the_loss_is_over_labelled_pixels():
    logits = torch.tensor([[0.0, 0.0, 5.0], [0.0, math.log(3), 0.0]])[None, :, None]  # two classes, three pixels
    targets = torch.tensor([[[0, 1, 255]]])
    assert float(pixel_loss(logits, targets)) == pytest.approx((math.log(2) + math.log(4 / 3)) / 2)
    nothing = logits.clone().requires_grad_()
    loss = pixel_loss(nothing, torch.full((1, 1, 3), 255))
    loss.backward()
    assert loss == 0
    assert not nothing.grad.any()


def test_the_auxiliary_loss_has_its_weight(data):
    class Two(nn.Module):
        def forward(self, pixels):
            return torch.zeros(1, 3, 4, 4), torch.zeros(1, 3, 4, 4)

    task = make_task(segment_recipe(data, task={"head": "upernet", "auxiliary": 0.25}))
    batch = next(iter(batches(task)))
    one = replace(batch, targets=torch.zeros(1, 4, 4, dtype=torch.long))
    assert float(task.loss(Two(), one, 3)) == pytest.approx(1.25 * math.log(3))


def batches(task, **more):
    how = {"rank": 0, "processes": 1, "channels": 3, "workers": 0, **more}
    return evaluation_batches(task.open().val, task.transform(training=False), 2, **how)


class Oracle(nn.Module):
    """Knows the maps of the images it is shown, one after the other, but `moved` pixels to the right."""

    def __init__(self, truths, classes, moved=0):
        super().__init__()
        self.truths, self.classes, self.moved = iter(truths), classes, moved

    def forward(self, pixels):
        found = []
        for _ in pixels:
            truth = next(self.truths).roll(self.moved, 1)
            one = nn.functional.one_hot(truth.where(truth != 255, 0), self.classes)
            found.append(9 * one.permute(2, 0, 1).float())
        return torch.stack(found)


def test_truth_against_itself_is_100(data):
    task, accelerator = make_task(segment_recipe(data, data={"size": (40, 40)})), Accelerator(cpu=True)
    source = task.open()
    truths = [torch.from_numpy(source.val.load(index, 3)[1]).long() for index in range(len(source.val))]
    score = evaluate_batches(Oracle(truths, 3), batches(task), task.meter(source, accelerator), accelerator, skip_bad=False)
    assert {name: score.metrics[name] for name in ("miou", "macc", "aacc")} == {"miou": 100, "macc": 100, "aacc": 100}
    assert score.details["per_class"] == [100, 100, 100]
    moved = evaluate_batches(Oracle(truths, 3, 2), batches(task), task.meter(source, accelerator), accelerator, skip_bad=False)
    counts = torch.zeros(3, 3)
    for truth in truths:
        said = truth.where(truth != 255, 0).roll(2, 1)
        for row, column in zip(truth[truth != 255], said[truth != 255], strict=True):
            counts[row, column] += 1
    inside = counts.diagonal()
    by_hand = 100 * inside / (counts.sum(0) + counts.sum(1) - inside)
    assert moved.details["per_class"] == pytest.approx(by_hand.tolist(), abs=1e-4)
    assert moved.metrics["miou"] == pytest.approx(float(by_hand.mean()), abs=1e-4)
    assert moved.metrics["aacc"] == pytest.approx(float(100 * inside.sum() / counts.sum()), abs=1e-4)


@pytest.mark.parametrize("head", ["semantic_fpn", "upernet"])
def test_a_stopped_run_resumes_bit_for_bit(data, tmp_path, head):
    recipe = segment_recipe(data, task={"head": head}, model={"drop_path": 0.2}, ema={"decay": 0.9, "rate_batch": 4})
    run(recipe, tmp_path / "whole")
    steps = []
    _, outcome = run(recipe, tmp_path / "cut", stop=lambda: bool(steps.append(1)) or len(steps) == 3)
    assert not outcome.finished
    run(recipe, tmp_path / "cut", resume=True)
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")
    rows = [row for row in metrics(tmp_path / "whole") if row["kind"] == "evaluation"]
    assert [(row["epoch"], row["step"]) for row in rows] == [(1, 2), (2, 4), (3, 5)], "the last step is evaluated, too"
    assert {"miou", "macc", "aacc", "loss", "ema_miou"} <= set(rows[-1])
    training = [row["train_loss"] for row in metrics(tmp_path / "whole") if row["kind"] == "training"]
    assert rows[-1]["train_loss"] == pytest.approx(training[-1]), "the last epoch has one step"


def test_it_learns_shapes(data, tmp_path):
    recipe = segment_recipe(data, schedule={"steps": 60, "warmup_steps": 5}, run={"evaluate": 30})
    _, outcome = run(recipe, tmp_path / "run")
    assert outcome.best["miou"] > 60, "three colours are easy"


def test_weights_of_a_classifier_are_loaded(data, tmp_path):
    from safetensors.torch import save_file
    from timm.models import create_model

    from inline_attention.training.recipe import model_arguments

    recipe = segment_recipe(data)
    classifier = create_model("inline_pvt_nano", num_classes=7, img_size=64, **model_arguments(recipe.model))
    save_file(classifier.state_dict(), tmp_path / "classifier.safetensors")
    task = make_task(replace(recipe, model=replace(recipe.model, weights=str(tmp_path / "classifier.safetensors"))))
    model, said = build_model(task, ("a", "b"))
    assert "matched" in said
    assert "head" in said, "what is left out is told"
    inside = task.backbone(model).state_dict()
    same = [name for name, value in classifier.state_dict().items() if name in inside and value.shape == inside[name].shape]
    assert len(same) > 40
    assert all(torch.equal(inside[name], classifier.state_dict()[name]) for name in same)


def test_sliding_windows_or_whole_images(data):
    """A model that sees one pixel only does not care."""

    class Pointwise(nn.Module):
        def forward(self, pixels):
            return pixels

    whole, slide = (make_task(segment_recipe(data, task={"inference": kind})) for kind in ("whole", "slide"))
    pixels = torch.randn(2, 3, 45, 77)
    torch.testing.assert_close(slide.logits(Pointwise(), pixels), whole.logits(Pointwise(), pixels))
