"""The view without torch is the view of training and evaluation."""

import math
from dataclasses import asdict

import numpy as np
import pytest
from PIL import Image

from inline_attention.plain.view import INTERPOLATIONS, VIEWS, PlainView
from inline_attention.training.recipe import DataPart
from inline_attention.training.view import evaluation_view

FIELDS = ("size", "channels", "view", "crop", "interpolation", "mean", "std")
PICTURES = ((32, 32), (31, 47), (7, 5), (1, 1), (1, 9), (300, 41), (40, 301), (257, 255))
"""(height, width): exact, odd, smaller, thin, larger."""


def noise(height: int, width: int, channels: int) -> Image.Image:
    shape = (height, width, 3) if channels == 3 else (height, width)
    return Image.fromarray(np.random.default_rng(height * 1000 + width).integers(0, 256, shape, dtype=np.uint8))


def plain(data: DataPart) -> PlainView:
    return PlainView(**{name: value for name, value in asdict(data).items() if name in FIELDS})


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("view", VIEWS)
def test_the_numbers_are_those_of_training(view, interpolation, channels):
    for size in ((32, 32), (27, 27), (20, 33), (41, 16), (1, 1)):
        for crop in (1.0, 0.875, 1 / 3):
            data = DataPart(size=size, channels=channels, view=view, crop=crop, interpolation=interpolation)
            mine, theirs = plain(data), evaluation_view(data)
            for height, width in PICTURES:
                picture = noise(height, width, channels)
                found, expected = mine(picture), theirs(picture).numpy()
                assert found.dtype == np.float32
                assert found.shape == expected.shape == (channels, *size)
                assert np.abs(found - expected).max() <= 1e-6, (size, crop, height, width)


@pytest.mark.parametrize("view", VIEWS)
def test_at_the_size_of_imagenet(view):
    for size, crop in (((224, 224), 0.875), ((384, 384), 1.0), ((224, 320), 0.9)):
        data = DataPart(size=size, view=view, crop=crop, mean=(0.5, 0.4, 0.3), std=(0.1, 0.2, 0.3))
        for height, width in ((375, 500), (500, 333), (101, 99)):
            picture = noise(height, width, 3)
            assert np.abs(plain(data)(picture) - evaluation_view(data)(picture).numpy()).max() <= 1e-6


def test_all_that_a_recipe_can_ask_for_is_here():
    from typing import get_args, get_type_hints

    hints = get_type_hints(DataPart)
    assert set(get_args(hints["view"])) == set(VIEWS)
    assert set(get_args(hints["interpolation"])) <= set(INTERPOLATIONS)


def test_one_mean_for_a_grey_picture():
    """Three numbers stand for their mean; one stands for itself."""
    three = PlainView((4, 4), 1, "squash", 1.0, "bicubic", (0.1, 0.2, 0.6), (0.5, 0.5, 0.2))
    one = PlainView((4, 4), 1, "squash", 1.0, "bicubic", (0.3,), (0.4,))
    picture = Image.new("L", (9, 9), 102)
    assert np.allclose(three(picture), one(picture), atol=1e-6)
    assert math.isclose(one(picture)[0, 0, 0], (0.4 - 0.3) / 0.4, abs_tol=1e-6)
