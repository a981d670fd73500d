"""Detection and segmentation as a user meets them: train, eval, predict, list, and what is said of bad input."""

import io
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout

import numpy as np
import pytest
from PIL import Image

from inline_attention.cli import list as listing
from inline_attention.cli.main import main
from inline_attention.training.dense_recipe import LARGEST_CROP
from inline_attention.training.detect import Detect
from inline_attention.training.segment import Segment

from ..training.small import environment, write_images, write_recipe
from ..training.small_dense import detect_recipe, segment_recipe, without_masks, write_coco, write_maps


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with a run to segment, a run to detect, and their data."""
    folder = tmp_path_factory.mktemp("dense")
    maps, coco = write_maps(folder / "maps"), write_coco(folder / "coco", 6, 3)
    recipes = {
        "segment": segment_recipe(maps, schedule={"steps": 40}, run={"evaluate": 20}),
        "detect": detect_recipe(coco, data={"val": "validation"}, schedule={"epochs": 1, "shape": "cosine", "drops": ()}),
    }
    kinds = {"segment": Segment, "detect": Detect}
    for name, recipe in recipes.items():
        path = write_recipe(folder / f"{name}.toml", recipe)
        said, openings, read_split = io.StringIO(), Counter(), kinds[name].read_split

        def read(task, root, split, known, openings=openings, read_split=read_split):
            openings[split] += 1
            return read_split(task, root, split, known)

        with redirect_stdout(said), redirect_stderr(said), pytest.MonkeyPatch.context() as patch:
            patch.setattr(kinds[name], "read_split", read)
            main(["train", "--task", name, "--recipe", str(path), "--out", str(folder / name), "--device", "cpu"])
        (folder / f"{name}.txt").write_text(said.getvalue())
        (folder / f"{name}-openings.json").write_text(json.dumps(openings))
    return folder


def pixels(path):
    with Image.open(path) as image:
        return np.asarray(image)


def ran(capsys, *words):
    main([str(word) for word in words])
    return capsys.readouterr().out


def failed(capsys, *words):
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    assert stop.value.code == 2
    told = capsys.readouterr().err.strip().splitlines()
    told = [line for line in told if line.startswith("inline: ")]
    assert len(told) == 1
    return told[0]


def test_a_run_leaves_a_table_a_curve_and_drawn_predictions(runs):
    for name, columns in (("segment", ("mIoU %", "mAcc %", "aAcc %")), ("detect", ("mask AP", "box AP", "AP50"))):
        text = (runs / f"{name}.txt").read_text()
        assert all(column in text for column in columns)
        assert "last weights" in text
        assert "split: val" in text
        assert "images of the split val, fingerprint " in text
        assert {"curve.png", "predictions.png", "metrics.csv", "best.safetensors", "result.json"} <= {
            path.name for path in (runs / name).iterdir()
        }
        assert pixels(runs / name / "predictions.png").shape[1] > 480
    assert (runs / "segment" / "confusion.png").is_file()
    assert "miou" in (runs / "segment" / "metrics.csv").read_text().splitlines()[0]
    assert "mask_ap_small" in (runs / "detect" / "metrics.csv").read_text().splitlines()[0]


@pytest.mark.parametrize("name", ["segment", "detect"])
def test_images_are_opened_once(runs, name):
    """By training, and not again to draw predictions."""
    assert json.loads((runs / f"{name}-openings.json").read_text()) == {"train": 1, "val": 1}


def test_eval_finds_the_score_of_the_run(runs, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    best = json.loads((runs / "segment" / "result.json").read_text())
    found = json.loads(ran(capsys, "eval", runs / "segment", "--json", "--out", tmp_path, "--device", "cpu"))
    assert found["miou"] == pytest.approx(best["miou"], abs=1e-3)
    assert found["per_class"] == pytest.approx(best["per_class"], abs=1e-3)
    assert found["classes"] == ["ground", "ball", "box"]
    assert (tmp_path / "confusion.png").is_file()
    text = ran(capsys, "eval", runs / "segment", "--out", tmp_path, "--device", "cpu", "--inference", "slide")
    assert re.search(r"split +mIoU % +mAcc % +aAcc % +loss +images +images/s", text)
    assert "Hardest classes: " in text
    text = ran(capsys, "eval", runs / "detect", "--out", tmp_path, "--device", "cpu", "--task", "detect")
    assert re.search(r"boxes .*\n.*masks ", text)
    assert re.search(r"split +AP of +AP +AP50 +AP75 +small +medium +large +images/s", text), "80 columns cut no title"
    assert max(len(line) for line in text.splitlines()[1:6]) <= 80
    learned = json.loads(ran(capsys, "eval", runs / "detect", "--split", "train", "--json", "--out", tmp_path))
    assert (learned["split"], learned["images"], learned["trained_on"]) == ("train", 6, 6)
    elsewhere = json.loads(ran(capsys, "eval", runs / "detect", "--data", runs / "coco", "--json", "--out", tmp_path))
    assert (elsewhere["images"], elsewhere["split"]) == (3, "val")


def test_predict_draws_and_prints(runs, capsys, tmp_path):
    image = runs / "maps" / "images" / "val" / "0.png"
    text = ran(capsys, "predict", image, "--model", runs / "segment", "--out", tmp_path)
    assert re.search(r"0\.png -> .*0\.png\n +\d+\.\d\d% of the pixels  \w+", text)
    labels = pixels(tmp_path / "0_labels.png")
    assert labels.shape == (40, 56)
    assert set(np.unique(labels)) <= {0, 1, 2}
    assert pixels(tmp_path / "0.png").shape[1] % 56 == 0
    lines = ran(capsys, "predict", image.parent, "--model", runs / "segment", "--out", tmp_path, "--json").splitlines()
    assert len(lines) == 4
    shares = json.loads(lines[0])["classes"]
    assert sum(entry["share"] for entry in shares) == pytest.approx(1)
    words = ("predict", runs / "coco/val2017/1.png", "--model", runs / "detect", "--out", tmp_path)
    found = json.loads(ran(capsys, *words, "--json", "--threshold", 0))
    assert all(entry["name"] in ("ball", "box") for entry in found["objects"])
    assert all(0 <= entry["box"][0] <= entry["box"][2] <= 64 for entry in found["objects"])
    told = failed(capsys, "predict", image, "--model", runs / "segment", "--out", tmp_path, "--threshold", 0.3)
    assert "--threshold is for models that detect" in told
    text = ran(capsys, *words, "--threshold", 1)
    assert "no object with a score of 1 or more" in text


def test_boxes_alone_from_training_to_prediction(capsys, tmp_path):
    data = without_masks(write_coco(tmp_path / "coco", 4, 2))
    short = {"epochs": 1, "shape": "cosine", "drops": ()}
    recipe = detect_recipe(data, task={"head": "auto"}, data={"val": "validation"}, schedule=short)
    path, out = write_recipe(tmp_path / "boxes.toml", recipe), tmp_path / "run"
    main(["train", "--recipe", str(path), "--out", str(out), "--device", "cpu"])
    told = capsys.readouterr()
    assert "faster_rcnn for boxes without masks (no mask is read), 2 classes: ball, box" in told.err
    assert "box AP" in told.out
    assert "mask" not in told.out
    text = ran(capsys, "eval", out, "--device", "cpu")
    assert re.search(r"\n *val +boxes ", text)
    assert "masks" not in text
    assert not [key for key in json.loads((out / "eval" / "eval.json").read_text()) if "mask" in key]
    words = ("predict", data / "val2017/1.png", "--model", out, "--out", tmp_path / "drawn", "--threshold", 0, "--json")
    found = json.loads(ran(capsys, *words))["objects"]
    assert all(set(entry) == {"name", "score", "box"} for entry in found)
    assert (tmp_path / "drawn" / "1.png").is_file()


def test_camvid_as_it_is_unpacked(capsys, tmp_path):
    """Folders in pairs, a label to ignore, larger images than the recipe's crop, and fewer of them than its batch."""
    generator = np.random.default_rng(0)
    for split, count in (("train", 8), ("val", 2), ("test", 2)):
        for folder in (split, f"{split}annot"):
            (tmp_path / "camvid" / folder).mkdir(parents=True)
        for number in range(count):
            pixels = generator.integers(0, 255, (360, 480, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "camvid" / split / f"{number}.jpg")
            labels = np.kron(generator.integers(0, 12, (6, 8)), np.ones((60, 60))).astype(np.uint8)
            Image.fromarray(labels).save(tmp_path / "camvid" / f"{split}annot" / f"{number}.png")
    told = failed(capsys, "train", "--data", tmp_path / "camvid")
    assert told.endswith("has train/ and trainannot/, not class folders: --task segment")
    words = ("train", "--task", "segment", "--data", tmp_path / "camvid", "--data.ignore", 11, "--dry-run", "--json")
    found = json.loads(ran(capsys, *words))
    assert (found["estimate"]["classes"], found["estimate"]["images"]) == (11, 8)
    assert (found["recipe"]["data.ignore"], found["recipe"]["optim.batch"]) == ([11], 2)
    assert found["recipe"]["data.size"] == [LARGEST_CROP] * 2
    named = ("--data.images", "{split}", "--data.masks", "{split}annot", "--data.size", 64, 64)
    found = json.loads(ran(capsys, *words, *named))
    assert (found["estimate"]["classes"], found["recipe"]["data.size"], found["recipe"]["optim.batch"]) == (11, [64, 64], 2)


def test_large_and_odd_images(runs, capsys, tmp_path):
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (301, 97, 3), np.uint8)).save(tmp_path / "odd.png")
    for name in ("segment", "detect"):
        ran(capsys, "predict", tmp_path / "odd.png", "--model", runs / name, "--out", tmp_path / name)
        assert (tmp_path / name / "odd.png").is_file()
    assert pixels(tmp_path / "segment" / "odd_labels.png").shape == (301, 97)
    labels = []
    for side in (0, 16):
        ran(capsys, "predict", tmp_path / "odd.png", "--model", runs / "segment", "--out", tmp_path / "sized", "--side", side)
        labels.append(pixels(tmp_path / "sized" / "odd_labels.png"))
    assert labels[0].shape == labels[1].shape == (301, 97)
    assert (labels[0] != labels[1]).any(), "an image shown at another size is another image"


