"""Slides from their images through the one loop: what the model sees, targets, resuming within an image, the dry run."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from inline_attention.large.augmented_rows import Augmentation, augmented
from inline_attention.large.gradients import stream_train
from inline_attention.large.image_reader import RowReader
from inline_attention.training import slides
from inline_attention.training.api import evaluate, predict, train
from inline_attention.training.recipe import load
from inline_attention.training.run import run_training
from inline_attention.training.slides import SlideImage, load_slides
from inline_attention.training.task import make_task

from ..cli.test_main import run
from .small import metrics, weights


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Noise of eight sizes; of class b where it is red, whose share is a number to learn."""
    root = tmp_path_factory.mktemp("slides")
    (root / "images").mkdir()
    generator, lines = np.random.default_rng(0), ["slide_id,label,high,mean"]
    for number in range(8):
        pixels = generator.integers(0, 120, (40 + 3 * number, 52, 3), dtype=np.uint8)
        pixels[:, :, 0] += 100 * (number % 2)
        if number % 3:
            np.save(root / "images" / f"s{number}.npy", pixels)
        else:
            Image.fromarray(pixels).save(root / "images" / f"s{number}.png")
        lines.append(f"s{number},{'ab'[number % 2]},{number % 2},{pixels[:, :, 0].mean():.3f}")
    (root / "labels.csv").write_text("\n".join(lines) + "\n")
    return root / "images", root / "labels.csv"


def recipe(data, **given):
    fields = {
        "data.source": str(data[0]), "data.labels": str(data[1]), "data.columns": ("label",), "data.size": (48, 48),
        "model.args": "patch_size=8, embed_dim=8, depth=1, num_heads=2", "model.drop_path": 0.2, "optim.batch": 4,
        "optim.lr": 5e-3, "schedule.epochs": 2, "schedule.warmup": 0, "run.log": 1, "run.tokens": 14, **given,
    }  # fmt: skip
    return load("slides").with_fields(fields)


@pytest.mark.parametrize("how", [
    Augmentation(hflip=True), Augmentation(vflip=True), *(Augmentation(quarters=quarters) for quarters in range(4)),
    Augmentation(3, hflip=True, vflip=True),
])  # fmt: skip
def test_flips_and_turns_by_rows(how):
    image, valid = torch.rand(1, 3, 7, 11), torch.rand(7, 11) > 0.5
    source = RowReader(7, 11, lambda start, stop: image[:, :, start:stop], lambda start, stop: valid[start:stop])
    zero, one = torch.zeros(3, 1, 1), torch.ones(3, 1, 1)
    found = augmented(source, how, zero, one)
    sides = [side for side, flip in ((-2, how.vflip), (-1, how.hflip)) if flip]
    for whole, read in ((image, lambda *rows: found.read(*rows)), (valid, lambda *rows: found.valid(*rows))):
        expected = whole.rot90(how.quarters, (-2, -1)).flip(sides)
        assert (found.height, found.width) == expected.shape[-2:]
        parts = [read(start, min(start + 3, found.height)) for start in range(0, found.height, 3)]
        assert torch.equal(torch.cat(parts, -2), expected)


def test_colours_by_rows():
    image = torch.rand(1, 3, 6, 5)
    mean, std = torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1), torch.tensor([0.2, 0.3, 0.1]).view(3, 1, 1)
    source = RowReader(6, 5, lambda start, stop: ((image - mean) / std)[:, :, start:stop])
    brighter = augmented(source, Augmentation(brightness=1.5), mean, std).read(0, 6) * std + mean
    torch.testing.assert_close(brighter, (1.5 * image).clamp(max=1))
    grey = augmented(source, Augmentation(saturation=0.0), mean, std).read(2, 4) * std + mean
    torch.testing.assert_close(grey, image.mean(1, keepdim=True)[:, :, 2:4].expand(-1, 3, -1, -1))
    flat = augmented(source, Augmentation(contrast=0.0), mean, std).read(0, 6) * std + mean
    torch.testing.assert_close(flat, torch.full_like(flat, 0.5))


def test_the_model_sees_the_whole_image(data):
    """Through the task in parts, and plainly from the file's pixels: the same loss and gradients."""
    given = recipe(data, **{"model.drop_path": 0.0})
    task = make_task(given)
    source = task.open()
    task = task.suited_to(source)
    torch.manual_seed(0)
    model = task.make_model(*task.model_spec(2), 2)
    image = SlideImage(data[0] / "s1.npy", given.data, given.run)
    mean, std = (torch.tensor(part).view(3, 1, 1) for part in (given.data.mean, given.data.std))
    pixels = (torch.from_numpy(np.load(data[0] / "s1.npy")).permute(2, 0, 1) / 255 - mean) / std
    torch.testing.assert_close(model(image), model(pixels[None]), rtol=1e-4, atol=1e-5)
    model(image).square().sum().backward()
    ours = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    model(pixels[None]).square().sum().backward()
    for mine, parameter in zip(ours, model.parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("target", "column", "main"), [
    ("class", "label", "balanced"), ("labels", "high", "auc"), ("number", "mean", "mae"),
])  # fmt: skip
def test_targets(data, tmp_path, target, column, main):
    given = recipe(data, **{"data.columns": (column,), "task.target": target, "schedule.epochs": 1})
    result = train(given, out=tmp_path / "run")
    assert result.finished
    assert main in result.metrics
    assert evaluate(tmp_path / "run").metrics[main] == pytest.approx(result.best[main], abs=1e-4)
    found = load_slides(str(tmp_path / "run")).predict(data[0] / "s1.npy")
    assert set(found) == set(result.classes)
    assert predict(tmp_path / "run", [data[0] / "s1.npy"]) == [found]


