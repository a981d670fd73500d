"""Drawn predictions, checked pixel by pixel."""

from itertools import combinations

import numpy as np
import pytest
import torch
from PIL import Image

from inline_attention.dense.drawing import draw_objects
from inline_attention.lite.label_drawing import class_colour, draw_labels, enlargement

CLASSES = ("cat", "dog", "tree", "sky")
GREY = (128, 128, 128)


def grey(width, height):
    return Image.new("RGB", (width, height), GREY)


def changed(drawn, colour=GREY):
    return (np.asarray(drawn) != np.array(colour)).any(-1)


def no_objects(height, width):
    return torch.zeros(0, 4), [], [], torch.zeros(0, height, width, dtype=torch.bool)


def one_mask(height, width, box):
    masks = torch.zeros(1, height, width, dtype=torch.bool)
    masks[0, box[1] : box[3], box[0] : box[2]] = True
    return masks


def test_class_colours_are_distinct_and_stable():
    colours = [class_colour(number) for number in range(150)]
    assert len(set(colours)) == 150
    assert all(0 <= part <= 255 for colour in colours for part in colour)
    assert min(sum(abs(a - b) for a, b in zip(*pair, strict=True)) for pair in combinations(colours[:20], 2)) > 60
    assert [class_colour(number) for number in (5, 149)] == [colours[5], colours[149]]
    assert len(class_colour(10**6)) == 3


@pytest.mark.parametrize(("size", "factor"), [((128, 170), 4), ((479, 700), 2), ((480, 480), 1), ((900, 60), 1)])
def test_small_images_are_enlarged_by_a_whole_factor(size, factor):
    image = grey(*size)
    assert enlargement(image) == factor
    drawn = draw_objects(image, *no_objects(size[1], size[0]))
    assert drawn.size == (size[0] * factor, size[1] * factor)
    assert not changed(drawn).any()


