"""The published models: the numbers that the authors report, and finding the model of a checkpoint.

Reported figures are never measured here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from timm.models import create_model, list_models
from torch import Tensor

from .adapt_weights import is_official, translate

SOURCE = "Han et al., Bridging the Divide: Reconsidering Softmax and Linear Attention, NeurIPS 2024"


@dataclass(frozen=True)
class Reported:
    """The authors' own figures."""

    top1: float | None
    """ImageNet-1K accuracy, percent; None where none is reported."""
    params: str | None = None
    """Parameters as the authors' table prints them, where their code has another number."""


REPORTED = {
    "inline_deit_tiny": Reported(74.5),
    "inline_deit_small": Reported(80.2),
    "inline_deit_base": Reported(82.3),
    "inline_pvt_tiny": Reported(78.2),
    "inline_pvt_small": Reported(82.0),
    "inline_pvt_medium": Reported(83.2),
    "inline_pvt_large": Reported(83.6, params="50.2M"),
    "inline_swin_tiny": Reported(82.4),
    "inline_swin_small": Reported(83.6),
    "inline_swin_base": Reported(84.1),
    "inline_swin_base_384": Reported(None),
    "inline_cswin_tiny": Reported(83.2, params="25M"),
    "inline_cswin_small": Reported(83.8, params="43M"),
    "inline_cswin_base": Reported(84.5, params="96M"),
    "inline_cswin_base_384": Reported(None),
}
"""All fifteen published models. The small siblings (`*_nano`) are this package's own and have no reported accuracy."""
DEIT = {"mixer": "softmax", "num_heads": 3}
"""DeiT-T as it was published."""
PVT = {"mixer": "softmax", "class_token": True, "num_heads": (1, 2, 5, 8)}
"""PVT as it was published."""
CSWIN = {"tiny": (1, 2, 21, 1), "small": (2, 4, 32, 2), "base": (2, 4, 32, 2)}
"""Depths of CSWin as it was published."""


def identify(state: dict[str, Tensor]) -> list[tuple[str, dict[str, Any]]]:
    """Names and arguments of which `timm.create_model` makes a fitting model. Several may fit: windows have no parameters."""
    shapes = shapes_of(state)
    classes = state["head.weight"].shape[0] if "head.weight" in state else 0
    candidates = _candidates(is_official(state))
    fitting = [(name, arguments) for name, arguments in candidates if model_shapes(name, *arguments.items()) == shapes]
    return [(name, {**arguments, **({} if classes == 1000 else {"num_classes": classes})}) for name, arguments in fitting]


def shapes_of(state: dict[str, Tensor]) -> dict[str, torch.Size]:
    """Shapes of all weights but the classifier's, by this package's names."""
    state = translate(state)[0] if is_official(state) else state
    return {key: value.shape for key, value in state.items() if not key.startswith("head.")}


@cache
def model_shapes(name: str, *arguments: tuple[str, Any]) -> dict[str, torch.Size]:
    """The same of a model that `timm.create_model` makes."""
    with torch.device("meta"):
        model = create_model(name, num_classes=0, **dict(arguments))
    return {key: value.shape for key, value in model.state_dict().items()}


def _candidates(official: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """InLine's models, and softmax models: as they were published, or as twins of InLine's."""
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
