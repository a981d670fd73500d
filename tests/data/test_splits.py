"""Which splits a source has, which one is used, and what tells two sets of images apart."""

import gzip
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from inline_attention.data.coco import coco_splits, open_coco
from inline_attention.data.config import DataConfig
from inline_attention.data.label_maps import label_map_splits, open_label_maps
from inline_attention.data.sources import before_splits, open_source, open_split
from inline_attention.data.splits import NoSplitError, folder_splits
from inline_attention.training.classify import Classify
from inline_attention.training.config import Recipe
from inline_attention.training.eval_images import eval_images
from inline_attention.training.run_folder import RunFolder

from ..training.small import write_images
from ..training.small_dense import write_coco, write_maps
from .test_sources import write_shards


def names(images) -> set[str]:
    return {images.name(index) for index in range(len(images))}


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """A folder with 9 training, 6 validation and 12 test images."""
    root = tmp_path_factory.mktemp("three")
    for number, (split, count) in enumerate({"training": 3, "valid": 2, "test": 4}.items()):
        write_images(root / split, count, seed=number)
    return root


def test_a_split_is_used_or_refused(three):
    data = DataConfig(source=str(three))
    for asked, split, count in (("test", "test", 12), ("validation", "val", 6), (None, "val", 6), ("train", "train", 9)):
        found = open_split(data, asked)
        assert (found.split, len(found.val), found.scored["images"]) == (split, count, count)
    with pytest.raises(NoSplitError, match=rf"^{three} has no split extra; there are: train, val, test$"):
        open_split(data, "extra")
    source = open_source(data)
    assert (len(source.train), len(source.val), source.split_text) == (9, 6, "val")


def test_test_images_are_no_validation_images(tmp_path):
    """With train and test alone, a share of train is for validation, and nothing of test is opened."""
    write_images(tmp_path / "train", 10)
    write_images(tmp_path / "test", 4, seed=1)
    source = open_source(DataConfig(source=str(tmp_path)))
    assert (len(source.train), len(source.val), source.split) == (24, 6, "val")
    assert source.split_note == "20 % of train, split off by a hash of the names"
    assert all("/train/" in name for name in names(source.train) | names(source.val))
    with pytest.raises(NoSplitError, match=r"has no split val; there are: train, test$"):
        open_split(DataConfig(source=str(tmp_path)), None)
    before = before_splits(DataConfig(source=str(tmp_path)))
    assert all("/test/" in name for name in names(open_source(before).val)), "as runs of earlier versions had it"


def test_folders_that_are_splits_and_classes_that_are_called_so(tmp_path):
    write_images(tmp_path / "flat", 4)
    (tmp_path / "flat" / "red").rename(tmp_path / "flat" / "test")
    assert folder_splits(tmp_path / "flat") == {}
    flat = open_split(DataConfig(source=str(tmp_path / "flat")), None)
    assert (flat.split, len(flat.val)) == ("all", 12)
    with pytest.raises(NoSplitError, match=r"has no split test; there are: all$"):
        open_split(DataConfig(source=str(tmp_path / "flat")), "test")
    write_images(tmp_path / "held" / "Test", 2, classes=("red", "blue"))
    held = open_split(DataConfig(source=str(tmp_path / "held")), "test", ("blue", "green", "red"))
    assert (len(held.val), sorted(held.val.labels())) == (4, [0, 0, 2, 2]), "no training images are needed"


@pytest.mark.filterwarnings("ignore")  # webdataset's own
def test_timms_readers(tmp_path):
    """A stream of train and test alone has no validation images; of torchvision's, a share of train is taken."""
    write_shards(tmp_path, ("train", "test"))
    shards = DataConfig(source="wds/colours", root=str(tmp_path))
    with pytest.raises(NoSplitError, match=r"^wds/colours has no split validation; there are: train, test$"):
        open_source(shards)
    assert open_split(shards, "test").scored["split"] == "test"
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for name, count in (("train", 40), ("t10k", 10)):
        header = np.array([0x803, count, 28, 28], ">i4").tobytes()
        (raw / f"{name}-images-idx3-ubyte").write_bytes(header + bytes(count * 784))
        labels = np.array([0x801, count], ">i4").tobytes() + bytes(number % 10 for number in range(count))
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(labels)
    data = DataConfig(source="torch/fashion_mnist", root=str(tmp_path))
    source = open_source(data)
    assert (len(source.train), len(source.val)) == (30, 10)
    assert source.split_note.startswith("20 % of train, ")
    assert (len(open_split(data, "test").val), before_splits(data).val) == (10, "test")
    with pytest.raises(NoSplitError, match=r"has no split nonsense; there are: train, test$"):
        open_split(data, "nonsense")


