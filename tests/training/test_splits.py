"""Which images are learned from, and which are held out."""

import shutil

import pytest

from inline_attention.training.dense_task import split_by_name
from inline_attention.training.task import make_task

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
