"""Objects of COCO files, against boxes and masks written by hand."""

import json
import re

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as rle

from inline_attention.data.coco import open_coco
from inline_attention.lite.decode import BadImageError

SIZE = (8, 6)  # width, height
SKIP = r" \(--skip-bad goes on without such entries\)$"


def square(x, y, across, down):
    return [[x, y, x + across, y, x + across, y + down, x, y + down]]


def thing(number, image=1, category=1, bbox=(1, 2, 3, 2), **more):
    entry = {"id": number, "image_id": image, "category_id": category, "bbox": list(bbox), "iscrowd": 0, "area": 6.0}
    return {**entry, "segmentation": square(*bbox), **more}


def image(number, **more):
    return {"id": number, "file_name": f"{number}.png", "width": SIZE[0], "height": SIZE[1], **more}


IMAGES = (image(1), image(2))


def content(*annotations, images=IMAGES, categories=((1, "cat"), (7, "dog"))):
    named = [{"id": number, "name": name} for number, name in categories]
    return {"images": list(images), "annotations": list(annotations), "categories": named}


def write(root, written, file="annotations/instances_train2017.json", folder="train2017", images=(1, 2)):
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(written if isinstance(written, str) else json.dumps(written))
    (root / folder).mkdir(parents=True, exist_ok=True)
    for number in images:
        Image.new("RGB", SIZE, (number, 20, 30)).save(root / folder / f"{number}.png")
    return root


def test_boxes_labels_and_masks_by_hand(tmp_path):
    crowd = {"size": [6, 8], "counts": [6, 3, 39]}  # by columns: the upper half of the second
    written = content(
        thing(5, bbox=(1, 2, 3, 2)), thing(4, category=7, bbox=(6, 4, 5, 9)), thing(9, segmentation=crowd, iscrowd=1)
    )
    images, classes, left_out = open_coco(write(tmp_path, written), "train")
    assert (len(images), classes, left_out) == (2, ("cat", "dog"), ())
    image, objects = images.load(0, 3)
    assert image.getpixel((0, 0)) == (1, 20, 30)
    assert objects.boxes.tolist() == [[1, 2, 4, 4], [6, 4, 8, 6], [1, 2, 4, 4]], "the second is clipped to the image"
    assert objects.labels.tolist() == [1, 2, 1]
    assert images.ground_truth().getAnnIds() == [5, 4, 9]
    assert objects.crowd.tolist() == [False, False, True]
    assert (objects.image_id, objects.height, objects.width) == (1, 6, 8)
    assert (objects.boxes.dtype, objects.labels.dtype) == (np.float32, np.int64)
    expected = np.zeros((3, 6, 8), np.uint8)
    expected[0, 2:4, 1:4] = expected[1, 4:, 6:] = expected[2, :3, 1] = 1
    np.testing.assert_array_equal(objects.masks(), expected)


def test_an_image_without_objects_is_kept(tmp_path):
    images, _, _ = open_coco(write(tmp_path, content(thing(1))), "train")
    image, objects = images.load(1, 1)
    assert image.mode == "L"
    assert objects.boxes.shape == (0, 4)
    assert objects.labels.shape == objects.crowd.shape == (0,)
    assert objects.masks().shape == (0, 6, 8)


def test_two_polygons_are_one_object(tmp_path):
    written = content(thing(1, segmentation=square(0, 0, 2, 1) + square(5, 3, 1, 2)))
    mask = open_coco(write(tmp_path, written), "train")[0].load(0, 3)[1].masks()[0]
    expected = np.zeros((6, 8), np.uint8)
    expected[0, :2] = expected[3:5, 5] = 1
    np.testing.assert_array_equal(mask, expected)


