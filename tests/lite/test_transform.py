"""The transform without torch gives the numbers of the transform with it."""

import math

import numpy as np
import pytest
from PIL import Image

from inline_attention.data.config import DataConfig
from inline_attention.data.transforms import evaluation_transform
from inline_attention.lite.transform import CROP_MODES, INTERPOLATIONS, NumpyTransform

IMAGES = ((32, 32), (31, 47), (7, 5), (1, 1), (1, 9), (300, 41), (40, 301), (257, 255))
"""(height, width): exact, odd, smaller, thin, larger."""


def noise(height: int, width: int, channels: int) -> Image.Image:
    shape = (height, width, 3) if channels == 3 else (height, width)
    return Image.fromarray(np.random.default_rng(height * 1000 + width).integers(0, 256, shape, dtype=np.uint8))


def numpy_transform(data: DataConfig) -> NumpyTransform:
    return NumpyTransform(data.size, data.channels, data.crop_mode, data.crop, data.interpolation, data.mean, data.std)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("crop_mode", CROP_MODES)
def test_the_numbers_are_those_of_training(crop_mode, interpolation, channels):
    for size in ((32, 32), (27, 27), (20, 33), (41, 16), (1, 1)):
        for crop in (1.0, 0.875, 1 / 3):
            data = DataConfig(size=size, channels=channels, crop_mode=crop_mode, crop=crop, interpolation=interpolation)
            mine, theirs = numpy_transform(data), evaluation_transform(data)
            for height, width in IMAGES:
                image = noise(height, width, channels)
                found, expected = mine(image), theirs(image).numpy()
                assert found.dtype == np.float32
                assert found.shape == expected.shape == (channels, *size)
                assert np.abs(found - expected).max() <= 1e-6, (size, crop, height, width)


@pytest.mark.parametrize("crop_mode", CROP_MODES)
def test_at_the_size_of_imagenet(crop_mode):
    for size, crop in (((224, 224), 0.875), ((384, 384), 1.0), ((224, 320), 0.9)):
        data = DataConfig(size=size, crop_mode=crop_mode, crop=crop, mean=(0.5, 0.4, 0.3), std=(0.1, 0.2, 0.3))
        for height, width in ((375, 500), (500, 333), (101, 99)):
            image = noise(height, width, 3)
            assert np.abs(numpy_transform(data)(image) - evaluation_transform(data)(image).numpy()).max() <= 1e-6


def test_every_choice_of_a_recipe_is_known():
    from typing import get_args, get_type_hints

    hints = get_type_hints(DataConfig)
    assert set(get_args(hints["crop_mode"])) == set(CROP_MODES)
    assert set(get_args(hints["interpolation"])) <= set(INTERPOLATIONS)


def test_one_mean_for_a_grey_image():
    """Three numbers stand for their mean; one stands for itself."""
    three = NumpyTransform((4, 4), 1, "squash", 1.0, "bicubic", (0.1, 0.2, 0.6), (0.5, 0.5, 0.2))
    one = NumpyTransform((4, 4), 1, "squash", 1.0, "bicubic", (0.3,), (0.4,))
    image = Image.new("L", (9, 9), 102)
    assert np.allclose(three(image), one(image), atol=1e-6)
    assert math.isclose(one(image)[0, 0, 0], (0.4 - 0.3) / 0.4, abs_tol=1e-6)
