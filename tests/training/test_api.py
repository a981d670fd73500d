"""Training, evaluation and prediction from Python."""

import doctest
import json
import subprocess
import sys

import pytest
import torch
from accelerate import Accelerator
from PIL import Image

from inline_attention.training import Recipe, api, config, evaluate, list_recipes, load_recipe, predict, recipe, task, train
from inline_attention.training.classify import Classify
from inline_attention.training.detect import Detect
from inline_attention.training.segment import Segment

from .small import RecordingReporter, environment, small_recipe, write_images


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("api") / "data", 20)


@pytest.fixture(scope="module")
def result(data):
    recipe = small_recipe("elsewhere", augment={"auto": "", "mixup": 0.0, "cutmix": 0.0}, model={"drop_path": 0.0})
    return train(recipe.with_fields({"schedule.epochs": 6}), data=data, out=data.parent / "run", device="cpu")


def test_a_result(result, data):
    assert result.finished
    assert result.folder == data.parent / "run"
    assert (result.folder / "best.safetensors").is_file()
    assert result.best["top1"] > 90
    assert result.metrics["epoch"] == 6
    assert result.metrics in result.rows
    assert result.classes == ("blue", "green", "red")
    assert "source" not in repr(result)


def test_evaluation_gives_what_training_gave(result, data):
    score = evaluate(result.folder, workers=0, device="cpu")
    assert score.metrics["top1"] == pytest.approx(result.best["top1"])
    assert score.images == 12
    own = evaluate(result.folder / "best.safetensors", data=data, workers=0, device="cpu")
    assert (own.images, own.split, own.fingerprint) == (12, "val", score.fingerprint), "not the images it was trained on"
    learned = evaluate(result.folder, split="train", workers=0, device="cpu")
    assert (learned.images, learned.split) == (48, "train")
    with pytest.raises(ValueError, match=r"best.safetensors does not record which images: give data"):
        evaluate(result.folder / "best.safetensors")


def test_one_image_need_not_be_in_a_list(result, data):
    path = data / "red" / "0.png"
    expected = predict(result.folder, [path], device="cpu")
    for image in (path, str(path), Image.open(path)):
        assert predict(result.folder, image, device="cpu") == expected


def test_fields_have_their_types():
    recipe = load_recipe("digits")
    assert recipe.with_fields({"data.size": [8, 12], "optim.lr": 1, "data.workers": None}).data.size == (8, 12)
    with pytest.raises(ValueError, match=r"^schedule.epochs must be of type int, got 'four'$"):
        recipe.with_fields({"schedule.epochs": "four"})
    with pytest.raises(ValueError, match=r"^the field data.view is now called data.crop_mode$"):
        recipe.with_fields({"data.view": "squash"})


@pytest.mark.parametrize("device", ["fish", "cuda"])
def test_devices_that_are_not_there(result, data, device):
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(ValueError, match=f"^unknown device '{device}'; this machine has: "):
        evaluate(result.folder, workers=0, device=device)
    with pytest.raises(ValueError, match=f"^unknown device '{device}'; this machine has: "):
        predict(result.folder, [data / "red" / "0.png"], device=device)


def test_precisions_do_not_outlive_their_run(data, tmp_path, monkeypatch):
    """bf16 training, evaluation, fp32 training in one process; the caller's own Accelerator is left as it was."""
    precisions, real = [], task.make_accelerator
    monkeypatch.setattr(task, "make_accelerator", lambda *a: (made := real(*a), precisions.append(made.mixed_precision))[0])
    own = Accelerator(cpu=True)
    recipe = small_recipe(data).with_fields({"schedule.epochs": 1})
    before = evaluate(train(recipe, out=tmp_path / "first", device="cpu").folder, workers=0, device="cpu")
    train(recipe.with_fields({"run.precision": "bf16"}), out=tmp_path / "half", device="cpu")
    evaluate(tmp_path / "half", workers=0, device="cpu")
    again = train(recipe, out=tmp_path / "again", device="cpu")
    assert precisions == ["no", "no"]
    assert evaluate(again.folder, workers=0, device="cpu").metrics == before.metrics
    assert own.mixed_precision == "no"


def test_a_failed_run_leaves_nothing_behind(data, tmp_path):
    recipe = small_recipe(data).with_fields({"schedule.epochs": 1, "run.precision": "bf16"})
    with pytest.raises(RuntimeError, match="stop here"):
        train(recipe, out=tmp_path / "failed", device="cpu", reporter=FailingReporter())
    assert train(recipe.with_fields({"run.precision": "fp32"}), out=tmp_path / "run", device="cpu").finished


class FailingReporter(RecordingReporter):
    def step(self, step, loss, images_per_second):
        raise RuntimeError("stop here")


def test_images_that_cannot_be_read(result, data, tmp_path):
    folder = write_images(tmp_path / "data", 2)
    bad = folder / "red" / "0.png"
    bad.write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"0.png cannot be read: .* \(--skip-bad goes on without such images\)"):
        evaluate(result.folder, data=folder, workers=0, device="cpu")
    score = evaluate(result.folder, data=folder, workers=0, device="cpu", skip_bad=True)
    assert (score.images, len(score.bad)) == (5, 1)
    with pytest.raises(ValueError, match=r"0.png cannot be read"):
        predict(result.folder, [bad])
    files = [folder / "blue" / "0.png", bad, folder / "green" / "0.png"]
    for batch in (1, 2, 64):
        found = predict(result.folder, files, top=1, batch=batch, skip_bad=True)
        assert [classes and classes[0][0] for classes in found] == ["blue", None, "green"]


