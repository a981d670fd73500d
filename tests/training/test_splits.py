"""Which images are learned from, and which are held out."""

import json
import shutil
from dataclasses import replace

import pytest

from inline_attention.data.config import DataConfig
from inline_attention.data.sources import open_source
from inline_attention.data.splits import NoSplitError, split_by_name
from inline_attention.training.classify import Classify
from inline_attention.training.config import Recipe
from inline_attention.training.load_trained import metadata_of
from inline_attention.training.run import run_training
from inline_attention.training.run_folder import RunFolder
from inline_attention.training.task import make_task

from .small import RecordingReporter, small_recipe, write_images
from .small_dense import detect_recipe, segment_recipe, write_coco, write_maps


def names(images):
    return [images.name(index).rsplit("/", 1)[-1] for index in range(len(images))]


def test_splits_of_the_folder(tmp_path):
    maps = make_task(segment_recipe(write_maps(tmp_path / "maps"))).open()
    assert (len(maps.train), len(maps.val), maps.classes) == (8, 4, ("ground", "ball", "box"))
    root = write_coco(tmp_path / "coco", 8, 5)
    coco = make_task(detect_recipe(root, data={"val": "validation"})).open()
    assert (len(coco.train), len(coco.val), coco.classes) == (8, 5, ("ball", "box"))
    itself = make_task(detect_recipe(root)).open()
    assert names(itself.val) == names(itself.train), "--data.val train"


def test_a_share_is_for_validation_where_there_is_no_val(tmp_path):
    root = write_maps(tmp_path / "maps", 10)
    for folder in ("images", "masks"):
        shutil.rmtree(root / folder / "val")
    coco = write_coco(tmp_path / "coco", 10)
    for recipe in (segment_recipe(root), detect_recipe(coco, data={"val": "validation"})):
        source = make_task(recipe).open()
        assert (len(source.train), len(source.val)) == (8, 2)
        assert not set(names(source.train)) & set(names(source.val))
        again = make_task(recipe).open()
        assert names(again.val) == names(source.val)
    held = source.val.ground_truth()
    assert sorted(held.getImgIds()) == [int(name.removesuffix(".png")) for name in sorted(names(source.val))]


def test_the_first_images_only(tmp_path):
    source = make_task(detect_recipe(write_coco(tmp_path), data={"limit": 3})).open()
    assert names(source.train) == ["1.png", "2.png", "3.png"]
    assert sorted(source.val.ground_truth().getImgIds()) == [1, 2, 3]


def test_the_split_does_not_depend_on_the_order():
    learned, held = split_by_name([f"{number}.png" for number in range(20)], 0.25)
    assert len(held) == 5
    assert sorted(learned + held) == list(range(20))
    backwards = [f"{number}.png" for number in reversed(range(20))]
    assert {backwards[index] for index in split_by_name(backwards, 0.25)[1]} == {f"{index}.png" for index in held}
    with pytest.raises(ValueError, match=r"there is one image, a.png: none is left for validation"):
        split_by_name(["a.png"], 0.5)


def test_detectors_and_segmenters_use_a_split_or_refuse_it(tmp_path):
    maps = write_maps(tmp_path / "maps", 4, 2)
    for folder in ("images", "masks"):
        shutil.move(maps / folder / "val", maps / folder / "test")
    task = make_task(segment_recipe(maps))
    source = task.open()
    assert not {images.name(0).split("/")[-2] for images in (source.train, source.val)} - {"train"}, "test is not opened"
    assert source.split_text == "val (20 % of train, split off by a hash of the names)"
    scored = task.open_split("test", source.classes)
    assert (len(scored.val), scored.split) == (2, "test")
    for asked in (None, "val"):
        with pytest.raises(NoSplitError, match=r"maps has no split val; there are: train, test$"):
            task.open_split(asked, source.classes)
    coco = make_task(detect_recipe(write_coco(tmp_path / "coco", 4, 2), data={"val": "test"}))
    with pytest.raises(NoSplitError, match=r"coco has no split test; there are: train, val$"):
        coco.open()


def test_a_run_records_what_it_is_scored_on_and_never_looks_at_test(tmp_path):
    write_images(tmp_path / "data" / "train", 8)
    write_images(tmp_path / "data" / "test", 4, seed=1)
    recipe = small_recipe(tmp_path / "data", schedule={"epochs": 1, "warmup": 0}, ema={"decay": 0.0})
    with pytest.raises(ValueError, match=r"^training does not look at test images: leave out data.val test"):
        run_training(Classify(replace(recipe, data=replace(recipe.data, val="test"))), tmp_path / "never", device="cpu")
    reporter = RecordingReporter()
    result = run_training(Classify(recipe), tmp_path / "run", reporter=reporter, device="cpu")
    assert "scored on 6 images of the split val (20 % of train, split off by a hash of the names)" in reporter.messages
    scored = result.source.scored
    assert scored == {"split": "val", "split_note": result.source.split_note, "images": 6, "fingerprint": scored["fingerprint"]}
    for record in (
        json.loads((tmp_path / "run" / "result.json").read_text()),
        json.loads((tmp_path / "run" / "data.json").read_text()),
        metadata_of(tmp_path / "run" / "best.safetensors"),
    ):
        assert {name: record[name] for name in scored} == scored


def test_a_run_of_an_earlier_version_keeps_its_validation_images(tmp_path):
    """They were the test images where there was no val; it is resumed and evaluated on these."""
    write_images(tmp_path / "data" / "train", 8)
    write_images(tmp_path / "data" / "test", 4, seed=1)
    recipe = small_recipe(tmp_path / "data", schedule={"epochs": 1, "warmup": 0}, ema={"decay": 0.0}, data={"val": "test"})
    source = replace(Classify(recipe).open(), split="val")
    stopped = run_training(Classify(recipe), tmp_path / "run", source=source, stop=lambda: True, device="cpu")
    assert not stopped.finished
    (tmp_path / "run" / "data.json").unlink()
    text = (tmp_path / "run" / "recipe.toml").read_text()
    (tmp_path / "run" / "recipe.toml").write_text(text.replace('val = "test"', 'val = "validation"'))
    resumed = run_training(Classify(RunFolder(tmp_path / "run").recipe()), tmp_path / "run", resume=True, device="cpu")
    assert (resumed.finished, resumed.best["images"], resumed.source.split) == (True, 12, "test")
    assert RunFolder(tmp_path / "run").recipe().data.val == "test", "now it is written down"


def test_a_run_that_is_killed_while_it_begins_is_none_of_an_earlier_version(tmp_path, monkeypatch):
    """With train/ and test/ alone: whatever was written last, test images do not become validation images."""
    for number, split in enumerate(("train", "test")):
        write_images(tmp_path / "data" / split, 5, seed=number)
    recipe = Recipe(data=DataConfig(source=str(tmp_path / "data")))
    source, folder = open_source(recipe.data), RunFolder(tmp_path / "run")
    written = []
    monkeypatch.setattr(RunFolder, "write", lambda self, name, text: written.append(name))
    folder.begin(recipe, {}, source)
    assert written.index("data.json") < written.index("recipe.toml")