def test_compressed_and_uncompressed_runs_are_the_same(tmp_path):
    mask = (np.random.default_rng(0).random((6, 8)) < 0.4).astype(np.uint8)
    flat = np.flatnonzero(np.diff(np.concatenate([[0], mask.T.reshape(-1)])))
    counts = np.diff(np.concatenate([[0], flat, [48]])).tolist()
    text = rle.encode(np.asfortranarray(mask))["counts"].decode()
    written = content(*(thing(n, segmentation={"size": [6, 8], "counts": c}) for n, c in ((1, counts), (2, text))))
    masks = open_coco(write(tmp_path, written), "train")[0].load(0, 3)[1].masks()
    np.testing.assert_array_equal(masks, [mask, mask])


@pytest.mark.parametrize("seed", range(5))
def test_compressed_runs_of_any_length_are_read(tmp_path, seed):
    mask = np.repeat(np.random.default_rng(seed).random(40) < 0.5, 3000).reshape(300, 400).astype(np.uint8)
    text = rle.encode(np.asfortranarray(mask))["counts"].decode()
    written = content(thing(1, segmentation={"size": [300, 400], "counts": text}), images=[image(1, width=400, height=300)])
    assert len(open_coco(write(tmp_path, written), "train")[0]) == 1


@pytest.mark.parametrize(
    ("split", "file", "folder"),
    [
        ("train", "annotations/instances_train2014.json", "train2014"),
        ("val", "annotations/instances_val2017.json", "images/val2017"),
        ("train", "annotations/instances_train.json", "train"),
        ("val", "annotations/instances_val.json", "images/val"),
        ("train", "train/_annotations.coco.json", "train"),
        ("val", "valid/_annotations.coco.json", "valid"),
        ("val", "val/_annotations.coco.json", "val"),
    ],
)
def test_layouts(tmp_path, split, file, folder):
    images, _, _ = open_coco(write(tmp_path, content(), file, folder), split)
    assert images.coco_json == tmp_path / file
    assert [images.name(index) for index in range(2)] == [str(tmp_path / folder / f"{number}.png") for number in (1, 2)]
    assert images.files() == ["1.png", "2.png"]
    assert images.labels() is None
    other = "val" if split == "train" else "train"
    with pytest.raises(ValueError, match=f"has no split {other}; there are: {split}"):
        open_coco(tmp_path, other)


def test_the_newest_year_that_has_images(tmp_path):
    for year in (2014, 2015):
        write(tmp_path, content(), f"annotations/instances_train{year}.json", f"train{year}")
    (tmp_path / "annotations/instances_train2017.json").write_text("{}")
    assert open_coco(tmp_path, "train")[0].coco_json.name == "instances_train2015.json"


def test_a_file_without_its_images(tmp_path):
    write(tmp_path, content(), folder="elsewhere")
    with pytest.raises(ValueError, match=r"instances_train2017.json is there, but not its images: neither train2017/ nor"):
        open_coco(tmp_path, "train")
    with pytest.raises(ValueError, match="there is no folder"):
        open_coco(tmp_path / "nowhere", "train")


def test_classes_come_by_category_id_or_in_the_given_order(tmp_path):
    written = content(thing(1, category=9), thing(2, category=3), categories=((9, "dog"), (3, "cat")))
    images, classes, _ = open_coco(write(tmp_path, written), "train")
    assert (classes, images.category_ids) == (("cat", "dog"), (3, 9))
    assert images.load(0, 3)[1].labels.tolist() == [2, 1]
    images, classes, _ = open_coco(tmp_path, "train", classes=("dog", "bird", "cat"))
    assert classes == ("dog", "bird", "cat")
    assert images.category_ids[::2] == (9, 3)
    assert images.category_ids[1] not in (3, 9)
    assert images.load(0, 3)[1].labels.tolist() == [1, 3]
    assert images.ground_truth().getCatIds() == list(images.category_ids)
    with pytest.raises(ValueError, match=r"category 9, 'dog', is not a class of the model: cat$"):
        open_coco(tmp_path, "train", classes=("cat",))


def test_images_come_by_id_and_some_can_be_chosen(tmp_path):
    written = content(thing(1, image=1), thing(2, image=2), thing(3, image=3), images=map(image, (3, 2, 1)))
    images, _, _ = open_coco(write(tmp_path, written, images=(1, 2, 3)), "train")
    assert images.files() == ["1.png", "2.png", "3.png"]
    some = images.choose([2, 0])
    assert some.files() == ["3.png", "1.png"]
    assert some.ground_truth().getAnnIds() == [3, 1]
    assert some.load(0, 3)[1].image_id == 3


