"""L5: training, evaluation and prediction.

    from inline_attention.training import evaluate, load_recipe, predict, train

    recipe = load_recipe("digits").with_fields({"schedule.epochs": 2})
    result = train(recipe, data="images/", out="runs/first")
    print(result.metrics["top1"], evaluate(result.folder).metrics)
    print(predict(result.folder, ["image.png"]))

The modules of this room are imported with the first name that is used: `inline train --help` needs none that import torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import evaluate, list_recipes, load_recipe, predict, train
    from .config import Recipe

__all__ = ["Recipe", "evaluate", "list_recipes", "load_recipe", "predict", "train"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import api

    return getattr(api, name)
