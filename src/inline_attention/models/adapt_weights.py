"""Published weights: the authors' parameter names translated to this package's, and weights resampled to another size.

Published checkpoints of InLine, Swin, PVT, CSWin and DeiT name the same things differently from family to family; here every
family has the same names. `translate` renames, `fit` resamples what depends on a size and leaves a classifier of other classes
out. `adapt_state_dict` does both whenever a backbone loads weights, so `timm.create_model(..., checkpoint_path=FILE)`
takes the authors' files unchanged.
"""

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import isqrt
from typing import Any

import torch
from timm.layers import resample_patch_embed
from timm.models import adapt_input_conv
from torch import Tensor, nn

from ..layers.softmax import PositionBias, resample_table
from .finite import check_weights
from .stage import PositionEmbedding, resample

State = dict[str, Tensor]
STEM = "stages.0.embed.proj.weight"

_log = logging.getLogger("inline_attention")


@dataclass
class LoadReport:
    """What was done with the weights of a checkpoint."""

    matched: list[str] = field(default_factory=list)
    """Parameters loaded unchanged."""
    resized: dict[str, str] = field(default_factory=dict)
    """Parameters that were resampled -> from which size to which."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Parameters of the checkpoint that were not used -> why."""
    kept: dict[str, str] = field(default_factory=dict)
    """Parameters of the model that stay as they were -> why."""

    def __str__(self) -> str:
        lines = [f"{len(self.matched)} tensors matched"]
        for label, found in (("resized", self.resized), ("left out", self.left_out), ("kept from the model", self.kept)):
            lines += [f"{label}: {name} ({why})" for name, why in _grouped(found).items()]
        return "\n".join(lines)