def test_the_digest_changes_with_an_annotation(tmp_path):
    before = open_coco(write(tmp_path, content(thing(1))), "train")[0].digest()
    assert before == open_coco(write(tmp_path, content(thing(1))), "train")[0].digest()
    assert before != open_coco(write(tmp_path, content(thing(1, category=7))), "train")[0].digest()


def test_a_box_without_area_after_clipping_is_bad(tmp_path):
    written = content(thing(1, bbox=(2, 2, 1e-5, 3), segmentation=square(2, 2, 1, 3)))
    with pytest.raises(ValueError, match=r"annotation 1 has a bbox of no area once it is clipped to its image"):
        open_coco(write(tmp_path, written), "train")


def test_the_ground_truth_is_that_of_the_file(tmp_path, capsys):
    written = content(
        thing(3, bbox=(6, 4, 5, 9), area=1.5),
        thing(8, category=7, image=2, iscrowd=1),
        {**thing(9), "area": None},
        thing(4, image=5),
    )
    images, _, left_out = open_coco(write(tmp_path, written), "train", skip_bad=True)
    truth = images.ground_truth()
    assert capsys.readouterr().out == ""
    assert truth.getImgIds() == [1, 2]
    assert truth.getCatIds() == [1, 7]
    assert truth.anns[3]["bbox"] == [6, 4, 5, 9], "as COCO scores it, not clipped"
    assert (truth.anns[3]["area"], truth.anns[9]["area"]) == (1.5, 6.0)
    assert (truth.anns[8]["iscrowd"], truth.anns[8]["category_id"], truth.anns[8]["image_id"]) == (1, 7, 2)
    assert 4 not in truth.anns
    assert len(left_out) == 1


BAD = {
    "annotation 5 is of image_id 4, which is no image": thing(5, image=4),
    "annotation 5 has category_id 2, which is no category": thing(5, category=2),
    r"annotation 5 has the bbox \[1, 2, 3\]: four finite numbers": thing(5) | {"bbox": [1, 2, 3]},
    r"annotation 5 has the bbox \[1, 2, NaN, 4\]: four finite": thing(5) | {"bbox": [1, 2, float("nan"), 4]},
    r"annotation 5 has the bbox null: four finite": thing(5) | {"bbox": None},
    r"annotation 5 has a bbox of no area: 3 x 0 \(width x height\)": thing(5) | {"bbox": [1, 2, 3, 0]},
    r"annotation 5 has a bbox of no area: -1 x 2": thing(5) | {"bbox": [1, 2, -1, 2]},
    r"annotation 5 has a bbox of no area once it is clipped": thing(5) | {"bbox": [1, 2, 1e-12, 2]},
    r"annotation 5 has a bbox wholly outside its image: \[8, 0, 1, 1\] on 8 x 6": thing(5) | {"bbox": [8, 0, 1, 1]},
    r"annotation 5 has a bbox wholly outside its image: \[0, -3, 2": thing(5) | {"bbox": [0, -3, 2, 3]},
    "annotation 5 has a polygon of 4 numbers": thing(5, segmentation=[[1, 2, 3, 4]]),
    "annotation 5 has a polygon of 7 numbers": thing(5, segmentation=[[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 7]]),
    "annotation 5 has the polygon 1: a list": thing(5, segmentation=[1, 2, 3, 4, 5, 6]),
    "annotation 5 has a polygon far outside its image of 8 x 6: ": thing(5, segmentation=[[0, 0, 1, float("nan"), 1, 1]]),
    "annotation 5 has a polygon far outside its": thing(5, segmentation=[[0, 0, 1, 10**400, 1, 1]]),
    'annotation 5 has the polygon .0, 0, "1", 0, 1, 1.: a list of numbers': thing(5, segmentation=[[0, 0, "1", 0, 1, 1]]),
    "annotation 5 has a polygon far outside its image": thing(5, segmentation=[[0, 0, 1e9, 0, 1e9, 1e9]]),
    r"annotation 5 has a mask of another size than its image: \[8, 6\], and the image is \[6, 8\]": thing(
        5, segmentation={"size": [8, 6], "counts": [48]}
    ),
    "annotation 5 has a mask whose run lengths do not add up to 6 x 8 pixels": thing(
        5, segmentation={"size": [6, 8], "counts": [40, 7]}
    ),
    "annotation 5 has a mask whose run lengths do not add up to 6 x 8 pixels: ": thing(
        5, segmentation={"size": [6, 8], "counts": "0é"}
    ),
    "annotation 5 has a mask whose run lengths do not add": thing(5, segmentation={"size": [6, 8]}),
    "annotation 5 has no segmentation": thing(5, segmentation=[]),
    "annotation 5 has the segmentation 3: polygons or run lengths": thing(5, segmentation=3),
    "annotation 1 is there twice": thing(1),
    "annotation at place 1 has no whole number as its id": thing("5"),
}


