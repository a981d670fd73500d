"""timm's model of a recipe: by which name and arguments it is made."""

from collections.abc import Mapping
from typing import Any

from timm.models import create_model, get_pretrained_cfg, is_model, list_models
from torch import nn

from ..models.swap import swap
from ..plain.wording import first_line
from .recipe import Recipe, model_arguments, nearest, swap_arguments


def creation(recipe: Recipe, classes: int) -> tuple[str, dict[str, Any]]:
    """Name and arguments with which `timm.create_model` makes the recipe's model."""
    part, data = recipe.model, recipe.data
    if not is_model(part.name):
        close = nearest(part.name, list_models())
        raise ValueError(f"unknown model {part.name!r}{close}; `inline list` shows this package's, timm.list_models() all")
    arguments: dict[str, Any] = {**model_arguments(part), "num_classes": classes, "in_chans": data.channels}
    if part.drop_path:
        arguments["drop_path_rate"] = part.drop_path
    if part.swap:
        arguments["swap"] = [swap_arguments(part)]
    configuration = get_pretrained_cfg(part.name, allow_unregistered=True)
    if part.name.startswith("inline_") or (configuration and configuration.fixed_input_size):
        arguments["img_size"] = data.size
    return part.name, arguments


def make_model(name: str, arguments: Mapping[str, Any]) -> nn.Module:
    """The model, or one line about what is wrong with the arguments.

    Args:
        name: one that timm knows.
        arguments: of `timm.create_model`; under 'swap' a list of those of `swap`, for a model that gets another attention.
    """
    given = dict(arguments)
    swaps = given.pop("swap", [])
    try:
        model: nn.Module = create_model(name, **given)
        for asked in swaps:
            swap(model, **asked)
    except (TypeError, RuntimeError, AssertionError) as error:
        raise ValueError(f"{name} cannot be made: {first_line(error)}") from error
    return model
