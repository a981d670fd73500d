"""Pictures that are kept: read once, as they are, and no more of them than there is room for."""

from dataclasses import dataclass, field

import numpy as np
import torch
from PIL import Image

from inline_attention.evidence.claims import INLINE
from inline_attention.evidence.held import Held, HeldClassify, HeldView, held_source
from inline_attention.evidence.scale import SCALES, recipe_of
from inline_attention.training.classify import Classify
from inline_attention.training.pictures import Pictures
from inline_attention.training.randomness import reseed
from inline_attention.training.recipe import DataPart
from inline_attention.training.source import open_source
from inline_attention.training.view import evaluation_view

DIGITS = DataPart(source="digits")


@dataclass
class Counted(Pictures):
    """Three grey pictures; tells which were read."""

    read: list[tuple[int, int]] = field(default_factory=list)

    def __len__(self):
        return 3

    def name(self, index):
        return f"picture {index}"

    def load(self, index, channels):
        self.read.append((index, channels))
        return Image.new("RGB" if channels == 3 else "L", (10, 8), index), index


def test_a_picture_is_read_once_for_each_number_of_channels():
    counted = Counted()
    held = Held(counted, 10_000)
    for _ in range(3):
        assert [held.load(index, 1)[1] for index in range(3)] == [0, 1, 2]
        assert held.load(1, 3)[0].mode == "RGB"
    assert counted.read == [(0, 1), (1, 1), (2, 1), (1, 3)]


def test_what_does_not_fit_is_read_again():
    counted = Counted()
    held = Held(counted, 2 * 4 * 80)
    for _ in range(2):
        for index in range(3):
            assert held.load(index, 1)[0].getpixel((0, 0)) == index
    assert counted.read == [(0, 1), (1, 1), (2, 1), (2, 1)]


def test_cells_share_a_source_that_gives_what_the_files_give():
    recipe = recipe_of(INLINE, SCALES["glance"], DIGITS, 10, 0)
    source = HeldClassify(recipe).open()
    assert source is HeldClassify(recipe).open() is held_source(recipe.data)
    plain = open_source(recipe.data)
    assert source.fingerprint() == plain.fingerprint()
    assert list(source.val.labels()) == list(plain.val.labels())
    assert (source.train.name(3), len(source.train)) == (plain.train.name(3), len(plain.train))
    for _ in range(2):
        kept, there = source.train.load(3, 1), plain.train.load(3, 1)
        assert np.array_equal(kept[0], there[0])
        assert kept[1] == there[1]


def test_a_fixed_view_is_computed_once_and_no_more_than_there_is_room_for():
    seen = []

    def view(picture):
        seen.append(picture)
        return torch.full((1, 2, 2), float(picture.getpixel((0, 0))))

    pictures = [Image.new("L", (10, 8), number) for number in range(3)]
    held = HeldView(view, room=2 * (16 + 4 * 80))  # the tensor, and the picture that it is told by
    for _ in range(2):
        assert [float(held(picture).mean()) for picture in pictures] == [0, 1, 2]
    assert [pictures.index(one) for one in seen] == [0, 1, 2, 2]


def test_what_is_not_varied_is_shown_in_training_as_in_evaluation():
    plain, varied = (recipe_of(INLINE, SCALES[name], DIGITS, 10, 0) for name in ("laptop", "day"))
    picture, label = held_source(plain.data).train.load(5, plain.data.channels)
    expected = evaluation_view(plain.data)(picture)
    for training in (True, False):
        shown, told = HeldClassify(plain).show(training=training)(picture, label)
        assert torch.equal(shown, expected)
        assert int(told) == label
    reseed(0)
    one, _ = HeldClassify(varied).show(training=True)(picture, label)
    reseed(0)
    assert torch.equal(one, Classify(varied).show(training=True)(picture, label)[0])
    assert not torch.equal(one, expected)