def test_images_left_out_of_an_evaluation_are_listed(runs, capsys, tmp_path):
    """And other images need no training split, nor all of the classes."""
    root = write_coco(tmp_path / "coco", 3, 4)
    shutil.rmtree(root / "train2017")
    (root / "annotations" / "instances_train2017.json").unlink()
    path = root / "annotations" / "instances_val2017.json"
    told = json.loads(path.read_text())
    told["annotations"][0]["bbox"] = [1, 1, 0, 5]
    path.write_text(json.dumps(told))
    words = ("eval", runs / "detect", "--data", root, "--out", tmp_path / "out", "--device", "cpu")
    assert "has a bbox of no area" in failed(capsys, *words)
    found = json.loads(ran(capsys, *words, "--skip-bad", "--json"))
    assert len(found["bad"]) == 1
    assert "has a bbox of no area" in found["bad"][0]
    assert found["images"] == 4
    text = ran(capsys, *words, "--skip-bad")
    assert "1 images or entries were left out:" in text
    assert failed(capsys, *words, "--split", "nonsense").endswith(f"{root} has no split nonsense; there are: val")
    assert "inference and side are for those that segment" in failed(capsys, *words, "--side", 0)
    assert "--ema is for files that hold both" in failed(capsys, *words, "--ema")


