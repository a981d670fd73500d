"""Which recipe suits a folder of pictures, if none is asked for."""

from collections.abc import Sequence
from dataclasses import replace

from ..plain.decode import BadPictureError
from .pictures import Pictures, Stream
from .recipe import DataPart, Recipe, load
from .source import open_source

BY_SOURCE = {"digits": "digits", "fashion-mnist": "fashion_mnist", "torch/fashion_mnist": "fashion_mnist"}
BY_SIDE = ((48, "small_pictures"), (96, "medium_pictures"))
"""Recipes for pictures whose shorter side is up to so many pixels."""
LARGE = "large_pictures"
LOOKED_AT = 24
"""Pictures that are opened to tell their size."""


FEWEST_STEPS = 4
"""Steps per epoch below which the batch is made smaller."""


def suiting(data: DataPart) -> tuple[str, Recipe]:
    """Name and recipe for a source; with few pictures, the batch is made smaller, and with it the rates."""
    name = choose(data)
    recipe = load(name)
    most = max(2, len(open_source(data).train) // FEWEST_STEPS)
    if recipe.optim.batch > most:
        recipe = replace(recipe, optim=replace(recipe.optim, batch=2 ** (most.bit_length() - 1)))
    return name, recipe


def choose(data: DataPart) -> str:
    """The name of a recipe, by the typical size of the pictures."""
    if data.source in BY_SOURCE:
        return BY_SOURCE[data.source]
    pictures = open_source(data).train
    sides = () if isinstance(pictures, Stream) else _sides(pictures)
    if not sides:
        return LARGE
    typical = sorted(sides)[len(sides) // 2]
    return next((name for side, name in BY_SIDE if typical <= side), LARGE)


def _sides(pictures: Pictures) -> Sequence[int]:
    """Shorter sides of some pictures, spread over all. Bad ones are met again, and named, when they are read to train."""
    sides = []
    for index in range(0, len(pictures), max(1, len(pictures) // LOOKED_AT)):
        try:
            sides.append(min(pictures.load(index, 3)[0].size))
        except BadPictureError:
            continue
    return sides
