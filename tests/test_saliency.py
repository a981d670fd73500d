"""Scores of saliency maps, against numbers worked out by hand."""

import math

import pytest
import torch
from benchmarks.saliency.score import absolute_error, agreement, f_beta, mean_scores, overlap, score

TRIMAP = torch.tensor([[[[1, 1, 2, 2], [1, 1, 2, 3]]]], dtype=torch.uint8)  # 4 pixels of pet, 3 of background, 1 of border
MAP = torch.tensor([[[[0.9, 0.8, 0.6, 0.1], [0.7, 0.2, 0.0, 1.0]]]])
EMPTY = torch.full_like(TRIMAP, 2)


def test_absolute_error_by_hand():
    # pet: 0.1 + 0.2 + 0.3 + 0.8, background: 0.6 + 0.1 + 0.0; the border's 1.0 is left out of sum and count
    assert absolute_error(MAP, TRIMAP).tolist() == pytest.approx([2.1 / 7])


def test_overlap_by_hand():
    # at 0.5, 3 of the 4 pixels of the pet and 1 of the background are found: 3 in both, 5 in either
    assert overlap(MAP, TRIMAP).tolist() == pytest.approx([3 / 5])
    assert overlap(MAP, TRIMAP, threshold=0.15).tolist() == pytest.approx([4 / 5])


def test_f_beta_by_hand():
    curve = f_beta(MAP, TRIMAP)
    assert curve.shape == (1, 256)
    # at 0 all 7 known pixels are found, at 128/255 four (3 right), at 165/255 three (3 right), at 1 none but the border
    for level, precision, recall in ((0, 4 / 7, 1.0), (128, 3 / 4, 3 / 4), (165, 1.0, 3 / 4)):
        assert curve[0, level] == pytest.approx(1.3 * precision * recall / (0.3 * precision + recall))
    assert curve[0, 255] == 0
    assert score(MAP, TRIMAP).max_f_beta == pytest.approx(1.3 * 0.75 / (0.3 + 0.75))


def test_a_threshold_finds_the_pixels_that_equal_it():
    level = torch.arange(256)
    for value in (0, 51, 102, 255):
        maps = torch.full((1, 1, 1, 2), value / 255)
        curve = f_beta(maps, torch.tensor([[[[1, 1]]]]))[0]
        assert torch.equal(curve > 0, level <= value)


def test_the_truth_itself_is_perfect_and_its_opposite_is_not():
    truth = (TRIMAP == 1).float()
    assert score(truth, TRIMAP) == (1, 0, 1, 1)
    assert score(1 - truth, TRIMAP) == (1, 1, pytest.approx(1.3 * 4 / (0.3 * 4 + 7)), 0)


def test_the_best_threshold_is_one_for_all_images():
    trimaps = torch.tensor([1, 2]).expand(2, 1, 1, 2)
    maps = torch.tensor([[[[0.9, 0.6]]], [[[0.4, 0.1]]]])
    # alone, each image is perfect at some threshold; together, none is above 1 and 1.3 * 1 / (0.3 + 2)
    both = f_beta(maps, trimaps).max(1).values
    assert both.tolist() == pytest.approx([1, 1])
    assert score(maps, trimaps).max_f_beta == pytest.approx((1 + 1.3 / 2.3) / 2)


def test_images_without_a_pet_are_left_out():
    maps, trimaps = torch.cat([MAP, MAP]), torch.cat([TRIMAP, EMPTY])
    for scores in (absolute_error(maps, trimaps), overlap(maps, trimaps), f_beta(maps, trimaps)[:, 0]):
        assert [math.isnan(each) for each in scores.tolist()] == [False, True]
    assert score(maps, trimaps) == score(MAP, TRIMAP)


def test_batches_can_be_scored_apart():
    torch.manual_seed(0)
    maps, trimaps = torch.rand(5, 1, 6, 7), torch.randint(1, 4, (5, 1, 6, 7))
    parts = [
        (absolute_error(*part), f_beta(*part), overlap(*part)) for part in zip(maps.split(2), trimaps.split(2), strict=True)
    ]
    assert mean_scores(*(torch.cat(values) for values in zip(*parts, strict=True))) == pytest.approx(score(maps, trimaps))


def test_agreement_by_hand():
    ours = torch.tensor([[0.0, 0.5, 1.0], [0.2, 0.2, 0.2], [0.1, 0.2, 0.3]]).view(3, 1, 1, 3)
    theirs = torch.tensor([[0.0, 1.0, 0.5], [0.0, 0.5, 1.0], [0.9, 0.7, 0.5]]).view(3, 1, 1, 3)
    difference, correlation = agreement(ours, theirs)
    assert difference.tolist() == pytest.approx([1 / 3, 13 / 30, 1.5 / 3])
    # deviations (-.5, 0, .5) and (-.5, .5, 0): 0.25 / 0.5; a constant map; a straight line downwards
    assert correlation.tolist() == pytest.approx([0.5, 0, -1], abs=1e-6)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: agreement(MAP, MAP[..., :2]), r"maps are \(1, 1, 2, 4\) and the teacher's \(1, 1, 2, 2\): resize"),
        (lambda: overlap(MAP, TRIMAP[..., :2]), r"maps are \(1, 1, 2, 4\) and trimaps \(1, 1, 2, 2\): resize"),
        (lambda: f_beta(MAP * 3, TRIMAP), "maps reach from 0 to 3: give them from 0 to 1"),
        (lambda: absolute_error(MAP * torch.nan, TRIMAP), "maps reach from nan to nan"),
        (lambda: overlap(MAP, TRIMAP - 1), "trimaps hold 0 to 2: they must hold 1 pet"),
        (lambda: score(MAP, EMPTY), "none of the 1 images has a pet"),
    ],
)
def test_a_wrong_value_is_named(call, text):
    with pytest.raises(ValueError, match=text):
        call()