def test_a_run_that_died_within_an_image_resumes_bit_for_bit(data, tmp_path, monkeypatch):
    """The process ends in the middle of a backward pass, after a checkpoint; what was done of the step is done again."""
    given = recipe(data, **{"run.save": 1, "augment.turn": 0.5})
    whole = train(given, out=tmp_path / "whole")
    assert whole.finished
    calls = 0

    def dying(*arguments, **options):
        nonlocal calls
        logits = stream_train(*arguments, **options)
        calls += logits.requires_grad
        if calls == 6:  # in the second step
            logits.register_hook(lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        return logits

    with monkeypatch.context() as patch:
        patch.setattr(slides, "stream_train", dying)
        with pytest.raises(KeyboardInterrupt):
            run_training(make_task(given), tmp_path / "parts")
    assert train(out=tmp_path / "parts", resume=True).finished
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")
    assert metrics(tmp_path / "parts") == metrics(tmp_path / "whole")


@pytest.mark.slow
def test_two_processes_train_like_one(data, tmp_path):
    words = ["train", "--large", "--data", str(data[0]), "--labels", str(data[1]), "--data.columns", "label", *SHORT]
    words += ["--model.drop-path", "0.2", "--device", "cpu", "--out"]
    for launcher, out in (([], "one"), (["torch.distributed.run", "--nproc-per-node", "2", "-m"], "two")):
        command = [sys.executable, "-m", *launcher, "inline_attention", *words, str(tmp_path / out)]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
    assert weights(tmp_path / "one") == weights(tmp_path / "two")


def test_progress_within_an_image(data):
    task = make_task(recipe(data)).suited_to(make_task(recipe(data)).open())
    calls = []
    task.watch = lambda *now: calls.append(now)
    model = task.make_model(*task.model_spec(2), 2)
    image, target = task.transform(training=True)(data[0] / "s1.npy", 1)
    batch = slides.Batch([image], target[None], torch.ones(1, dtype=torch.bool), ())
    task.loss(model, batch, 2).backward()
    assert calls[-1][0] == calls[-1][1] > 10


def test_files_that_cannot_be_read(data, tmp_path):
    root = tmp_path / "images"
    root.mkdir()
    for path in data[0].iterdir():
        (root / path.name).write_bytes(path.read_bytes())
    bad = make_task(recipe((root, data[1]))).open().train.name(2)
    Path(bad).write_bytes(Path(bad).read_bytes()[:20])
    with pytest.raises(ValueError, match=r"cannot read the image .*--skip-bad"):
        train(recipe((root, data[1])), out=tmp_path / "stops")
    result = train(recipe((root, data[1]), **{"data.skip_bad": True, "schedule.epochs": 1}), out=tmp_path / "goes_on")
    assert result.finished
    assert len(result.bad) == 1


def test_what_is_refused(data):
    source = make_task(recipe(data)).open()
    with pytest.raises(ValueError, match=r"one by one: optim\.device-batch must be 1, got 2"):
        make_task(recipe(data, **{"optim.device_batch": 2})).suited_to(source)
    task = make_task(recipe(data, **{"model.name": "resnet10t", "model.args": ""})).suited_to(source)
    with pytest.raises(ValueError, match="--large needs one of this package's models"):
        task.make_model(*task.model_spec(2), 2)
    empty = data[0].parent / "empty"
    empty.mkdir()
    with pytest.raises(ValueError, match=r"has no images: their names end in"):
        make_task(recipe((empty, data[1]))).open()


SHORT = ["--model.args", "patch_size=8, embed_dim=8, depth=1, num_heads=2", "--data.size", "48", "48", "--schedule.epochs", "1"]


def test_commands(data, tmp_path, capsys):
    given = ["train", "--large", "--data", str(data[0]), "--labels", str(data[1]), "--data.columns", "label", *SHORT]
    code, out, _ = run(capsys, *given, "--dry-run", "--json")
    found = json.loads(out)["estimate"]
    assert code == 0
    assert found["disk_bytes"] >= 3 * 8 * 7 * 8 * 4
    assert found["seconds"] > 0
    code, out, _ = run(capsys, *given, "--out", str(tmp_path / "run"))
    assert code == 0
    assert "inline predict SLIDE" in out
    code, out, _ = run(capsys, "eval", str(tmp_path / "run"), "--json")
    assert code == 0
    code, out, _ = run(capsys, "predict", str(data[0] / "s1.npy"), "--model", str(tmp_path / "run"), "--json")
    assert code == 0
    assert {entry["name"] for entry in json.loads(out)["classes"]} == {"a", "b"}
    code, _, err = run(capsys, "train", "--large", "--data", str(data[0]))
    assert code == 2
    assert "needs a table with the labels of its slides: --labels FILE.csv" in err