def test_predictions_are_not_written_over_images(runs, capsys, tmp_path):
    Image.new("RGB", (40, 40)).save(tmp_path / "a.png")
    Image.new("RGB", (40, 40)).save(tmp_path / "a_labels.png")
    before = (tmp_path / "a.png").read_bytes()
    told = failed(capsys, "predict", tmp_path / "a.png", "--model", runs / "segment", "--out", tmp_path)
    assert "a.png would be written over the image that it is made from: choose another --out" in told
    assert (tmp_path / "a.png").read_bytes() == before
    ran(capsys, "predict", tmp_path, "--model", runs / "segment", "--out", tmp_path / "out")
    assert len(list((tmp_path / "out").iterdir())) == 4, "no name is taken twice"


def test_a_trained_model_is_a_start_for_other_classes(runs, capsys, tmp_path):
    root = write_maps(tmp_path / "maps", 4, 2)
    (root / "classes.txt").write_text("ground\nball\nbox\ncone\n")
    recipe = segment_recipe(root, model={"weights": str(runs / "segment")}, schedule={"steps": 1})
    main(
        ["train", "--recipe", str(write_recipe(tmp_path / "r.toml", recipe)), "--out", str(tmp_path / "run"), "--device", "cpu"]
    )
    said = capsys.readouterr().err
    assert re.search(r"\d+ tensors matched, left out for their size: head.bias, head.weight", said)
    other = segment_recipe(root, model={"weights": str(runs / "detect")})
    told = failed(capsys, "train", "--recipe", write_recipe(tmp_path / "o.toml", other), "--out", tmp_path / "other")
    assert "was trained to detect: start from a classifier, or from a model to segment" in told


