"""Instance masks: one object for every number, against boxes written by hand."""

import numpy as np
import pytest
from PIL import Image

from inline_attention.data.instance_masks import open_instance_masks
from inline_attention.data.mask_folders import INSTANCE_MASKS, find_pair, mask_splits
from inline_attention.data.splits import NoSplitError, fingerprint

MASK = np.array([[0, 1, 1, 0, 0], [0, 1, 0, 0, 7], [0, 0, 0, 7, 7], [255, 0, 0, 0, 0]], np.uint8)


def write(root, images, masks, name="a", suffix="", numbers=MASK):
    for folder in (images, masks):
        (root / folder).mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (5, 4), (10, 20, 30)).save(root / images / f"{name}.png")
    Image.fromarray(numbers).save(root / masks / f"{name}{suffix}.png")
    return root


def opened(root, split="train", **options):
    return open_instance_masks(root, split, find_pair(root, INSTANCE_MASKS), **options)


@pytest.mark.parametrize(
    ("images", "masks", "suffix"),
    [("PNGImages", "PedMasks", "_mask"), ("images/train", "instances/train", ""), ("images", "instances", "")],
)
def test_each_number_is_an_object(tmp_path, images, masks, suffix):
    write(tmp_path, images, masks, suffix=suffix)
    found, classes, left_out = opened(tmp_path, class_name="pedestrian", ignore=(255,))
    assert (len(found), classes, left_out, found.has_masks) == (1, ("pedestrian",), (), True)
    image, objects = found.load(0, 3)
    assert image.size == (5, 4)
    assert objects.boxes.tolist() == [[1, 0, 3, 2], [3, 1, 5, 3]]
    assert objects.labels.tolist() == [1, 1]
    assert objects.masks().tolist() == [(MASK == 1).astype(int).tolist(), (MASK == 7).astype(int).tolist()]
    truth = found.ground_truth()
    assert [truth.anns[number]["area"] for number in (1, 2)] == [3, 3]
    assert found.files() == ["a.png"]


def test_255_is_an_object_unless_it_is_ignored(tmp_path):
    write(tmp_path, "images", "instances")
    assert len(opened(tmp_path)[0].load(0, 3)[1].boxes) == 3
    assert opened(tmp_path)[1] == ("object",)


def test_what_cannot_be_used(tmp_path):
    write(tmp_path, "images", "instances")
    with pytest.raises(ValueError, match="instance masks, which are of one class, and the model has 2"):
        opened(tmp_path, classes=("cat", "dog"))
    assert opened(tmp_path, classes=("cat",))[1] == ("cat",), "the model's name of the one class"
    write(tmp_path, "images", "instances", "b")
    (tmp_path / "instances" / "b.png").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"b\.png cannot be read: not an image \(--skip-bad"):
        opened(tmp_path)
    found, _, left_out = opened(tmp_path, skip_bad=True)
    assert (len(found), len(left_out)) == (1, 1)
    for name in "ab":
        write(tmp_path, "images", "instances", name, numbers=np.zeros((4, 5), np.uint8))
    with pytest.raises(ValueError, match="hold no object"):
        opened(tmp_path)


def test_splits_and_fingerprints(tmp_path):
    """Test images are not validation images; a fingerprint is of the images and objects, wherever they are."""
    for split in ("train", "test"):
        write(tmp_path / "parts", f"images/{split}", f"instances/{split}")
    write(tmp_path / "whole", "images", "instances")
    for name, splits in (("parts", ["train", "test"]), ("whole", ["all"])):
        assert list(mask_splits(tmp_path / name, find_pair(tmp_path / name, INSTANCE_MASKS))) == splits
    with pytest.raises(NoSplitError, match=r"parts has no split val; there are: train, test$"):
        opened(tmp_path / "parts", "val")
    with pytest.raises(NoSplitError, match=r"whole has no split val; there are: all$"):
        opened(tmp_path / "whole", "val")
    found = [opened(tmp_path / "parts", "testing"), opened(tmp_path / "whole"), opened(tmp_path / "whole", ignore=(255,))]
    marks = [fingerprint(images.entries()) for images, *_ in found]
    assert (marks[0] == marks[1], marks[1] == marks[2]) == (True, False)
    with pytest.raises(ValueError, match=r"data\.class_name: class 0 has no name"):
        opened(tmp_path / "whole", class_name=" ")
