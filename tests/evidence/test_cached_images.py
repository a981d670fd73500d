"""Cached images: read once, unchanged, and no more of them than fit."""

from dataclasses import dataclass, field

import numpy as np
import torch
from PIL import Image

from inline_attention.data.config import DataConfig
from inline_attention.data.datasets import ImageDataset
from inline_attention.data.loader import reseed
from inline_attention.data.sources import open_source
from inline_attention.data.transforms import evaluation_transform
from inline_attention.evidence.cached_images import CachedClassify, CachedDataset, CachedTransform, cached_source
from inline_attention.evidence.claims import INLINE
from inline_attention.evidence.scale import SCALES, recipe_of
from inline_attention.training.classify import Classify

DIGITS = DataConfig(source="digits")


@dataclass
class Counted(ImageDataset):
    """Three grey images; records which were read."""

    read: list[tuple[int, int]] = field(default_factory=list)

    def __len__(self):
        return 3

    def name(self, index):
        return f"image {index}"

    def load(self, index, channels):
        self.read.append((index, channels))
        return Image.new("RGB" if channels == 3 else "L", (10, 8), index), index


def test_an_image_is_read_once_for_each_number_of_channels():
    counted = Counted()
    cached = CachedDataset(counted, 10_000)
    for _ in range(3):
        assert [cached.load(index, 1)[1] for index in range(3)] == [0, 1, 2]
        assert cached.load(1, 3)[0].mode == "RGB"
    assert counted.read == [(0, 1), (1, 1), (2, 1), (1, 3)]


def test_what_does_not_fit_is_read_again():
    counted = Counted()
    cached = CachedDataset(counted, 2 * 4 * 80)
    for _ in range(2):
        for index in range(3):
            assert cached.load(index, 1)[0].getpixel((0, 0)) == index
    assert counted.read == [(0, 1), (1, 1), (2, 1), (2, 1)]


def test_trials_share_one_source_equal_to_the_uncached_one():
    recipe = recipe_of(INLINE, SCALES["glance"], DIGITS, 10, 0)
    source = CachedClassify(recipe).open()
    assert source is CachedClassify(recipe).open() is cached_source(recipe.data)
    plain = open_source(recipe.data)
    assert source.fingerprint() == plain.fingerprint()
    assert list(source.val.labels()) == list(plain.val.labels())
    assert (source.train.name(3), len(source.train)) == (plain.train.name(3), len(plain.train))
    for _ in range(2):
        (image, label), (expected, target) = source.train.load(3, 1), plain.train.load(3, 1)
        assert np.array_equal(image, expected)
        assert label == target


def test_a_deterministic_transform_runs_once_per_image_that_fits():
    calls = []

    def transform(image):
        calls.append(image)
        return torch.full((1, 2, 2), float(image.getpixel((0, 0))))

    images = [Image.new("L", (10, 8), number) for number in range(3)]
    cached = CachedTransform(transform, free_bytes=2 * (16 + 4 * 80))  # the tensor, and the image that is its key
    for _ in range(2):
        assert [float(cached(image).mean()) for image in images] == [0, 1, 2]
    assert [images.index(one) for one in calls] == [0, 1, 2, 2]


def test_without_augmentation_training_uses_the_evaluation_transform():
    plain, augmented = (recipe_of(INLINE, SCALES[name], DIGITS, 10, 0) for name in ("laptop", "day"))
    image, label = cached_source(plain.data).train.load(5, plain.data.channels)
    expected = evaluation_transform(plain.data)(image)
    for training in (True, False):
        pixels, target = CachedClassify(plain).transform(training=training)(image, label)
        assert torch.equal(pixels, expected)
        assert int(target) == label
    reseed(0)
    one, _ = CachedClassify(augmented).transform(training=True)(image, label)
    reseed(0)
    assert torch.equal(one, Classify(augmented).transform(training=True)(image, label)[0])
    assert not torch.equal(one, expected)