def test_models_for_one_task_are_not_for_another(runs, capsys, tmp_path):
    assert "was trained to segment, not to detect" in failed(capsys, "eval", runs / "segment", "--task", "detect")
    assert "was trained to detect, not to segment" in failed(
        capsys, "predict", "x.png", "--model", runs / "detect", "--task", "segment"
    )
    told = failed(capsys, "analyze", "rank", runs / "segment", "--out", tmp_path)
    assert "is a model to segment: this works with models that classify" in told
    told = failed(capsys, "eval", runs / "segment", "--data", runs / "coco", "--out", tmp_path)
    assert "holds no label maps" in told
    assert "--size is for models that classify" in failed(capsys, "eval", runs / "segment", "--size", 32, 32)
    other = write_maps(tmp_path / "other")
    (other / "classes.txt").write_text("ground\nball\ncube\n")
    assert "cube" in failed(capsys, "eval", runs / "segment", "--data", other, "--out", tmp_path / "out")


def test_options_that_do_not_fit_the_task(runs, capsys, tmp_path):
    words = ("train", "--task", "segment", "--data", runs / "maps", "--out", tmp_path / "run")
    assert failed(capsys, *words, "--task.head", "mask_rcnn") == (
        "inline: task segment has no head mask_rcnn; there are: semantic_fpn, upernet"
    )
    told = failed(capsys, *words, "--augment.mixup", 0.8)
    assert told == "inline: augment.mixup has no meaning for --task segment, got 0.8: leave it out"
    detect = ("train", "--task", "detect", "--data", runs / "coco", "--out", tmp_path / "run")
    assert "data.size has no meaning for --task detect, got (512, 512)" in failed(capsys, *detect, "--data.size", 512, 512)
    assert "task.sides must be from 8 to task.longest, 96, got (256,)" in failed(capsys, *detect, "--task.longest", 96)
    ran(capsys, *words[:-2], "--task.longest", 96, "--optim.batch", 4, "--dry-run")  # sides are a detector's
    long = ("--optim.batch", 4, "--schedule.steps", 1, "--schedule.warmup-steps", 2)
    assert "the warm-up of 2 steps is longer than the run's 1" in failed(capsys, *words, *long)
    assert "schedule.drops (9,): the last one is not within the run's" in failed(
        capsys, *detect, "--schedule.shape", "drops", "--schedule.drops", 9, "--schedule.epochs", 2
    )
    assert "needs a width that is a multiple of 8, got 44" in failed(capsys, *words, "--task.width", 44)
    assert "--task segment: the recipe is for --task classify" in failed(capsys, *words, "--recipe", "digits")
    assert "--task detect needs images: --data DIR" in failed(capsys, "train", "--task", "detect")
    assert not (tmp_path / "run").exists(), "nothing is left behind"


def test_bad_entries_are_named_and_can_be_left_out(capsys, tmp_path):
    root = write_coco(tmp_path / "coco", 6, 3)
    path = root / "annotations" / "instances_train2017.json"
    good = json.loads(path.read_text())
    words = ("train", "--task", "detect", "--data", root, "--data.val", "train", "--dry-run")

    def told(change):
        content = json.loads(json.dumps(good))
        change(content)
        path.write_text(json.dumps(content))
        return failed(capsys, *words)

    first = good["annotations"][0]["id"]
    assert told(lambda c: c["images"][3].update(file_name="gone.png")).startswith(
        f'inline: {path}: image {good["images"][3]["id"]} is "gone.png", which is not in '
    )
    assert f"{path}: annotation {first} has a bbox of no area: 0 x 5" in told(
        lambda c: c["annotations"][0].update(bbox=[1, 1, 0, 5])
    )
    assert f"{path}: annotation {first} has category_id 99, which is no category" in told(
        lambda c: c["annotations"][0].update(category_id=99)
    )
    assert "a mask of another size than its image: [5, 5]" in told(
        lambda c: c["annotations"][0]["segmentation"].update(size=[5, 5])
    )
    broken = json.loads(path.read_text())
    assert broken != good
    text = ran(capsys, *words, "--skip-bad", "--optim.batch", 4)
    assert "6 images" in text