@pytest.mark.parametrize("line", BAD)
def test_a_bad_annotation_raises_or_is_left_out(tmp_path, line):
    write(tmp_path, content(thing(1), BAD[line], thing(6, image=2)))
    with pytest.raises(ValueError, match=r"instances_train2017\.json: " + line) as raised:
        open_coco(tmp_path, "train")
    assert "\n" not in str(raised.value)
    assert str(raised.value).endswith(" (--skip-bad goes on without such entries)")
    images, _, left_out = open_coco(tmp_path, "train", skip_bad=True)
    assert left_out == (str(raised.value).removesuffix(" (--skip-bad goes on without such entries)"),)
    assert images.ground_truth().getAnnIds() == [1, 6]


@pytest.mark.parametrize(
    ("bad", "line"),
    [
        (image(3), 'image 3 is "3.png", which is not in .*train2017'),
        (image(3, file_name="../2.png"), r'image 3 is "../2.png", which is outside of'),
        (image(3, file_name="..\\2.png"), "image 3 is .*, which is outside of"),
        (image(3, file_name="/etc/2.png"), 'image 3 is "/etc/2.png", which is outside of'),
        (image(3, file_name="sub/9.png"), 'image 3 is "sub/9.png", which is not in'),
        (image(3, file_name=None), "image 3 has no file_name"),
        (image(3, height=0), "image 3 has a height of 0"),
        (image(3, width="8"), 'image 3 has a width of "8"'),
        (image(2), "image 2 is there twice"),
        ("image", "image at place 2 has no whole number as its id"),
    ],
)
def test_a_bad_image_raises_or_is_left_out_with_its_objects(tmp_path, bad, line):
    on_it = [thing(7, image=3)] if isinstance(bad, dict) and bad["id"] == 3 else []
    write(tmp_path, content(thing(1), *on_it, images=[image(1), image(2), bad]))
    with pytest.raises(ValueError, match=r"instances_train2017\.json: " + line + ".*" + SKIP):
        open_coco(tmp_path, "train")
    images, _, left_out = open_coco(tmp_path, "train", skip_bad=True)
    assert len(left_out) == 1, "its objects are left out without a line of their own"
    assert images.files() == ["1.png", "2.png"]


def test_images_may_lie_in_folders_below(tmp_path):
    write(tmp_path, content(images=[image(1), image(2, file_name="sub/1.png")]))
    write(tmp_path, content(images=[image(1), image(2, file_name="sub/1.png")]), folder="train2017/sub", images=[1])
    images, _, _ = open_coco(tmp_path, "train")
    assert images.name(1) == str(tmp_path / "train2017/sub/1.png")
    assert images.files() == ["1.png", "1.png"]


