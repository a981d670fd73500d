"""Recipes of dense tasks fitted to images."""

from dataclasses import dataclass

import pytest
from PIL import Image

from inline_attention.data.sources import Source
from inline_attention.training.dense_recipe import LARGEST_CROP, fit_recipe
from inline_attention.training.recipe import check, load


@dataclass(frozen=True)
class Blank:
    """Images of one size."""

    count: int
    size: tuple[int, int]

    def __len__(self):
        return self.count

    def load(self, index, channels):
        return Image.new("RGB", self.size), None


def fitted(task, count, image_size, **options):
    images = Blank(count, image_size)
    recipe = fit_recipe(load(task), Source(images, images, ("a", "b")), **options)
    check(recipe)
    return recipe


@pytest.mark.parametrize("size", [(170, 128), (40, 56)])
def test_small_images_take_the_recipe_as_it_is(size):
    assert fitted("segment_small", 3680, size) == load("segment_small")


def test_larger_images_take_larger_crops_for_the_same_time():
    usual, recipe = load("segment_small"), fitted("segment_small", 367, (480, 360))
    assert recipe.data.size == (LARGEST_CROP, LARGEST_CROP)
    assert usual.data.size[0] < LARGEST_CROP
    pixels = [one.schedule.epochs * one.data.size[0] * one.data.size[1] for one in (usual, recipe)]
    assert pixels[1] == pytest.approx(pixels[0], rel=0.1)
    assert recipe.optim.batch == 4, "so that there are more steps"
    assert recipe.optim.lr * recipe.optim.batch / recipe.optim.rate_batch == usual.optim.lr


@pytest.mark.parametrize(("count", "batch"), [(3680, 16), (700, 8), (367, 4), (40, 4), (9, 2), (3, 2)])
def test_few_images_take_small_batches_whatever_the_crop(count, batch):
    assert fitted("segment_small", count, (170, 128)).optim.batch == batch
    assert fitted("segment_small", count, (480, 360), size=(64, 64)).optim.batch == batch


def test_a_detector_keeps_its_rate_for_an_image():
    recipe = fitted("detect_small", 9, (480, 360))
    assert (recipe.optim.batch, recipe.optim.rate_batch, recipe.schedule) == (2, 4, load("detect_small").schedule)
    assert fitted("detect_small", 400, (480, 360)) == load("detect_small")
