"""What can be learned, by name: each is a small object for the one training loop."""

from ..training.classify import Classify
from ..training.recipe import Recipe
from ..training.task import Task


def make_task(recipe: Recipe) -> Task:
    """The task that a recipe is for. What detection and segmentation need is imported with them."""
    if recipe.task.name == "detect":
        from .detect import Detect

        return Detect(recipe)
    if recipe.task.name == "segment":
        from .segment import Segment

        return Segment(recipe)
    return Classify(recipe)