@pytest.mark.parametrize(
    ("written", "line"),
    [
        ("{", "is not JSON: "),
        ("[]", 'has no list "images"'),
        ({"images": [], "annotations": {}}, 'has no list "annotations"'),
        ({"images": [], "annotations": []}, 'has no list "categories"'),
        (content(images=[]), "has no image$"),
        (content(images=[image(5)]), "has no image without errors$"),
        (content(categories=[]), "has no category"),
        (content(categories=[(1, "cat"), (1, "dog")]), "category 1 is there twice"),
        (content(categories=[(1, "cat"), (2, "cat")]), "categories 1 and 2 are both called 'cat'"),
        (content(categories=[(1, "")]), "category 1 has no name"),
        (content(categories=[("1", "cat")]), "category at place 0 has no whole number as its id"),
    ],
)
def test_a_file_that_is_wrong_as_a_whole_is_never_skipped(tmp_path, written, line):
    write(tmp_path, written)
    with pytest.raises(ValueError, match=r"instances_train2017\.json:? " + line) as error:
        open_coco(tmp_path, "train", skip_bad=True)
    assert "\n" not in str(error.value)


def test_an_image_of_another_size_or_none_raises_when_it_is_loaded(tmp_path):
    images, _, _ = open_coco(write(tmp_path, content()), "train")
    Image.new("RGB", (6, 8)).save(tmp_path / "train2017/1.png")
    with pytest.raises(BadImageError, match=r"1\.png is 6 x 8 .*, and .*instances_train2017\.json says 8 x 6$"):
        images.load(0, 3)
    (tmp_path / "train2017/1.png").write_text("nothing")
    with pytest.raises(BadImageError, match=r"1\.png cannot be read: not an image"):
        images.load(0, 3)
    (tmp_path / "train2017/1.png").unlink()
    with pytest.raises(BadImageError, match=r"1\.png cannot be read: No such file"):
        images.load(0, 3)


@pytest.mark.parametrize("name", ["a\0.png", "\ud800.png", "\x1b[2J"])
def test_names_with_control_characters_are_named(tmp_path, name):
    write(tmp_path, content(thing(1), images=[image(1, file_name=name), image(2)]))
    with pytest.raises(ValueError, match=re.escape(f"2017.json: image 1 has the file_name {json.dumps(name)}, with control")):
        open_coco(tmp_path, "train")
    write(tmp_path, content(thing(1), categories=((1, name), (7, "dog"))))
    with pytest.raises(ValueError, match=r"category 1: the class name .* has control characters or is not UTF-8"):
        open_coco(tmp_path, "train")


def test_an_image_larger_than_the_limit_is_named(tmp_path):
    write(tmp_path, content(thing(1), images=[image(1, width=10**6, height=10**6), image(2)]))
    with pytest.raises(ValueError, match=r"image 1 is too large: 1,000,000 x 1,000,000 pixels .* INLINE_MAX_PIXELS"):
        open_coco(tmp_path, "train")


def test_annotations_without_masks_are_boxes_alone(tmp_path):
    bare = thing(5, segmentation=[]), {key: value for key, value in thing(6, image=2).items() if key != "segmentation"}
    images, _, left_out = open_coco(write(tmp_path, content(*bare)), "train")
    assert (images.has_masks, images.choose([0]).has_masks, left_out) == (False, False, ())
    assert images.load(0, 3)[1].boxes.tolist() == [[1, 2, 4, 4]]
    with pytest.raises(ValueError, match=r"annotation 5 has no segmentation.*--task\.head faster_rcnn takes boxes alone"):
        open_coco(tmp_path, "train", masks=True)
    unsized = {**bare[0], "area": None}
    assert open_coco(write(tmp_path, content(unsized)), "train")[0].ground_truth().anns[5]["area"] == 6, "3 x 2, of the box"
    mixed = content(thing(5), bare[1])
    with pytest.raises(ValueError, match="annotation 6 has no segmentation"):
        open_coco(write(tmp_path, mixed), "train")
    images, *_ = open_coco(tmp_path, "train", masks=False)
    assert (len(images.ground_truth().anns), images.has_masks) == (2, False)
    assert open_coco(write(tmp_path, content(thing(5))), "train")[0].has_masks