def test_images_are_read_batch_by_batch(result, monkeypatch):
    """Not all of them before the first batch."""
    happened, real = [], api.top_classes
    monkeypatch.setattr(api, "top_classes", lambda *a: (happened.append("batch"), real(*a))[1])

    def images():
        for _ in range(5):
            happened.append("image")
            yield Image.new("RGB", (20, 20))

    assert len(predict(result.folder, images(), batch=2)) == 5
    assert happened == ["image", "image", "batch", "image", "image", "batch", "image", "batch"]


def test_batches_of_an_evaluation_suit_the_task():
    """As those of `inline eval`: detectors take images of other sizes, and much more memory."""
    assert (Classify.evaluation_batch, Detect.evaluation_batch, Segment.evaluation_batch) == (64, 4, 4)


def test_prediction(result, data):
    files = [data / "red" / "0.png", str(data / "blue" / "1.png")]
    found = predict(result.folder, [*files, Image.open(data / "green" / "2.png")], top=2, batch=2)
    assert [classes[0][0] for classes in found] == ["red", "blue", "green"]
    assert all(len(classes) == 2 for classes in found)
    assert 0.5 < found[0][0][1] <= 1
    with pytest.raises(ValueError, match=r"there is no image nowhere.png"):
        predict(result.folder, ["nowhere.png"])


def test_a_run_is_not_overwritten_and_can_be_resumed(result):
    with pytest.raises(ValueError, match="holds a run: give resume=True, or another `out`"):
        train(load_recipe("digits"), out=result.folder)
    with pytest.raises(ValueError, match="by its own recipe"):
        train("digits", out=result.folder, resume=True)
    again = train(out=result.folder, resume=True, device="cpu")
    assert again.best == result.best
    assert again.rows == result.rows


def test_without_a_recipe_one_is_chosen(data, tmp_path, monkeypatch):
    """The rest comes from the images; runs are numbered below runs/."""
    chosen = []
    monkeypatch.setattr(api, "run_training", lambda task, out, **rest: chosen.append((task.recipe, out, rest["source"])))
    monkeypatch.chdir(tmp_path)
    train(data=data)
    (tmp_path / "runs" / "data-inline_deit_nano").mkdir(parents=True)
    train(data=data.relative_to(tmp_path, walk_up=True) if sys.version_info >= (3, 12) else data)
    first, out, source = chosen[0]
    assert first.data.source == str(data)
    assert str(out).startswith("runs/data-inline_")
    assert len(source.train) == 48


def test_a_folder_for_another_task_is_refused(tmp_path):
    """As by `inline train`, instead of images/ and masks/ being taken for two classes."""
    from .small_dense import write_maps

    folder = write_maps(tmp_path / "data")
    with pytest.raises(ValueError, match=r"has images/train/ and masks/train/, not class folders: .* the task segment"):
        train(data=folder, out=tmp_path / "run")


def test_dense_models_are_evaluated_and_predict(tmp_path):
    from .small_dense import run, segment_recipe, write_maps

    folder = write_maps(tmp_path / "data")
    run(segment_recipe(folder, schedule={"steps": 2, "warmup": 0}), tmp_path / "run")
    score = evaluate(tmp_path / "run", batch=2, workers=0, device="cpu")
    assert score.metrics["miou"] == pytest.approx(json.loads((tmp_path / "run" / "result.json").read_text())["miou"])
    assert evaluate(tmp_path / "run", data=folder, batch=2, workers=0, device="cpu").images
    [labels] = predict(tmp_path / "run", [Image.new("RGB", (30, 20))])
    assert labels.shape == (20, 30)


def test_fields_by_their_names():
    recipe = Recipe().with_fields({"schedule.epochs": 2, "optim.lr": 0.1})
    assert (recipe.schedule.epochs, recipe.optim.lr, Recipe().schedule.epochs) == (2, 0.1, 30)
    with pytest.raises(ValueError, match=r"unknown field schedule.epoch \(did you mean schedule.epochs\?\)"):
        recipe.with_fields({"schedule.epoch": 2})
    assert "digits" in list_recipes()


def test_a_reporter_receives_what_happens(data, tmp_path):
    quiet = RecordingReporter()
    train(small_recipe(data).with_fields({"schedule.epochs": 1}), out=tmp_path / "run", device="cpu", reporter=quiet)
    assert len(quiet.losses) == 4


def test_docstrings_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for module in (config, recipe, api):
        names = vars(module)
        found = doctest.DocTestFinder(exclude_empty=True).find(module, globs=dict(names))
        for test in sorted((test for test in found if test.examples), key=lambda test: test.lineno or 0):
            assert doctest.DocTestRunner().run(test).failed == 0, test.name


def test_importing_is_cheap():
    """Names come with their first use; no module of the room hides one."""
    code = (
        "import sys, inline_attention.training as t; assert 'accelerate' not in sys.modules; "
        "import inline_attention.training.run, inline_attention.training.api; "
        "assert callable(t.train) and callable(t.evaluate) and callable(t.predict)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=environment())
    with pytest.raises(ImportError):
        from inline_attention.training import nothing  # noqa: F401
