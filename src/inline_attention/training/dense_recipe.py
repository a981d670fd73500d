"""Fits the small recipes of other tasks than classification to images: the crop to their size, the batch to their number."""

from dataclasses import replace

from ..data.sources import Source
from .chosen_recipe import FEWEST_STEPS, typical_side
from .config import Recipe

CROP_OF_SIDE = ((160, 128),)
"""Images whose shorter side has up to so many pixels, and the side of their training crop."""
LARGEST_CROP = 160
ENOUGH_STEPS, SMALLEST_BATCH = 1000, 4
"""A segmenter's batch is made smaller, down to this, until its run has so many steps."""
FEWEST_PASSES = 3
"""Epochs, however large the crops are."""


def fit_recipe(recipe: Recipe, source: Source, size: tuple[int, int] | None = None) -> Recipe:
    """A small recipe of a dense task, fitted to the images that it will be trained on.

    To segment, the crop follows the images' shorter side. A larger crop takes fewer epochs, so that a
    run takes as long as with the recipe's own crop. With few images the batch is smaller, so that there are enough steps.

    Args:
        recipe: detect_small, segment_small or bags.
        source: the images.
        size: of the crop, if it is chosen already.
    """
    batch = recipe.optim.batch
    if recipe.task.name == "segment" and not recipe.task.large:
        side = _crop_side(source)
        height, width = size or (side, side)
        larger = max(1.0, height * width / (recipe.data.size[0] * recipe.data.size[1]))
        epochs = max(FEWEST_PASSES, round(recipe.schedule.epochs / larger))
        batch = min(batch, max(SMALLEST_BATCH, epochs * len(source.train) // ENOUGH_STEPS))
        recipe = replace(
            recipe,
            data=replace(recipe.data, size=(height, width)),
            schedule=replace(recipe.schedule, epochs=epochs, warmup=min(recipe.schedule.warmup, epochs)),
        )
    batch = min(batch, max(2, len(source.train) // FEWEST_STEPS))
    batch = 2 ** (batch.bit_length() - 1)
    rate_batch = batch if recipe.task.name == "segment" else recipe.optim.rate_batch  # a segmenter's rate suits any of them
    return replace(recipe, optim=replace(recipe.optim, batch=batch, rate_batch=rate_batch))


def _crop_side(source: Source) -> int:
    typical = typical_side(source.train) or 0
    return next((crop for side, crop in CROP_OF_SIDE if typical <= side), LARGEST_CROP)
