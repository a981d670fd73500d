"""Which model a checkpoint is of, told from its names and shapes."""

from collections.abc import Iterator
from typing import Any

import torch
from timm.models import create_model, list_models
from torch import Tensor

from .official import is_official, translate

PVT = {"mixer": "softmax", "class_token": True, "num_heads": (1, 2, 5, 8)}
"""PVT as it was published."""
CSWIN = {"tiny": (1, 2, 21, 1), "small": (2, 4, 32, 2), "base": (2, 4, 32, 2)}
"""Depths of CSWin as it was published."""


def identify(state: dict[str, Tensor]) -> tuple[str, dict[str, Any]] | None:
    """Name and arguments that `timm.create_model` makes a fitting model of, or None if there is none."""
    state = translate(state)[0] if is_official(state) else state
    shapes = {name: value.shape for name, value in state.items()}
    classes = state["head.weight"].shape[0] if "head.weight" in state else 0
    for name, arguments in _candidates():
        arguments = arguments if classes == 1000 else {**arguments, "num_classes": classes}
        with torch.device("meta"):
            model = create_model(name, **arguments)
        if {key: value.shape for key, value in model.state_dict().items()} == shapes:
            return name, arguments
    return None


def _candidates() -> Iterator[tuple[str, dict[str, Any]]]:
    names = list_models("inline_*")
    for name in names:
        yield name, {}
    for name in names:
        yield name, {"mixer": "softmax"}
    for name in names:
        _, family, size, *_ = name.split("_")
        if family == "pvt" and size != "nano":
            yield name, PVT
        if family == "cswin" and size in CSWIN:
            yield name, {"mixer": "softmax", "depths": CSWIN[size]}
