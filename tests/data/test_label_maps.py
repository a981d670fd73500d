"""Label maps of all folder layouts, against classes written by hand."""

import shutil

import numpy as np
import pytest
from PIL import Image

from inline_attention.data.label_maps import label_map_splits, open_label_maps
from inline_attention.data.splits import NoSplitError
from inline_attention.lite.decode import BadImageError


def save(path, values, mode=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(np.asarray(values))
    (image if mode is None else image.convert(mode)).save(path)


def image(path, height=2, width=3):
    save(path, np.full((height, width, 3), 90, np.uint8))


def mask(path, *rows, dtype=np.uint8):
    save(path, np.array(rows, dtype))


def text(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def plain(root, split="train", name="a", rows=((0, 1, 255), (2, 0, 1)), folder="masks"):
    image(root / "images" / split / f"{name}.jpg")
    mask(root / folder / split / f"{name}.png", *rows)


def test_ade_classes_begin_at_one(tmp_path):
    for split in ("training", "validation"):
        image(tmp_path / "images" / split / "a.jpg")
        mask(tmp_path / "annotations" / split / "a.png", (0, 1, 150), (2, 3, 0))
    images, classes = open_label_maps(tmp_path, "val")
    assert classes == tuple(map(str, range(1, 151)))
    loaded, labels = images.load(0, 3)
    assert loaded.size == (3, 2)
    assert labels.tolist() == [[255, 0, 149], [1, 2, 255]]
    assert labels.dtype == np.uint8
    assert images.name(0) == str(tmp_path / "images/validation/a.jpg")
    assert (images.files(), images.labels(), len(images)) == (["a.jpg"], None, 1)

    lines = [f"{number}\t0.1\t9\t9\tthing {number}, stuff" for number in range(1, 151)]
    text(tmp_path / "objectInfo150.txt", "Idx\tRatio\tTrain\tVal\tName", *lines)
    classes = open_label_maps(tmp_path, "train")[1]
    assert classes[::149] == ("thing 1, stuff", "thing 150, stuff")
    assert open_label_maps(tmp_path, "train", classes=classes)[1] == classes
    text(tmp_path / "objectInfo150.txt", *lines[1:])
    with pytest.raises(ValueError, match=r"objectInfo150.txt must have a line for each"):
        open_label_maps(tmp_path, "train")
    mask(tmp_path / "annotations/validation/a.png", (0, 1, 151), (2, 3, 0))
    with pytest.raises(
        BadImageError,
        match=r"a\.png holds label 151 at row 0, column 2, and the classes are 1 to 150",
    ):
        images.load(0, 3)


def test_voc_takes_the_listed_images(tmp_path):
    for name in "abc":
        image(tmp_path / "JPEGImages" / f"{name}.jpg")
    for name, value in (("a", 20), ("b", 15)):
        mask(tmp_path / "SegmentationClass" / f"{name}.png", (0, value, 255), (1, 2, 3))
        with Image.open(tmp_path / "SegmentationClass" / f"{name}.png") as grey:
            coloured = grey.copy()
        coloured.putpalette(list(range(255, -1, -1)) * 3)
        coloured.save(tmp_path / "SegmentationClass" / f"{name}.png")
    text(tmp_path / "ImageSets/Segmentation/train.txt", "b", "a", "")
    text(tmp_path / "ImageSets/Segmentation/val.txt", "c")
    images, classes = open_label_maps(tmp_path, "train")
    assert (len(classes), classes[0], classes[15], classes[20]) == (21, "background", "person", "tvmonitor")
    assert images.files() == ["b.jpg", "a.jpg"]
    assert images.load(1, 3)[1].tolist() == [[0, 20, 255], [1, 2, 3]], "numbers, not colours of the palette"
    with pytest.raises(ValueError, match=r"val.txt names c, and there is no such mask in .*SegmentationClass"):
        open_label_maps(tmp_path, "val")


def test_pets_ignore_the_border(tmp_path):
    for name in "abc":
        image(tmp_path / "images" / f"{name}.jpg")
        mask(tmp_path / "annotations/trimaps" / f"{name}.png", (1, 2, 3), (3, 2, 1))
        (tmp_path / "annotations/trimaps" / f"._{name}.png").write_bytes(b"Mac")
    text(tmp_path / "annotations/trainval.txt", "# name class species breed", "c 1 1 1", "a 2 1 1")
    text(tmp_path / "annotations/test.txt", "b 1 1 1")
    images, classes = open_label_maps(tmp_path, "train")
    assert classes == ("pet", "background")
    assert images.files() == ["c.jpg", "a.jpg"]
    assert images.load(0, 3)[1].tolist() == [[0, 1, 255], [255, 1, 0]]
    assert open_label_maps(tmp_path, "val", classes=classes)[0].files() == ["b.jpg"]
    with pytest.raises(ValueError, match="other classes than the model: 0 is 'pet', not 'cat'"):
        open_label_maps(tmp_path, "val", classes=("cat", "background"))
    mask(tmp_path / "annotations/trimaps/b.png", (1, 2, 3), (3, 0, 1))
    with pytest.raises(BadImageError, match=r"b\.png holds label 0 at row 1, column 1, and the classes are 1 to 2"):
        open_label_maps(tmp_path, "val")[0].load(0, 3)


@pytest.mark.parametrize("folder", ["masks", "labels"])
def test_plain_folders_are_matched_and_their_classes_counted(tmp_path, folder):
    plain(tmp_path, "train", "b", folder=folder)
    plain(tmp_path, "train", "a", ((4, 4, 4), (255, 0, 0)), folder=folder)
    plain(tmp_path, "val", "x", ((0, 0, 0), (0, 0, 0)), folder=folder)
    for other in ("Thumbs.db", "desktop.ini", ".DS_Store", "._a.jpg", ".hidden.png"):
        (tmp_path / "images/train" / other).write_bytes(b"")
        (tmp_path / folder / "train" / other).write_bytes(b"")
    for split, files in (("train", ["a.jpg", "b.jpg"]), ("val", ["x.jpg"])):
        images, classes = open_label_maps(tmp_path, split)
        assert images.files() == files
        assert classes == tuple("01234"), "of the training masks, for both"
    grey, labels = open_label_maps(tmp_path, "train")[0].load(0, 1)
    assert grey.mode == "L"
    assert labels.tolist() == [[4, 4, 4], [255, 0, 0]]
    assert open_label_maps(tmp_path, "val", classes=("sky", "sea"))[1] == ("sky", "sea")
    for wrong, said in (("", "class 3 has no name"), ("sky", "the classes 0 and 3 are both called 'sky': rename one")):
        text(tmp_path / "classes.txt", "sky", "deep sea", "land", wrong, "birds")
        with pytest.raises(ValueError, match=rf"classes.txt: {said}"):
            open_label_maps(tmp_path, "train")
    text(tmp_path / "classes.txt", "sky", "deep sea", "land", "birds", "fish", "")
    assert open_label_maps(tmp_path, "val")[1] == ("sky", "deep sea", "land", "birds", "fish")
    with pytest.raises(ValueError, match=r"classes.txt has other classes than the model: 5, not 6"):
        open_label_maps(tmp_path, "val", classes=("sky", "deep sea", "land", "birds", "fish", "more"))


def test_plain_folders_with_lists(tmp_path):
    for name in ("a", "b c", "d"):
        image(tmp_path / "images" / f"{name}.JPG")
        mask(tmp_path / "masks" / f"{name}.png", (0, 1, 1), (0, 1, 1))
    text(tmp_path / "train.txt", "b c", "a")
    assert open_label_maps(tmp_path, "train")[0].files() == ["b c.JPG", "a.JPG"]
    with pytest.raises(ValueError, match="has no split val; there are: train"):
        open_label_maps(tmp_path, "val")
    for lines, message in (
        (["d", "e"], r"val.txt names e, and there is no such image in .*images"),
        (["d", "d"], "val.txt names d twice"),
        (["", " "], "val.txt is empty"),
    ):
        text(tmp_path / "val.txt", *lines)
        with pytest.raises(ValueError, match=message):
            open_label_maps(tmp_path, "val")


@pytest.mark.parametrize(
    ("values", "mode"),
    [
        (np.array([[0, 1, 1], [1, 0, 0]], np.uint8), "L"),
        (np.array([[0, 1, 1], [1, 0, 0]], bool), None),
        (np.array([[0, 1, 1], [1, 0, 0]], np.uint16), None),
        (np.array([[0, 1, 1], [1, 0, 0]], np.int32), None),
    ],
)
def test_masks_of_8_16_and_32_bits(tmp_path, values, mode):
    plain(tmp_path)
    (tmp_path / "masks/train/a.png").unlink()
    save(tmp_path / "masks/train/a.tif", values, mode)
    images, classes = open_label_maps(tmp_path, "train")
    assert classes == ("0", "1")
    assert images.load(0, 3)[1].tolist() == [[0, 1, 1], [1, 0, 0]]


def test_a_bad_mask_raises_when_it_is_loaded(tmp_path):
    plain(tmp_path, "train")
    plain(tmp_path, "val", "x")
    images, _ = open_label_maps(tmp_path, "val")
    path = tmp_path / "masks/val/x.png"

    def message():
        with pytest.raises(BadImageError) as error:
            images.load(0, 3)
        assert "\n" not in str(error.value)
        return str(error.value)

    mask(path, (0, 1, 2), (0, 2, 7))
    advice = "leaves out the pixels of this label"
    assert message() == f"{path} holds label 7 at row 1, column 2, and the classes are 0 to 2: --data.ignore 7 {advice}"
    mask(path, (0, 1, 300), (0, 2, 1), dtype=np.uint16)
    assert message() == f"{path} holds label 300 at row 0, column 2, and the classes are 0 to 2: --data.ignore 300 {advice}"
    mask(path, (0, 1), (0, 2), (1, 1))
    assert message() == f"{path} is 2 x 3 (width x height), and its image {images.name(0)} is 3 x 2"
    image(path)
    assert message().startswith(f"{path} is RGB: a mask holds one number for each pixel")
    path.write_bytes(b"nothing")
    assert message() == f"{path} cannot be read: not an image"
    path.unlink()
    assert message() == f"{path} cannot be read: No such file or directory"
    (tmp_path / "images/val/x.jpg").write_bytes(b"nothing")
    assert message() == f"{images.name(0)} cannot be read: not an image"


def test_classes_that_cannot_be_counted(tmp_path):
    plain(tmp_path, rows=((0, 255, 255), (0, 0, 0)))
    with pytest.raises(
        ValueError, match=r"hold class 0 only: there must be two classes or more \(255 is ignored; two classes are"
    ):
        open_label_maps(tmp_path, "train")
    mask(tmp_path / "masks/train/a.png", (0, 1, 256), (0, 2, 1), dtype=np.uint16)
    with pytest.raises(ValueError, match=r"a\.png holds label 256: classes are 0 to 254"):
        open_label_maps(tmp_path, "train")
    text(tmp_path / "classes.txt", "one")
    with pytest.raises(ValueError, match=r"classes\.txt names 1 classes: 2 to 255 are expected"):
        open_label_maps(tmp_path, "train")


def test_folders_that_do_not_match(tmp_path):
    with pytest.raises(ValueError, match="there is no folder"):
        open_label_maps(tmp_path / "nowhere", "train")
    with pytest.raises(ValueError, match="holds no label maps"):
        open_label_maps(tmp_path, "train")
    image(tmp_path / "images/train/a.png")
    with pytest.raises(ValueError, match="has images/ but neither masks/ nor labels/"):
        open_label_maps(tmp_path, "train")
    (tmp_path / "masks/train").mkdir(parents=True)
    with pytest.raises(ValueError, match="masks/train holds no images"):
        open_label_maps(tmp_path, "train")
    mask(tmp_path / "masks/train/a.png", (0, 1, 0), (0, 1, 0))
    mask(tmp_path / "masks/train/b.png", (0, 1, 0), (0, 1, 0))
    with pytest.raises(ValueError, match=r"masks/train/b\.png has no image of its name in .*images/train"):
        open_label_maps(tmp_path, "train")
    image(tmp_path / "images/train/b.png")
    image(tmp_path / "images/train/c.png")
    with pytest.raises(ValueError, match=r"images/train/c\.png has no mask of its name in .*masks/train"):
        open_label_maps(tmp_path, "train")
    image(tmp_path / "images/train/c.jpg")
    with pytest.raises(ValueError, match=r"c\.jpg and .*c\.png have the same name"):
        open_label_maps(tmp_path, "train")


def test_ignored_labels_are_no_classes(tmp_path):
    """11 is CamVid's void; a label before the others moves their numbers, and the first line of classes.txt names label 0."""
    plain(tmp_path, rows=((0, 1, 11), (2, 255, 11)))
    plain(tmp_path, "val", rows=((0, 1, 11), (2, 255, 11)))
    images, classes = open_label_maps(tmp_path, "train", ignore=(11,))
    assert classes == ("0", "1", "2")
    assert images.load(0, 3)[1].tolist() == [[0, 1, 255], [2, 255, 255]]
    images, classes = open_label_maps(tmp_path, "train", ignore=(11, 0))
    assert classes == ("1", "2")
    assert images.load(0, 3)[1].tolist() == [[255, 0, 255], [1, 255, 255]]
    images, names = open_label_maps(tmp_path, "val", classes=("road", "car"), ignore=(11, 0))
    assert names == ("road", "car")
    assert images.load(0, 3)[1].tolist() == [[255, 0, 255], [1, 255, 255]]
    text(tmp_path / "classes.txt", "", "road", "car")
    assert open_label_maps(tmp_path, "train", ignore=(11, 0))[1] == ("road", "car"), "what is ignored needs no name"
    text(tmp_path / "classes.txt", "void", "road", "car")
    assert open_label_maps(tmp_path, "train", ignore=(11, 0))[1] == ("road", "car")
    mask(tmp_path / "masks/train/a.png", (0, 1, 60000), (2, 255, 2), dtype=np.uint16)
    assert open_label_maps(tmp_path, "train", ignore=(60000,))[0].load(0, 3)[1].tolist() == [[0, 1, 255], [2, 255, 2]]
    with pytest.raises(ValueError, match=r"data\.ignore must be labels from 0 to 65535, got -1"):
        open_label_maps(tmp_path, "train", ignore=(-1,))
    with pytest.raises(ValueError, match=r"classes\.txt names 1 classes: 2 to 255 are expected"):
        open_label_maps(tmp_path, "train", ignore=(0, 1))


def test_a_fixed_layout_can_ignore_a_class(tmp_path):
    image(tmp_path / "images/training/a.jpg")
    mask(tmp_path / "annotations/training/a.png", (0, 1, 150), (2, 3, 0))
    images, classes = open_label_maps(tmp_path, "train", ignore=(2,))
    assert (len(classes), classes[:2]) == (149, ("1", "3"))
    assert images.load(0, 3)[1].tolist() == [[255, 0, 148], [255, 1, 255]]


@pytest.mark.parametrize(
    ("images", "masks"),
    [
        ("{}", "{}annot"),
        ("{}", "{}_labels"),
        ("{}/images", "{}/masks"),
        ("{}_images", "{}_masks"),
        ("img_dir/{}", "ann_dir/{}"),
    ],
)
def test_common_folders_are_detected(tmp_path, images, masks):
    for split, name in (("train", "a"), ("valid", "b"), ("test", "c")):
        image(tmp_path / images.format(split) / f"{name}.jpg")
        mask(tmp_path / masks.format(split) / f"{name}.png", (0, 1, 1), (0, 1, 1))
    assert open_label_maps(tmp_path, "train")[0].files() == ["a.jpg"]
    assert open_label_maps(tmp_path, "val")[0].files() == ["b.jpg"], "and not those of the test split"
    assert list(label_map_splits(tmp_path)) == ["train", "val", "test"]
    assert open_label_maps(tmp_path, "testing")[0].files() == ["c.jpg"]
    for folder in (images, masks):
        shutil.rmtree(tmp_path / folder.format("valid"))
    with pytest.raises(NoSplitError, match=r"has no split val; there are: train, test$"):
        open_label_maps(tmp_path, "val")


def test_folders_and_files_by_patterns(tmp_path):
    for split, name in (("train", "a"), ("val", "b")):
        image(tmp_path / "photos" / split / f"{name}.jpg")
        mask(tmp_path / "truth" / f"{split}_gt" / f"{name}_L.png", (0, 1, 1), (0, 1, 1))
        mask(tmp_path / "truth" / f"{split}_gt" / f"{name}_colours.png", (9, 9, 9), (9, 9, 9))
    where = {"images": "photos/{split}", "masks": "truth/{split}_gt/*_L.png"}
    for split, file in (("train", "a.jpg"), ("val", "b.jpg")):
        images, classes = open_label_maps(tmp_path, split, **where)
        assert (images.files(), classes) == ([file], ("0", "1"))
        assert images.load(0, 3)[1].tolist() == [[0, 1, 1], [0, 1, 1]]
    shutil.copytree(tmp_path / "photos" / "val", tmp_path / "photos" / "extra")
    assert list(label_map_splits(tmp_path, **where)) == ["train", "val"], "extra has no masks"
    shutil.copytree(tmp_path / "truth" / "val_gt", tmp_path / "truth" / "extra_gt")
    assert open_label_maps(tmp_path, "extra", **where)[0].files() == ["b.jpg"]
    with pytest.raises(NoSplitError, match=r"has no split test; there are: train, val, extra$"):
        open_label_maps(tmp_path, "test", **where)
    with pytest.raises(ValueError, match="holds no label maps"):
        open_label_maps(tmp_path, "train")
    for wrong, told in (
        ({"images": "photos/{split}"}, "data.masks is missing: .* got 'photos/{split}' only"),
        ({**where, "masks": "truth/train_gt"}, "with {split} in both or none, got 'truth/train_gt'"),
        ({**where, "images": "../{split}"}, r"data.images must be inside the data's folder, .* got '\.\./{split}'"),
        ({**where, "masks": "truth/{split}_gt/*_X.png"}, r"train_gt holds no images named like \*_X\.png"),
        ({**where, "masks": "none/{split}"}, "there is no folder .*none/train"),
    ):
        with pytest.raises(ValueError, match=told):
            open_label_maps(tmp_path, "train", **wrong)


def test_a_split_in_the_names_of_files(tmp_path):
    for split in ("train", "test"):
        image(tmp_path / "photos" / f"{split}_a.jpg")
        mask(tmp_path / "truth" / f"{split}_a.png", (0, 1, 1), (0, 1, 1))
    where = {"images": "photos/{split}_*.jpg", "masks": "truth/{split}_*.png"}
    assert list(label_map_splits(tmp_path, **where)) == ["train", "test"]
    assert open_label_maps(tmp_path, "test", **where)[0].files() == ["test_a.jpg"]
