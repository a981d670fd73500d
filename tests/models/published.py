"""The published models under the names of the golden files and under ours, and official checkpoints made of golden weights."""

import json
from functools import cache, lru_cache
from pathlib import Path

import timm
import torch
from torch import Tensor, nn
from yacs.config import CfgNode

import inline_attention  # noqa: F401  registers the models

from ..golden.recipe import weights

GOLDEN = Path(__file__).parents[1] / "golden"
SIZES = {"t": "tiny", "s": "small", "m": "medium", "b": "base"}


@cache
def golden_models() -> dict[str, dict]:
    return json.loads((GOLDEN / "models.json").read_text())


def our_name(golden: str) -> str:
    _, family, size, *rest = golden.split("_")
    return "_".join(["inline", family, "large" if (family, size) == ("pvt", "b") else SIZES[size], *rest])


PUBLISHED = {our_name(golden): golden for golden in golden_models()}
"""Our name -> golden name, all fifteen."""
SMALL = ["inline_cswin_nano", "inline_deit_nano", "inline_pvt_nano", "inline_swin_nano"]
TINY = ["inline_cswin_tiny", "inline_deit_tiny", "inline_pvt_tiny", "inline_swin_tiny"]


@lru_cache(maxsize=4)
def _golden_weights(name: str) -> dict[str, Tensor]:
    return {key: torch.from_numpy(value) for key, value in weights(golden_models()[PUBLISHED[name]]["params"]).items()}


def official(name: str) -> dict[str, Tensor]:
    """A checkpoint with the authors' names."""
    return dict(_golden_weights(name))


@cache
def on_meta(name: str) -> nn.Module:
    """The model without weights, made once: do not change it."""
    with torch.device("meta"):
        return timm.create_model(name)


def hollow(name: str, **options) -> nn.Module:
    """The model with zeros for weights, which is fast."""
    with torch.device("meta"):
        model = timm.create_model(name, **options)
    model = model.to_empty(device="cpu").eval()
    for value in model.state_dict().values():
        value.zero_()
    return model


def publish(name, path, **more):
    """A file as the authors' training code leaves it."""
    configuration = CfgNode({"MODEL": {"NAME": name, "SWIN": {"DEPTHS": [2, 2, 6, 2]}}, "AUG": {"MIXUP": 0.8}})
    configuration.freeze()
    state = official(name)
    for key, shape in golden_models()[PUBLISHED[name]]["buffers"].items():
        state[key] = torch.zeros(shape)
    optimizer = {"state": {0: {"step": torch.tensor(7.0), "exp_avg": torch.zeros(3)}}, "param_groups": [{"lr": 0.1}]}
    saved = {"model": state, "optimizer": optimizer, "lr_scheduler": {}, "max_accuracy": 82.4, "epoch": 299}
    torch.save({**saved, "config": configuration, **more}, path)
    return path