@pytest.mark.parametrize("factor", [1, 4])
def test_a_mask_is_half_transparent_inside_solid_at_its_border_and_nothing_outside(factor):
    width, height = 600 // factor, 500 // factor
    box = [value // factor for value in (200, 200, 400, 360)]
    outer = [value // factor for value in (100, 120, 560, 440)]
    drawn = draw_objects(grey(width, height), torch.tensor([outer]), ["dog"], [0.9], one_mask(height, width, box), opacity=0.5)
    pixels, colour = np.asarray(drawn), np.array(class_colour(0))
    left, top, right, below = (value * factor for value in box)
    assert (pixels[top, left:right] == colour).all()
    assert (pixels[top:below, right - 1] == colour).all()
    inside = pixels[top + 8 : below - 8, left + 8 : right - 8].astype(int)
    assert np.abs(inside - (colour + GREY) / 2).max() <= 1
    rest = pixels.copy()
    rest[top:below, left:right] = GREY
    seen = changed(rest)
    seen[: (outer[1] + 4) * factor] = False  # the tag, and the box's upper side
    rows, columns = np.flatnonzero(seen.any(1)), np.flatnonzero(seen.any(0))
    assert (columns[0], columns[-1], rows[-1]) == (outer[0] * factor, outer[2] * factor - 1, outer[3] * factor - 1)
    hole = seen[top : (outer[3] - 4) * factor, (outer[0] + 4) * factor : (outer[2] - 4) * factor]
    assert not hole.any(), "between the mask and its box"


def test_the_small_object_lies_on_the_large_one_whatever_their_order():
    masks = torch.cat([one_mask(500, 500, (200, 200, 300, 300)), one_mask(500, 500, (0, 0, 500, 500))])
    boxes = torch.tensor([[200.0, 200, 300, 300], [0, 0, 500, 500]])
    pixels = np.asarray(draw_objects(grey(500, 500), boxes, ["cat", "sky"], [0.9, 0.8], masks, opacity=1))
    assert tuple(pixels[250, 250]) == class_colour(0)
    assert tuple(pixels[400, 400]) == class_colour(1)


def test_each_object_has_its_own_colour_with_masks_or_without():
    boxes = torch.tensor([[20.0, 120, 220, 320], [260, 120, 460, 320]])
    masks = torch.cat([one_mask(500, 500, (20, 120, 220, 320)), one_mask(500, 500, (260, 120, 460, 320))])
    for shapes in (masks, None):
        pixels = np.asarray(draw_objects(grey(500, 500), boxes, ["cat", "cat"], [0.9, 0.8], shapes, opacity=1))
        for number, left in enumerate((20, 260)):
            assert tuple(pixels[200, left]) == class_colour(number), "the edge of the box"
            inside = GREY if shapes is None else class_colour(number)
            assert tuple(pixels[250, left + 100]) == inside


@pytest.mark.parametrize(
    "box", [(0, 0, 30, 30), (560, 0, 600, 40), (570, 470, 600, 500), (0, 480, 20, 500), (-50, -50, 900, 900)]
)
@pytest.mark.parametrize("name", ["dog", "a very long name of a class " * 5])
def test_tags_stay_inside_the_image_and_are_readable(box, name):
    empty = torch.zeros(1, 500, 600, dtype=torch.bool)
    drawn = np.asarray(draw_objects(grey(600, 500), torch.tensor([box], dtype=torch.float), [name], [0.5], empty))
    ink = (drawn == 0).all(-1) | (drawn == 255).all(-1)
    assert ink.sum() > 20, "text"
    ys, xs = np.nonzero(ink)
    assert ys.min() > 0
    assert ys.max() < 499
    assert xs.min() > 0
    assert xs.max() < 599
    assert (drawn[ys, xs.min() - 1] != GREY).any(), "text stands on the tag"


@pytest.mark.parametrize("side", [128, 640, 4000])
def test_text_grows_with_the_image(side):
    empty = torch.zeros(1, side, side, dtype=torch.bool)
    box = torch.tensor([[0.3, 0.3, 0.6, 0.6]]) * side
    drawn = draw_objects(grey(side, side), box, ["dog"], [0.5], empty)
    pixels = np.asarray(drawn)
    ys, _ = np.nonzero((pixels == 0).all(-1) | (pixels == 255).all(-1))
    share = (ys.max() - ys.min()) / drawn.height
    assert 0.012 < share < 0.04
    assert ys.max() - ys.min() >= 8


def test_tags_do_not_hide_each_other():
    boxes = torch.tensor([[300.0, 300, 320, 320]] * 3)
    drawn = np.asarray(draw_objects(grey(700, 600), boxes, ["cat", "dog", "tree"], None, torch.zeros(3, 600, 700).bool()))
    filled = [int((drawn == class_colour(number)).all(-1).sum()) for number in range(3)]
    assert min(filled) > 200, filled


def test_tags_have_scores_unless_there_are_none():
    arguments = torch.tensor([[100.0, 100, 300, 300]]), ["dog"]
    empty = torch.zeros(1, 500, 500).bool()
    said = [draw_objects(grey(500, 500), *arguments, scores, empty) for scores in ([0.51], [0.99], None, torch.tensor([0.51]))]
    filled = [changed(drawn)[80:100].sum() for drawn in said]
    assert filled[2] < min(filled[:2]), "a shorter tag"
    assert np.asarray(said[0]).tobytes() != np.asarray(said[1]).tobytes()
    assert np.asarray(said[0]).tobytes() == np.asarray(said[3]).tobytes()


@pytest.mark.parametrize("factor", [1, 5])
def test_label_maps_are_mixed_in_and_ignored_pixels_stay(factor):
    width, height = 700 // factor, 500 // factor
    labels = torch.full((height, width), 255)
    labels[:, : width // 2] = 2
    drawn = draw_labels(grey(width, height), labels, CLASSES, opacity=0.55)
    assert drawn.width == 700
    assert drawn.height > 500
    pixels = np.asarray(drawn)[:500].astype(int)
    middle = width // 2 * factor
    assert (pixels[:, middle:] == GREY).all()
    assert (pixels[:, middle - 1] == class_colour(2)).all()
    assert np.abs(pixels[:, : middle - 5] - (0.45 * np.array(GREY) + 0.55 * np.array(class_colour(2)))).max() <= 1


def test_the_legend_lists_classes_by_their_share():
    labels = torch.full((500, 600), 255)
    labels[:100], labels[100:400] = 3, 1
    legend = np.asarray(draw_labels(grey(600, 500), labels, CLASSES))[500:]
    columns = [np.flatnonzero((legend == class_colour(number)).all(-1).any(0)) for number in range(4)]
    assert [len(found) > 5 for found in columns] == [False, True, False, True]
    assert columns[1][-1] < columns[3][0]
    assert tuple(legend[0, 0]) == (255, 255, 255)
    names = (legend < 60).all(-1)
    between, behind = names[:, columns[1][-1] : columns[3][0]], names[:, columns[3][-1] :]
    assert min(between.sum(), behind.sum()) > 20


def test_a_long_legend_takes_more_lines_and_stays_inside():
    labels = torch.arange(150).repeat_interleave(2000).view(500, 600)
    names = [f"class number {number}" for number in range(150)]
    drawn = np.asarray(draw_labels(grey(600, 500), labels, names))
    legend = drawn[500:]
    assert len(legend) > 300
    assert (legend[:, -3:] == 255).all()
    assert all((legend == class_colour(number)).all(-1).any() for number in range(0, 150, 15))


def test_an_image_whose_pixels_are_all_ignored_has_no_legend():
    assert draw_labels(grey(600, 500), torch.full((500, 600), 255), CLASSES).size == (600, 500)


def test_the_input_image_is_not_changed():
    image = grey(600, 500)
    draw_objects(image, torch.tensor([[10.0, 10, 90, 90]]), ["cat"], None, one_mask(500, 600, (10, 10, 90, 90)))
    draw_labels(image, torch.zeros(500, 600).long(), CLASSES)
    assert not changed(image).any()


def test_other_image_modes_are_accepted():
    for mode in ("L", "RGBA", "P"):
        assert draw_labels(Image.new(mode, (500, 500)), torch.zeros(500, 500).long(), CLASSES).mode == "RGB"


def test_wrong_sizes_raise_one_line():
    with pytest.raises(ValueError, match=r"^the masks are of 10 x 20 pixels and the image is of 500 x 600: sizes must agree$"):
        draw_objects(grey(600, 500), *no_objects(10, 20))
    with pytest.raises(ValueError, match=r"^the label map is of 600 x 500 pixels and the image is of 500 x 600: "):
        draw_labels(grey(600, 500), torch.zeros(600, 500), CLASSES)
    with pytest.raises(ValueError, match=r"^the label map has a class 4, there are names for 0 to 3$"):
        draw_labels(grey(600, 500), torch.full((500, 600), 4), CLASSES)
    with pytest.raises(ValueError, match=r"^1 boxes, 1 labels, 2 scores and 0 masks do not fit$"):
        draw_objects(grey(600, 500), torch.zeros(1, 4), ["cat"], [0.5, 0.4], torch.zeros(0, 500, 600).bool())