def test_named_sources_say_what_is_scored():
    assert open_split(DataConfig(), None).split_text == "val (20 % of the images, split off by a hash of the names)"
    with pytest.raises(NoSplitError, match=r"^digits has no split test; there are: train, val$"):
        open_split(DataConfig(), "test")


def test_objects_and_label_maps(tmp_path):
    root = write_coco(tmp_path / "coco", 4, 3)
    assert list(coco_splits(root)) == ["train", "val"]
    with pytest.raises(NoSplitError, match=r"coco has no split test; there are: train, val$"):
        open_coco(root, "test")
    maps = write_maps(tmp_path / "maps", 4, 2)
    for folder in ("images", "masks"):
        shutil.copytree(maps / folder / "train", maps / folder / "test")
    assert list(label_map_splits(maps)) == ["train", "val", "test"]
    assert [len(open_label_maps(maps, split)[0]) for split in ("train", "validation", "test")] == [4, 2, 4]


def test_the_fingerprint_is_of_the_images_alone(tmp_path, three):
    """Not of the folder's place; it changes with a name, a file, an annotation, and with what is left out."""
    first = open_split(DataConfig(source=str(three)), "test").scored["fingerprint"]
    shutil.copytree(three / "test", tmp_path / "elsewhere")
    copied = DataConfig(source=str(tmp_path / "elsewhere"))
    assert open_split(copied, None).scored["fingerprint"] == first
    assert open_split(DataConfig(source=str(three)), "val").scored["fingerprint"] != first
    (tmp_path / "elsewhere" / "red" / "0.png").rename(tmp_path / "elsewhere" / "red" / "9.png")
    renamed = open_split(copied, None).scored["fingerprint"]
    Image.new("RGB", (3, 3)).save(tmp_path / "elsewhere" / "red" / "9.png")
    assert len({first, renamed, open_split(copied, None).scored["fingerprint"]}) == 3
    with tarfile.open(tmp_path / "all.tar", "w") as archive:
        archive.add(three / "test", arcname=".")
    assert len(open_source(DataConfig(source=str(tmp_path / "all.tar"))).scored["fingerprint"]) == 16
    root = write_coco(tmp_path / "coco", 2, 2)
    whole = open_coco(root, "val")[0]
    assert sorted(whole.choose([1, 0]).entries()) == sorted(whole.entries())
    path = root / "annotations" / "instances_val2017.json"
    path.write_text(path.read_text().replace('"iscrowd": 0', '"iscrowd": 1'))
    assert open_coco(root, "val")[0].entries() != whole.entries()


def test_two_names_of_one_split_are_refused(tmp_path):
    for split in ("train", "val", "validation"):
        write_images(tmp_path / split, 2)
    with pytest.raises(ValueError, match="has val and validation, two names of one split: rename or remove one of them"):
        open_split(DataConfig(source=str(tmp_path)), "validation")


def write_idx(prefix, count):
    """Images and labels as Fashion-MNIST has them."""
    for kind, length, header in (("images-idx3", 784, 16), ("labels-idx1", 1, 8)):
        Path(f"{prefix}-{kind}-ubyte.gz").write_bytes(gzip.compress(bytes(header) + bytes(range(10)) * (count * length // 10)))


def test_validation_images_under_another_name_are_said(tmp_path):
    """Fashion-MNIST's validation images are its test images: the weights of a run were chosen by both."""
    write_idx(tmp_path / "train", 20)
    write_idx(tmp_path / "t10k", 10)
    folder = RunFolder(tmp_path / "run")
    recipe = Recipe(data=DataConfig(source="fashion-mnist", root=str(tmp_path)))
    source = open_source(recipe.data)
    folder.begin(recipe, {}, source)
    for split in (None, "test", "val"):
        found = eval_images(Classify(recipe), source.classes, str(folder.path), split=split)
        assert (found.chosen_by, found.trained_on) == (True, 0), split
