"""Bags through the one loop: targets, metrics by hand, padding, augmentation, resuming, and trained models of bags."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from torch import nn

from inline_attention.data.loader import Batch, evaluation_batches
from inline_attention.training.api import evaluate, predict, train
from inline_attention.training.bags import bag_outputs, bags_task, load_bags
from inline_attention.training.config import TaskConfig
from inline_attention.training.recipe import load
from inline_attention.training.run import run_training
from inline_attention.training.slide_targets import slide_loss, slide_meter, slide_scores
from inline_attention.training.task import evaluate_once, make_task

from ..data.bags import grid_coords, write_h5, write_slides
from .small import metrics, weights


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_slides(tmp_path_factory.mktemp("bags"))


def recipe(data, **given):
    root, table = data
    fields = {
        "data.source": str(root), "data.labels": str(table), "data.columns": ("label",), "data.size": (8, 8),
        "model.args": "patch_size=1, embed_dim=8, depth=2, num_heads=2", "model.drop_path": 0.2, "optim.batch": 4,
        "optim.lr": 5e-3, "schedule.epochs": 2, "schedule.warmup": 0, "run.log": 1, **given,
    }  # fmt: skip
    return load("bags").with_fields(fields)


def test_losses_of_the_three_targets():
    outputs = torch.tensor([[1.0, -2.0], [0.5, 3.0]])
    of_class = slide_loss(TaskConfig(target="class"), outputs, torch.tensor([0, 0]), each=True)
    assert torch.allclose(of_class, -outputs.log_softmax(1)[:, 0])
    targets = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    probabilities = outputs.sigmoid()
    expected = -(targets * probabilities.log() + (1 - targets) * (1 - probabilities).log()).mean(1)
    labels = TaskConfig(target="labels")
    assert torch.allclose(slide_loss(labels, outputs, targets, each=True), expected)
    assert float(slide_loss(labels, outputs, targets)) == pytest.approx(float(expected.mean()))
    number = TaskConfig(target="number", center=10.0, spread=4.0)
    assert slide_scores(number, torch.tensor([[0.5]])).item() == 12
    assert float(slide_loss(number, torch.tensor([[0.5]]), torch.tensor([14.0]))) == pytest.approx(0.25)


class Known(nn.Module):
    """Gives the outputs that it is made of, in order."""


def measured(task, outputs, targets, valid=None, split=2):
    meter = slide_meter(task, outputs.shape[1], Accelerator(cpu=True), lambda _, batch: batch.pixels)
    valid = torch.ones(len(outputs), dtype=torch.bool) if valid is None else valid
    for part in torch.arange(len(outputs)).split(split):
        meter.update(Known(), Batch(outputs[part], targets[part], valid[part], ()))
    return meter.compute(), meter.details()


def test_metrics_of_classes():
    outputs = torch.tensor([[2.0, 0, 0], [0, 1, 0], [3, 0, 0], [0, 2, 0], [9, 0, 0]])
    targets = torch.tensor([0, 0, 0, 1, 2])
    found, details = measured(TaskConfig(target="class"), outputs, targets, torch.tensor([1, 1, 1, 1, 0]).bool())
    assert found["accuracy"] == 75
    assert found["balanced"] == pytest.approx((200 / 3 + 100) / 2)
    assert found["auc"] == pytest.approx(
        (2 / 3 + 1) / 2 + 1 / 6
    )  # both pairs of classes rank by one of three and three of three
    assert details["per_class"] == [pytest.approx(200 / 3), 100, None]
    assert details["confusion"] == [[2, 1, 0], [0, 1, 0], [0, 0, 0]]
    expected = slide_loss(TaskConfig(target="class"), outputs[:4], targets[:4])
    assert found["loss"] == pytest.approx(float(expected))
    alone, _ = measured(TaskConfig(target="class"), outputs[:1], targets[:1])
    assert (alone["auc"], alone["balanced"]) == (None, 100)


def test_metrics_of_labels():
    outputs = torch.tensor([[2.0, 1.0], [-1.0, 2.0], [1.0, 3.0], [-2.0, -1.0]])
    targets = torch.tensor([[1.0, 1], [1, 1], [0, 1], [0, 1]])
    found, details = measured(TaskConfig(target="labels"), outputs, targets)
    assert details["per_class"] == [0.75, None]  # of four pairs one is in the wrong order; the second label is always there
    assert found["auc"] == 0.75
    assert found["accuracy"] == pytest.approx(100 * (0.5 + 0.75) / 2)
    assert found["f1"] == pytest.approx(100 * (0.5 + 6 / 7) / 2)


def test_metrics_of_numbers():
    task = TaskConfig(target="number", center=1.0, spread=2.0)
    outputs, targets = torch.tensor([[0.0], [0.5], [1.0]]), torch.tensor([1.0, 3.0, 4.0])  # predicts 1, 2, 3
    found, details = measured(task, outputs, targets)
    assert found["mae"] == pytest.approx(2 / 3)
    assert found["rmse"] == pytest.approx((2 / 3) ** 0.5)
    assert found["r2"] == pytest.approx(1 - 2 / (14 / 3), abs=1e-5)
    assert found["pearson"] == pytest.approx(0.98198, abs=1e-4)
    assert found["loss"] == pytest.approx(1 / 6)
    assert details["per_class"] == [None]
    same, _ = measured(task, outputs, torch.full((3,), 2.0))
    assert (same["r2"], same["pearson"]) == (None, None)


def test_a_padded_batch_gives_the_outputs_of_its_bags(data):
    torch.manual_seed(0)
    task = make_task(recipe(data)).suited_to(make_task(recipe(data)).open())
    model = task.make_model(*task.model_spec(2), 2).eval()
    how = {"rank": 0, "processes": 1, "channels": 3, "workers": 0}
    source, transform = task.open(), task.transform(training=False)
    one = [bag_outputs(model, batch) for batch in evaluation_batches(source.train, transform, 1, **how)]
    several = [bag_outputs(model, batch) for batch in evaluation_batches(source.train, transform, 4, **how)]
    assert torch.allclose(torch.cat(one), torch.cat(several), atol=1e-5)
    assert len({tuple(sample.shape) for sample in several}) > 1  # the last batch is smaller


@pytest.mark.parametrize(
    ("columns", "target", "main"),
    [(("label",), "class", "balanced"), (("high", "wide"), "labels", "auc"), (("mean",), "number", "mae")],
)
def test_a_run_learns_and_its_best_weights_are_loaded(data, tmp_path, columns, target, main):
    fields = {"data.columns": columns, "data.val": "train", "schedule.epochs": 5, "model.drop_path": 0.0}
    result = train(recipe(data, **fields), out=tmp_path / "run")
    rows = [row for row in result.rows if row["kind"] == "evaluation"]
    assert rows[-1]["loss"] < rows[0]["loss"]
    values = [row[main] for row in rows if row[main] is not None]
    assert result.best[main] == (min(values) if target == "number" else max(values))
    stored = (tmp_path / "run" / "recipe.toml").read_text()
    assert f'target = "{target}"' in stored
    assert "features = 6" in stored
    score = evaluate(tmp_path / "run")
    assert score.metrics[main] == pytest.approx(result.best[main], abs=1e-4)
    model = load_bags(str(tmp_path / "run"))
    path = data[0] / "s1.h5"
    found = model.predict(model.read(path), torch.device("cpu"))
    assert set(found) == set(result.classes)
    if target == "class":
        assert sum(found.values()) == pytest.approx(1, abs=1e-5)
        assert list(found.values()) == sorted(found.values(), reverse=True)
    if target == "number":
        lines = data[1].read_text().splitlines()[1:]
        numbers = [float(line.split(",")[5]) for line in lines]
        assert min(numbers) - 2 < found["mean"] < max(numbers) + 2
    assert predict(tmp_path / "run", [path]) == [found]


def test_a_stopped_run_resumes_bit_for_bit(data, tmp_path):
    given = recipe(data, **{"optim.device_batch": 2})
    whole = train(given, out=tmp_path / "whole")
    assert whole.finished
    counted = iter(range(100))
    stopped = run_training(make_task(given), tmp_path / "parts", stop=lambda: next(counted) == 1)
    assert not stopped.finished
    resumed = train(out=tmp_path / "parts", resume=True)
    assert resumed.finished
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")
    assert metrics(tmp_path / "parts") == metrics(tmp_path / "whole")


def test_bags_that_cannot_be_read(data, tmp_path):
    root = tmp_path / "features"
    root.mkdir()
    for path in data[0].iterdir():
        (root / path.name).write_bytes(path.read_bytes())
    bad = make_task(recipe((root, data[1]))).open().train.name(3)
    Path(bad).write_bytes(Path(bad).read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"s\d+.h5 cannot be read as HDF5.*--skip-bad"):
        train(recipe((root, data[1])), out=tmp_path / "stops")
    result = train(recipe((root, data[1]), **{"data.skip_bad": True}), out=tmp_path / "goes_on")
    assert result.finished
    assert len(result.bad) == 1
    source = make_task(recipe((root, data[1]))).open()
    write_h5(Path(source.train.name(0)), torch.zeros(4, 7), grid_coords(2, 2, 256))
    task = make_task(recipe((root, data[1]), **{"task.features": 6, "task.target": "class"}))
    readable = source.train.choose([index for index in range(len(source.train)) if source.train.name(index) != bad])
    with pytest.raises(ValueError, match=r"h5 has features of 7 channels, and the model takes 6"):
        evaluate_once(task.make_model(*task.model_spec(2), 2), task, replace(source, val=readable), device="cpu")


def test_models_that_take_no_bags(data):
    source = make_task(recipe(data)).open()
    for fields, message in (
        ({"model.name": "resnet10t", "model.args": ""}, "resnet10t takes no mask of tiles"),
        (
            {"model.args": "patch_size=2, embed_dim=8, depth=1, num_heads=2"},
            "patch_size is 2, and a patch of a bag is one tile",
        ),
    ):
        task = make_task(recipe(data, **fields)).suited_to(source)
        with pytest.raises(ValueError, match=message):
            task.make_model(*task.model_spec(2), 2)


def test_a_run_says_what_it_learns(data):
    task = make_task(recipe(data)).suited_to(make_task(recipe(data)).open())
    assert task.describe(task.open()) == "bags of tiles, 6 channels each; 2 classes: a, b"
    assert not task.lower_is_better
    assert task.improves(1.0, None)
    assert bags_task(recipe(data, **{"task.target": "number"})).improves(1.0, 2.0)
    assert json.loads(json.dumps(task.columns))["balanced"] == "balanced %"
