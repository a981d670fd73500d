"""The recipe for images, if none is named: by their source or their size; and whether they suit another task."""

from dataclasses import replace
from pathlib import Path

from ..data.datasets import ImageDataset, StreamingDataset
from ..data.mask_folders import CLASS_MASKS, INSTANCE_MASKS, SPLIT
from ..data.splits import Source
from ..lite.decode import BadImageError
from .config import Recipe
from .recipe import load

RECIPE_OF_SOURCE = {"digits": "digits", "fashion-mnist": "fashion_mnist", "torch/fashion_mnist": "fashion_mnist"}
RECIPE_OF_SIDE = ((48, "small_images"), (96, "medium_images"))
"""Recipes for images whose shorter side has up to so many pixels."""
LARGE = "large_images"
MEASURED_IMAGES = 24
"""Images that are read to find out their size."""
FEWEST_STEPS = 4
"""Steps per epoch below which the batch is made smaller."""


def choose_recipe(name: str, source: Source) -> tuple[str, Recipe]:
    """Name and recipe for images, by their typical size; with few images, the batch is smaller, and with it the rates.

    Args:
        name: `data.source` of the images.
        source: the same, open.
    """
    chosen = RECIPE_OF_SOURCE.get(name) or _by_side(source)
    recipe = load(chosen)
    most = max(2, len(source.train) // FEWEST_STEPS)
    if recipe.optim.batch > most:
        recipe = replace(recipe, optim=replace(recipe.optim, batch=2 ** (most.bit_length() - 1)))
    return chosen, recipe


def looks_dense(root: Path) -> tuple[str, str] | None:
    """The task that a folder suits, and what shows it, if that is another than classification."""
    for task, pattern in (
        ("detect", "annotations/instances_*.json"),
        ("detect", "train/_annotations.coco.json"),
        ("segment", "annotations/trimaps"),
        ("segment", "annotations/training"),
        ("segment", "SegmentationClass"),
    ):
        if root.is_dir() and any(root.glob(pattern)):
            return task, pattern
    if root.is_dir() and (found := min(root.glob("*.h5"), default=None)):
        return "bags", found.name
    for task, known in (("segment", CLASS_MASKS), ("detect", INSTANCE_MASKS)):
        for pair in known if root.is_dir() else ():
            if all(any(root.glob(part.replace(SPLIT, "train"))) for part in pair):
                return task, str(pair)
    return None


def _by_side(source: Source) -> str:
    """The name of the recipe for images of this size."""
    typical = typical_side(source.train)
    if typical is None:
        return LARGE
    return next((name for side, name in RECIPE_OF_SIDE if typical <= side), LARGE)


def typical_side(images: ImageDataset | StreamingDataset, count: int = MEASURED_IMAGES) -> int | None:
    """The median shorter side of `count` images, spread over all; None for a stream, or if none of them can be read."""
    if isinstance(images, StreamingDataset):
        return None
    sides = []
    for index in range(0, len(images), max(1, len(images) // count)):
        try:
            sides.append(min(images.load(index, 3)[0].size))
        except BadImageError:  # training will report it
            continue
    return sorted(sides)[len(sides) // 2] if sides else None