def test_bad_masks_are_named(runs, capsys, tmp_path):
    root = write_maps(tmp_path / "maps", 4, 2)
    mask = root / "masks" / "train" / "1.png"
    words = ("train", "--task", "segment", "--data", root, "--dry-run", "--optim.batch", 4)
    Image.fromarray(np.zeros((7, 9), np.uint8)).save(mask)
    assert f"{mask} is 9 x 7 (width x height), and its image" in failed(capsys, *words)
    Image.fromarray(np.full((40, 56), 7, np.uint8)).save(mask)
    told = failed(capsys, *words)
    assert f"{mask} holds label 7 at row 0, column 0, and the classes are 0 to 2: --data.ignore 7 leaves out" in told
    assert "read" not in told
    ran(capsys, *words, "--data.ignore", 7)
    Image.fromarray(np.zeros((40, 56, 3), np.uint8)).save(mask)
    assert f"{mask} is RGB: a mask holds one number for each pixel" in failed(capsys, *words)
    mask.unlink()
    assert "1.png has no mask of its name in" in failed(capsys, *words)


def test_a_dry_run_prints_the_recipe_and_the_cost(runs, capsys):
    found = json.loads(
        ran(capsys, "train", "--task", "segment", "--data", runs / "maps", "--dry-run", "--json", "--optim.batch", 4)
    )
    assert found["recipe"]["task.head"] == "semantic_fpn"
    assert found["estimate"]["classes"] == 3
    assert found["estimate"]["seconds"] > found["estimate"]["evaluation_seconds"] > 0
    assert found["name"] == "segment_small"


def test_folders_without_objects_or_maps(capsys, tmp_path):
    write_images(tmp_path / "classes", 2)
    for source, told in ((write_coco(tmp_path / "c", 2), "--task detect"), (write_maps(tmp_path / "m", 2), "--task segment")):
        assert told in failed(capsys, "train", "--data", source, "--out", tmp_path / "run")
    for task, told in (("detect", "holds no objects"), ("segment", "holds no label maps")):
        assert told in failed(capsys, "train", "--task", task, "--data", tmp_path / "classes", "--out", tmp_path / "run")
        assert "there is no folder" in failed(capsys, "train", "--task", task, "--data", tmp_path / "none")


def test_classification_needs_none_of_it(trained, tmp_path):
    """Without the packages of detection and segmentation: only these say what to install."""
    code = """
import sys
sys.modules |= dict.fromkeys(("segmentation_models_pytorch", "pycocotools"))
from inline_attention.cli.main import main
words = sys.argv[1:]
while words:
    end = words.index("then") if "then" in words else len(words)
    main(words[:end])
    words = words[end + 1 :]
"""
    data, run = trained / "data", tmp_path / "run"

    def said(*words):
        asked = [sys.executable, "-c", code, *map(str, words)]
        return subprocess.run(asked, capture_output=True, text=True, env=environment(), timeout=300, cwd=tmp_path)

    train = ("train", "--recipe", trained / "colours.toml", "--schedule.epochs", 1, "--out", run, "--device", "cpu")
    look = ("eval", run, "--device", "cpu", "then", "predict", data / "red" / "0.png", "--model", run)
    done = said(*train, "then", *look, "then", "train", "--task", "segment", "--data", data)
    assert "red" in done.stdout.splitlines()[-1] or "%" in done.stdout.splitlines()[-1], "classification went through"
    assert done.returncode == 2
    needs = r"inline: the command needs (segmentation_models_pytorch|pycocotools): pip install 'inline-attention\[dense\]'"
    assert re.fullmatch(needs, done.stderr.splitlines()[-1])


def test_list_counts_detectors_and_segmenters(capsys, monkeypatch):
    found = json.loads(ran(capsys, "list", "inline_pvt_tiny", "--dense", "--json"))["models"]
    by_head = {entry["head"]: entry for entry in found}
    assert set(by_head) == {"mask_rcnn", "faster_rcnn", "semantic_fpn"}
    assert by_head["faster_rcnn"]["inline_flops"] < by_head["mask_rcnn"]["inline_flops"]
    fpn = by_head["semantic_fpn"]
    assert (fpn["height"], fpn["width"], fpn["classes"]) == (512, 2048, 150)
    assert fpn["inline_flops"] < fpn["softmax_flops"]
    assert round(by_head["mask_rcnn"]["inline_params"] / 1e6, 1) == 31.7
    monkeypatch.setattr(listing, "_dense_cost", lambda group, name: by_head[group.head])  # counted above
    text = ran(capsys, "list", "inline_pvt_tiny", "--dense")
    assert [line.split()[:3] for line in text.splitlines() if "pvt_tiny" in line] == [
        ["mask_rcnn", "pvt_tiny", "800x1280"],
        ["faster_rcnn", "pvt_tiny", "800x1280"],
        ["semantic_fpn", "pvt_tiny", "512x2048"],
    ]
    assert "no pyramid is named like 'inline_deit_*'" in failed(capsys, "list", "inline_deit_*", "--dense")
