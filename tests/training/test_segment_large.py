"""Segmentation of whole images through the one loop: the loss of the whole image, scores by rows, resuming, commands."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from inline_attention.dense.inference import argmax_labels
from inline_attention.lite.decode import BadImageError
from inline_attention.training.api import train
from inline_attention.training.recipe import load
from inline_attention.training.run import run_training
from inline_attention.training.segment import pixel_loss
from inline_attention.training.segment_large import LabelledImage
from inline_attention.training.task import evaluate_once, make_task

from ..cli.test_main import run
from .small import metrics, weights

SMALL = "depths=[1,1,1,1], embed_dims=[8,8,8,8], num_heads=[1,1,1,1], patch_size=4"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Stripes of two classes, the second of which is red; sides that no stride divides; some pixels ignored."""
    root = tmp_path_factory.mktemp("maps")
    generator = np.random.default_rng(0)
    for split, count in (("train", 3), ("val", 2)):
        for number in range(count):
            height, width = 41 + number, 66
            labels = (np.add.outer(np.arange(height), np.arange(width)) // 20 % 2).astype(np.uint8)
            pixels = generator.integers(0, 100, (height, width, 3), dtype=np.uint8)
            pixels[:, :, 0] += 120 * labels
            labels[:4] = 255
            for folder, array in (("images", pixels), ("masks", labels)):
                (root / folder / split).mkdir(parents=True, exist_ok=True)
                Image.fromarray(array).save(root / folder / split / f"{number}.tif")
    return root


def recipe(root, **given):
    fields = {
        "data.source": str(root), "data.size": (64, 96), "model.args": SMALL, "task.width": 16, "optim.batch": 2,
        "schedule.epochs": 2, "schedule.warmup": 0, "run.log": 1, "run.tokens": 100, "run.save": 1, **given,
    }  # fmt: skip
    return load("segment_large").with_fields(fields)


def truth_of(root, number):
    with Image.open(root / "masks" / "val" / f"{number}.tif") as mask:
        return torch.from_numpy(np.array(mask)).long()


def test_the_loss_and_the_scores_are_those_of_the_whole_image(root):
    task = make_task(recipe(root))
    source = task.suited_to(task.open()).open()
    torch.manual_seed(0)
    model = task.make_model(*task.model_spec(2), 2).eval()
    image, _ = task.transform(training=False)(*source.val.load(1, 3))
    assert isinstance(image, LabelledImage)
    pixels = image.open().read(0, 42)
    truth = truth_of(root, 1)[None]
    torch.testing.assert_close(model(image), pixel_loss(model(pixels), truth), rtol=1e-4, atol=1e-5)
    meter = evaluate_once(model, task, source, device="cpu")
    right = counted = 0
    for number in range(2):
        image, _ = task.transform(training=False)(*source.val.load(number, 3))
        with torch.no_grad():
            labels = argmax_labels(model(image.open().read(0, 41 + number))[0], lambda logits: logits).labels
        truth = truth_of(root, number)
        right, counted = right + int((labels == truth).sum()), counted + int((truth != 255).sum())
    assert meter.metrics["aacc"] == pytest.approx(100 * right / counted, abs=0.05)


def test_augmentation_moves_labels_with_their_pixels(root):
    task = make_task(recipe(root))
    source = task.open()
    torch.manual_seed(4)
    image, _ = task.transform(training=True)(*source.train.load(0, 3))
    turned = image.augmentation._replace(quarters=1, vflip=True)
    image = LabelledImage(image.path, image.data, image.options, turned, labels=image.labels, mask=image.mask)
    opened = image.open()
    labels = image.open_labels(opened).read(0, opened.height)[0, 0]
    red = opened.read(0, opened.height)[0, 0]
    assert labels.shape == (66, 41)
    assert float(red[labels == 1].min()) > float(red[labels == 0].max()) - 1  # 120 levels apart, but for colours and noise
    assert float(red[labels == 1].mean() - red[labels == 0].mean()) > 1


def test_a_stopped_run_resumes_bit_for_bit(root, tmp_path):
    given = recipe(root)
    assert train(given, out=tmp_path / "whole").finished
    assert not run_training(make_task(given), tmp_path / "parts", stop=lambda: True).finished
    assert train(out=tmp_path / "parts", resume=True).finished
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")
    assert metrics(tmp_path / "parts") == metrics(tmp_path / "whole")


def test_masks_that_do_not_fit(root):
    task = make_task(recipe(root))
    image, _ = task.transform(training=False)(*task.open().train.load(0, 3))
    for mask, message in (
        (root / "masks" / "train" / "1.tif", r"1.tif is 66 x 42 .* and its image .*0.tif is 66 x 41"),
        (
            root / "images" / "train" / "0.tif",
            "is no mask: it has 3 channels of uint8, and one of whole numbers is needed",
        ),
    ):
        other = LabelledImage(image.path, image.data, image.options, labels=image.labels, mask=mask)
        with pytest.raises(BadImageError, match=message):
            other.open_labels(other.open())


def test_commands(root, tmp_path, capsys):
    given = ["train", "--task", "segment", "--large", "--data", str(root), "--model.args", SMALL, "--data.size", "64", "96"]
    given += ["--schedule.epochs", "1", "--task.width", "16"]
    code, out, _ = run(capsys, *given, "--dry-run", "--json")
    assert code == 0
    assert json.loads(out)["estimate"]["disk_bytes"] > 4 * 11 * 17 * 8 * 4
    code, _, _ = run(capsys, *given, "--out", str(tmp_path / "run"))
    assert code == 0
    code, out, _ = run(capsys, "eval", str(tmp_path / "run"), "--json")
    assert code == 0
    code, _, err = run(capsys, "train", "--task", "detect", "--large", "--data", str(root))
    assert code == 2
    assert "--large is for slides with --labels and for --task segment, got --task detect" in err