def _grouped(found: Mapping[str, str]) -> dict[str, str]:
    """One entry for all parameters with the same reason."""
    by_reason: dict[str, list[str]] = {}
    for name, why in found.items():
        by_reason.setdefault(why, []).append(name)
    return {names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more": why for why, names in by_reason.items()}


_LOCATIONS = [
    (r"patch_embed\.(.+)", r"stages.0.embed.\1"),
    (r"blocks\.(\d+)\.(.+)", r"stages.0.blocks.\1.\2"),
    (r"layers\.(\d+)\.blocks\.(.+)", r"stages.\1.blocks.\2"),
    (r"layers\.(\d+)\.downsample\.(.+)", r"stages.+\1.embed.\2"),
    (r"patch_embed(\d)\.(.+)", r"stages.-\1.embed.\2"),
    (r"block(\d)\.(.+)", r"stages.-\1.blocks.\2"),
    (r"stage1_conv_embed\.0\.(.+)", r"stages.0.embed.proj.\1"),
    (r"stage1_conv_embed\.2\.(.+)", r"stages.0.embed.norm.\1"),
    (r"merge(\d)\.conv\.(.+)", r"stages.\1.embed.proj.\2"),
    (r"merge(\d)\.norm\.(.+)", r"stages.\1.embed.norm.\2"),
    (r"stage(\d)\.(.+)", r"stages.-\1.blocks.\2"),
]
"""Official location -> ours; a stage written +n is the one after n, -n the one before."""

_PARTS = {
    "attn.": "mixer.",
    "mixer.sr.": "mixer.reduction.conv.",
    "mixer.norm.": "mixer.reduction.norm.",
    ".qkv.": ".mixer.qkv.",
    "mixer.mixer.": "mixer.",
    "mixer.relative_position_bias_table": "mixer.position.table",
    "residual.0.": "local.hidden.",
    "residual.2.": "local.taps.",
    "get_v.": "lepe.",
}


def is_official(state: Mapping[str, object]) -> bool:
    """Whether the names are those of a published checkpoint."""
    return not any(name.startswith("stages.") for name in state) and any(_rename(name) != name for name in state)


def _rename(name: str) -> str:
    for pattern, replacement in _LOCATIONS:
        if re.fullmatch(pattern, name):
            name = re.sub(pattern, replacement, name)
            name = re.sub(r"^stages\.([+-])(\d+)", lambda m: f"stages.{int(m[2]) + (1 if m[1] == '+' else -1)}", name)
            break
    else:
        return name
    if re.fullmatch(r"stages\.\d+\.blocks\.\d+\.proj\.\w+", name):
        name = name.replace(".proj.", ".mixer.proj.")
    for old, new in _PARTS.items():
        name = name.replace(old, new)
    return name


def translate(state: Mapping[str, Tensor]) -> tuple[State, dict[str, str]]:
    """Weights under our names, and parameters that have none, with the reason."""
    out: State = {}
    left_out: dict[str, str] = {}
    branches: dict[str, dict[int, Tensor]] = {}
    for official, value in state.items():
        name = _rename(official)
        if name.endswith(("relative_position_index", "attn_mask")):
            left_out[official] = "computed from the window"
        elif ".qkv." in name:
            third = value.shape[0] // 3
            out[name.replace("qkv", "q")], out[name.replace("qkv", "kv")] = value[:third], value[third:]
        elif branch := re.search(r"attns\.(\d)\.", name):
            branches.setdefault(name.replace(branch[0], "mixer."), {})[int(branch[1])] = value
        elif re.fullmatch(r"pos_embed\d?", name):
            _translate_positions(name, value, state, out)
        elif name == "cls_token":
            out[f"stages.{3 if 'pos_embed4' in state else 0}.positions.cls_token"] = value
        else:
            out[name] = value
    for name, parts in branches.items():
        out[name] = torch.cat([parts[number] for number in sorted(parts)])
    return {name: _reshape(name, value) for name, value in out.items()}, left_out


def _translate_positions(name: str, value: Tensor, state: Mapping[str, Tensor], out: State) -> None:
    """(1, N, C), with or without a position for the class token, as a grid. Published grids are square."""
    stage = f"stages.{int(name[-1]) - 1 if name[-1].isdigit() else 0}.positions"
    prefix = 1 if "cls_token" in state and name in ("pos_embed", "pos_embed4") else 0
    side = _side(name, value.shape[1] - prefix)
    out[f"{stage}.grid"] = value[:, prefix:].unflatten(1, (side, side))
    if prefix:
        out[f"{stage}.cls_position"] = value[:, :prefix]


def _reshape(name: str, value: Tensor) -> Tensor:
    """Shapes that differ: local kernels are split by head, LePE has no channel axis of 1, tables are 2-D."""
    if re.search(r"local\.\w+\.weight$", name) and value.ndim == 3 and value.shape[-1] == 1:
        inputs = value.shape[1]  # of (heads * outputs, inputs, 1), with d outputs for the hidden layer and 9 d for the taps
        return value.squeeze(-1).unflatten(0, (-1, inputs if ".hidden." in name else 9 * inputs))
    if name.endswith("lepe.weight"):
        return value.squeeze(1)
    if name.endswith("position.table"):
        side = _side(name, value.shape[0])
        return value.unflatten(0, (side, side))
    return value


def _side(name: str, count: int) -> int:
    side = isqrt(count)
    if side * side != count:
        raise ValueError(f"{name} has {count} positions, which are no square grid: this is not a published checkpoint")
    return side


def fit(state: State, model: nn.Module, *, loose: bool) -> tuple[State, LoadReport]:
    """Weights under our names, resampled to the model's sizes; other weights are returned unchanged.

    Positions, tables and patches are resampled. If `loose`, input channels are adapted, and a classifier for other classes is
    left out.
    """
    report = LoadReport()
    own = model.state_dict()
    out = dict(state)
    resizers = _resizers(model)
    for name, value in state.items():
        if name not in own or value.shape == own[name].shape:
            continue
        if name in resizers:
            out[name] = resizers[name](value)
            report.resized[name] = f"{_text(value)} to {_text(out[name])}"
        elif name == STEM and value.ndim == 4 and value.shape[0] == own[name].shape[0]:
            out[name] = _fit_stem(value, own[name].shape, report, loose)
    head = out.get("head.weight")
    if loose and head is not None and ("head.weight" not in own or head.shape[0] != own["head.weight"].shape[0]):
        classes = f"{own['head.weight'].shape[0]} classes" if "head.weight" in own else "no classifier"
        for name in ("head.weight", "head.bias"):
            if name in out:
                report.left_out[name] = f"{out.pop(name).shape[0]} classes, the model has {classes}"
            if name in own:
                report.kept[name] = "the classifier is newly initialised"
    report.matched = [name for name in out if name in own and name not in report.resized]
    return out, report


def _fit_stem(value: Tensor, shape: torch.Size, report: LoadReport, loose: bool) -> Tensor:
    """The first convolution for another patch size or, from three, for other colour channels."""
    changes = []
    if value.shape[2:] != shape[2:]:
        changes.append(f"patches of {value.shape[2]}x{value.shape[3]} to {shape[2]}x{shape[3]}")
        value = resample_patch_embed(value, list(shape[2:]))
    if loose and value.shape[1] == 3 != shape[1]:
        changes.append(f"3 to {shape[1]} colour channels")
        value = adapt_input_conv(shape[1], value)
    if changes:
        report.resized[STEM] = ", ".join(changes)
    return value


def _resizers(model: nn.Module) -> dict[str, Callable[[Tensor], Tensor]]:
    """Parameters that depend on a grid or window, with the function that resamples each to the model's."""
    resizers: dict[str, Callable[[Tensor], Tensor]] = {}
    for name, module in model.named_modules():
        if isinstance(module, PositionEmbedding):
            grid, mode = tuple(module.grid.shape[1:3]), module.mode
            resizers[f"{name}.grid"] = partial(resample, grid=grid, mode=mode)
        elif isinstance(module, PositionBias):
            resizers[f"{name}.table"] = partial(resample_table, window=module.window)
    return resizers


def _text(value: Tensor) -> str:
    sides = value.shape[1:3] if value.shape[0] == 1 else value.shape[:2]
    return f"{sides[0]}x{sides[1]}"


def adapt(state: Mapping[str, Tensor], model: nn.Module, *, loose: bool) -> tuple[State, LoadReport]:
    """Weights translated, if the names are official, and fitted to the model; with a report."""
    state, left_out = translate(state) if is_official(state) else (dict(state), {})
    out, report = fit(state, model, loose=loose)
    report.left_out = {**left_out, **report.left_out}
    return out, report


def filter_state_dict(state: Mapping[str, Tensor], model: nn.Module) -> State:
    """For timm's `pretrained=True`: our names, the model's sizes. timm itself adapts classes and input channels."""
    return adapt(state, model, loose=False)[0]


def adapt_state_dict(model: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    """The `load_state_dict` pre-hook of a backbone: change weights, in place, to its names and sizes, and log what was done.

    Weights with NaN or infinity are a ValueError.
    It is a hook because `timm.create_model(..., checkpoint_path=)` has no other place. With this package's names, classes
    and input channels have to be the model's, as in any `load_state_dict`.
    """
    given = {name.removeprefix(prefix): state[name] for name in list(state) if name.startswith(prefix)}
    check_weights(given, type(model).__name__)
    adapted, report = adapt(given, model, loose=is_official(given))
    for name in given:
        del state[prefix + name]
    own = model.state_dict()
    state |= {prefix + name: value for name, value in adapted.items()}
    state |= {prefix + name: own[name] for name in report.kept}
    changed = report.resized or report.kept
    _log.log(logging.WARNING if changed else logging.INFO, "%s", report)
