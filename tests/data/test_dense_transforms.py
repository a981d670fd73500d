"""Transforms of images with label maps or objects, against geometry worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from inline_attention.data.coco import Objects
from inline_attention.data.dense_transforms import (
    DetectionEvalTransform,
    DetectionTrainTransform,
    SegmentationEvalTransform,
    SegmentationTrainTransform,
)

MEAN, STD = (0.5, 0.25, 0.75), (0.5, 0.2, 0.1)


def training(size=(8, 8), resize=(1.0, 1.0), hflip=0.0, color_jitter=0.0, interpolation="nearest"):
    return SegmentationTrainTransform(size, resize, hflip, color_jitter, MEAN, STD, interpolation)


def pair(height, width, row, column, colour=(255, 0, 0)):
    """An image and a map with one marked pixel."""
    pixels, classes = np.zeros((height, width, 3), np.uint8), np.zeros((height, width), np.uint8)
    pixels[row, column], classes[row, column] = colour, 1
    return Image.fromarray(pixels), classes


def raw(pixels):
    """Before it was normalised."""
    return pixels * torch.tensor(STD)[:, None, None] + torch.tensor(MEAN)[:, None, None]


def test_without_augmentation():
    image, classes = pair(8, 8, 2, 5)
    pixels, labels = training()(image, classes)
    assert (pixels.dtype, labels.dtype) == (torch.float32, torch.int64)
    assert labels.tolist() == classes.tolist()
    assert pixels[:, 2, 5].tolist() == pytest.approx([(1 - 0.5) / 0.5, -0.25 / 0.2, -0.75 / 0.1])
    assert pixels[:, 0, 0].tolist() == pytest.approx([-1, -0.25 / 0.2, -0.75 / 0.1])


def test_a_flip_moves_image_and_map():
    pixels, labels = training(hflip=1.0)(*pair(8, 8, 2, 5))
    assert labels.nonzero().tolist() == [[2, 2]]
    assert (raw(pixels)[0] > 0.5).nonzero().tolist() == [[2, 2]]


def test_the_scale_is_of_the_shorter_side():
    # 4 x 6 with size (8, 8): factor 1 brings 4 to 8, so a pixel is 2 x 2 and 12 columns leave 5 crops.
    found = set()
    for seed in range(40):
        torch.manual_seed(seed)
        pixels, labels = training()(*pair(4, 6, 1, 3))
        marked = labels.nonzero()
        assert (raw(pixels)[0] > 0.5).nonzero().tolist() == marked.tolist()
        assert len(marked) == 4, "two rows and two columns, wherever the crop is"
        assert marked[:, 0].unique().tolist() == [2, 3]
        found.add(6 - int(marked[:, 1].min()))
    assert found == {0, 1, 2, 3, 4}, "6 - left column is where the crop begins"


def test_smaller_images_are_filled_with_the_mean_colour_and_ignored():
    pixels, labels = training(resize=(0.5, 0.5))(*pair(8, 8, 0, 0))
    assert pixels.shape == (3, 8, 8)
    assert (labels[:4, :4] != 255).all()
    assert (labels == 255).sum() == 64 - 16
    assert (pixels[:, labels == 255] == 0).all(), "0 is the mean colour"
    flipped = training(resize=(0.5, 0.5), hflip=1.0)(*pair(8, 8, 0, 0))
    assert torch.equal(flipped[0], pixels.flip(-1))
    assert torch.equal(flipped[1], labels.flip(-1))
    jittered, _ = training(resize=(0.5, 0.5), color_jitter=0.8)(*pair(8, 8, 0, 0))
    assert (jittered[:, labels == 255] == 0).all()


def test_factors_are_uniform():
    # Striped by columns of the image: how many columns are not ignored tells the factor.
    widths = []
    for seed in range(300):
        torch.manual_seed(seed)
        _, labels = training(size=(40, 40), resize=(0.5, 1.0))(*pair(40, 40, 0, 0))
        widths.append(int((labels[0] != 255).sum()))
    assert (min(widths), max(widths)) == (20, 40)
    assert np.mean(widths) == pytest.approx(30, abs=1), "log-uniform would be 28.9"
    assert np.median(widths) == pytest.approx(30, abs=1.5), "log-uniform would be 28.3"


def test_no_new_class_appears():
    rng = np.random.default_rng(0)
    classes = rng.choice(np.array([3, 90, 255], np.uint8), (30, 41))
    image = Image.fromarray(rng.integers(0, 255, (30, 41, 3), np.uint8))
    for seed in range(10):
        torch.manual_seed(seed)
        _, labels = training((24, 32), (0.5, 2.0), 0.5, 0.4, "bicubic")(image, classes)
        assert labels.shape == (24, 32)
        assert set(labels.unique().tolist()) <= {3, 90, 255}


def test_maps_and_images_scale_alike():
    # An image whose colour is its class: pillow's nearest pixels are the map's.
    classes = np.random.default_rng(1).integers(0, 200, (13, 17), np.uint8)
    for seed in range(20):
        torch.manual_seed(seed)
        transform = SegmentationTrainTransform((16, 24), (0.6, 1.9), 0.5, 0.0, (0.0,), (1.0,), "nearest")
        pixels, labels = transform(Image.fromarray(classes), classes)
        inside = labels != 255
        assert torch.equal((pixels[0] * 255).round().long()[inside], labels[inside])


def test_crops_of_one_class_are_sampled_again():
    # Class 1 in the last 8 of 80 columns: 66 of 73 crops show class 0 alone.
    classes = np.zeros((8, 80), np.uint8)
    classes[:, 72:] = 1
    classes[0, 0] = 255
    image = Image.fromarray(np.zeros((8, 80, 3), np.uint8))
    mixed = 0
    for seed in range(200):
        torch.manual_seed(seed)
        labels = training()(image, classes)[1]
        share = float((labels == 1).sum() / (labels != 255).sum())
        mixed += 0.25 <= share <= 0.75
    # 5 of 73 crops have 2 to 6 of 8 columns: 1 - (68 / 73) ** 11 = 54 %, and 7 % without drawing again.
    assert mixed / 200 == pytest.approx(0.54, abs=0.1)


def test_same_seed_same_result_and_other_seed_another():
    image, classes = pair(30, 40, 7, 9)
    transform = training((16, 16), (0.5, 2.0), 0.5, 0.4, "bilinear")

    def drawn(seed):
        torch.manual_seed(seed)
        return transform(image, classes)[0]

    assert torch.equal(drawn(3), drawn(3))
    assert not torch.equal(drawn(3), drawn(4))


def test_colours_vary_and_classes_do_not():
    image, classes = Image.new("RGB", (8, 8), (120, 60, 200)), pair(8, 8, 2, 5)[1]
    plain, varied = training()(image, classes), training(color_jitter=0.4)(image, classes)
    assert not torch.allclose(plain[0], varied[0])
    assert raw(varied[0]).min() > -1e-6
    assert raw(varied[0]).max() < 1 + 1e-6
    assert torch.equal(plain[1], varied[1])


def test_grey_images():
    grey, classes = Image.new("L", (12, 9), 51), np.zeros((9, 12), np.uint8)
    pixels, _ = SegmentationTrainTransform((4, 6), (0.5, 2.0), 0.5, 5.0, (0.2,), (0.5,))(grey, classes)
    assert pixels.shape == (1, 4, 6)
    pixels, _ = SegmentationEvalTransform(None, 99, (0.1,), (0.5,))(grey, classes)
    assert pixels.shape == (1, 9, 12)
    assert float(pixels[0, 0, 0]) == pytest.approx((0.2 - 0.1) / 0.5)


def test_maps_keep_their_own_size_in_evaluation():
    image, classes = pair(20, 31, 7, 9)
    classes[0, 0] = 255
    pixels, labels = SegmentationEvalTransform(10, 99, MEAN, STD)(image, classes)
    assert pixels.shape == (3, 10, 16), "15.5 is rounded to the even number"
    assert labels.dtype == torch.int64
    assert labels.tolist() == classes.tolist()
    pixels, _ = SegmentationEvalTransform(None, 99, MEAN, STD)(image, classes)
    assert raw(pixels)[:, 7, 9].tolist() == pytest.approx([1, 0, 0], abs=1e-6)


def objects(height=6, width=8):
    return Objects(
        boxes=np.array([[1, 2, 4, 4], [0, 0, 8, 6], [6, 4, 8, 6]], np.float32),
        labels=np.array([3, 1, 2]),
        segmentations=(
            [[1, 2, 4, 2, 4, 4, 1, 4]],
            {"size": [6, 8], "counts": [0, 48]},
            {"size": [6, 8], "counts": [40, 2, 4, 2]},
        ),
        crowd=np.array([False, True, False]),
        image_id=42,
        height=height,
        width=width,
    )


def box_of(mask):
    rows, columns = mask.nonzero(as_tuple=True)
    return [int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1]


@pytest.mark.parametrize(("hflip", "boxes"), [(0.0, [[1, 2, 4, 4], [6, 4, 8, 6]]), (1.0, [[4, 2, 7, 4], [0, 4, 2, 6]])])
def test_objects_flip_with_their_image(hflip, boxes):
    image, _ = pair(6, 8, 2, 1)
    pixels, target = DetectionTrainTransform(hflip, 0.0)(image, objects())
    assert target["boxes"].tolist() == boxes
    assert [box_of(mask) for mask in target["masks"]] == boxes
    assert target["masks"].sum((1, 2)).tolist() == [6, 4]
    assert target["labels"].tolist() == [3, 2], "without the crowd"
    assert (target["image_id"].tolist(), target["image_id"].shape) == (42, ())
    kinds = {name: value.dtype for name, value in target.items()}
    assert kinds == {"boxes": torch.float32, "labels": torch.int64, "masks": torch.uint8, "image_id": torch.int64}
    assert pixels[0].nonzero().tolist() == [[2, 6 if hflip else 1]]
    assert (pixels.dtype, float(pixels.max())) == (torch.float32, 1)


def test_one_draw_flips_pixels_masks_and_boxes():
    """Boxes on all borders and between pixels; the draw is the only one, after which the generator is as before."""
    rng = np.random.default_rng(0)
    corners = np.concatenate([rng.uniform(0, 6, (50, 4)), [[0, 0, 8, 6], [0.1, 0.2, 8, 0.3], [0, 5, 0.7, 6]]])
    boxes = np.concatenate([np.minimum(*np.split(corners, 2, 1)), np.maximum(*np.split(corners, 2, 1))], 1).astype(np.float32)
    few = objects()
    many = replace(
        few,
        boxes=boxes,
        labels=np.ones(len(boxes), np.int64),
        segmentations=few.segmentations[:1] * len(boxes),
        crowd=np.zeros(len(boxes), np.bool_),
    )
    image = Image.fromarray(rng.integers(0, 256, (6, 8, 3), np.uint8))
    plain, target = DetectionTrainTransform(0.0, 0.0)(image, many)
    left, top, right, bottom = torch.from_numpy(boxes).unbind(1)
    flipped_boxes = torch.stack([8 - right, top, 8 - left, bottom], 1)
    outcomes = set()
    for seed in range(8):
        torch.manual_seed(seed)
        flips = bool(torch.rand(()) < 0.5)
        following = torch.rand(())
        torch.manual_seed(seed)
        pixels, found = DetectionTrainTransform(0.5, 0.0)(image, many)
        assert torch.equal(torch.rand(()), following)
        assert torch.equal(pixels, plain.flip(-1) if flips else plain)
        assert torch.equal(found["masks"], target["masks"].flip(-1) if flips else target["masks"])
        assert torch.equal(found["boxes"], flipped_boxes if flips else torch.from_numpy(boxes))
        assert all(type(value) is torch.Tensor for value in (pixels, *found.values()))
        outcomes.add(flips)
    assert outcomes == {False, True}


def test_an_image_without_objects():
    nothing = Objects(np.zeros((0, 4), np.float32), np.zeros(0, np.int64), (), np.zeros(0, np.bool_), 1, 6, 8)
    _, target = DetectionTrainTransform(1.0, 0.4)(Image.new("RGB", (8, 6)), nothing)
    assert {name: tuple(value.shape) for name, value in target.items()} == {
        "boxes": (0, 4),
        "labels": (0,),
        "masks": (0, 6, 8),
        "image_id": (),
    }
    assert (target["boxes"].dtype, target["masks"].dtype) == (torch.float32, torch.uint8)


def test_objects_colours_vary_with_the_seed():
    image = Image.new("RGB", (8, 6), (120, 60, 200))

    def drawn(seed):
        torch.manual_seed(seed)
        return DetectionTrainTransform(0.5, 0.4)(image, objects())[0]

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))
    assert 0 <= float(drawn(1).min()) <= float(drawn(1).max()) <= 1


def test_detection_images_are_not_changed_in_evaluation():
    pixels, target = DetectionEvalTransform()(pair(6, 8, 2, 1)[0], objects())
    assert pixels.nonzero().tolist() == [[0, 2, 1]]
    assert list(target) == ["image_id"]
    assert int(target["image_id"]) == 42


def test_the_longer_side_has_a_limit():
    strip, classes = Image.new("RGB", (100, 10)), np.zeros((10, 100), np.uint8)
    pixels, labels = SegmentationEvalTransform(20, 80, MEAN, STD)(strip, classes)
    assert pixels.shape[1:] == (8, 80)
    assert labels.shape == (10, 100)
