"""Which model a checkpoint is of, told from its names and shapes."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from timm.models import create_model, list_models
from torch import Tensor

from .official import is_official, translate

DEIT = {"mixer": "softmax", "num_heads": 3}
"""DeiT-T as it was published."""
PVT = {"mixer": "softmax", "class_token": True, "num_heads": (1, 2, 5, 8)}
"""PVT as it was published."""
CSWIN = {"tiny": (1, 2, 21, 1), "small": (2, 4, 32, 2), "base": (2, 4, 32, 2)}
"""Depths of CSWin as it was published."""


def identify(state: dict[str, Tensor]) -> list[tuple[str, dict[str, Any]]]:
    """Names and arguments of which `timm.create_model` makes a fitting model. Several may fit: windows leave no trace."""
    official = is_official(state)
    state = translate(state)[0] if official else state
    classes = state["head.weight"].shape[0] if "head.weight" in state else 0
    shapes = {key: value.shape for key, value in state.items() if not key.startswith("head.")}
    fitting = [(name, arguments) for name, arguments in _candidates(official) if _shapes(name, *arguments.items()) == shapes]
    return [(name, {**arguments, **({} if classes == 1000 else {"num_classes": classes})}) for name, arguments in fitting]


@cache
def _shapes(name: str, *arguments: tuple[str, Any]) -> dict[str, torch.Size]:
    """Of all parameters but the classifier's."""
    with torch.device("meta"):
        model = create_model(name, num_classes=0, **dict(arguments))
    return {key: value.shape for key, value in model.state_dict().items()}


def _candidates(official: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """InLine's models; and softmax ones, as they were published or as twins, which differ where files do not show it."""
    for name in list_models("inline_*"):
        _, family, size, *_ = name.split("_")
        yield name, {}
        if not official or family == "swin":
            yield name, {"mixer": "softmax"}
        elif name == "inline_deit_tiny":
            yield name, DEIT
        elif family == "pvt" and size != "nano":
            yield name, PVT
        elif family == "cswin" and size in CSWIN:
            yield name, {"mixer": "softmax", "depths": CSWIN[size]}
