"""`load_official`: loading published weights, and reading checkpoints without running code that is in them.

The authors' files are pickles that hold, besides the weights, a configuration of the class `yacs.config.CfgNode`. torch's own
restricted unpickler reads them once that name stands for a plain dictionary (`compat.configure_torch`); any other name that a
file would call is refused.
"""

import pickletools
import re
import zipfile
from argparse import Namespace
from collections.abc import Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from timm.models import clean_state_dict
from torch import Tensor, nn

from .adapt_weights import LoadReport, adapt
from .backbone import Backbone
from .finite import check_weights

HARMLESS = (
    r"torch\._utils\._rebuild_\w+|torch\.(\w+Storage|Size|device|dtype|float\d+|bfloat16|u?int\d+|bool)"
    r"|torch\.storage\.\w+Storage|torch\.nn\.parameter\.Parameter"
    r"|collections\.OrderedDict|(__builtin__|builtins)\.set|yacs\.config\.CfgNode|argparse\.Namespace"
)
"""Names in the pickles of training runs that create tensors and dictionaries, and nothing else."""
MAX_PICKLE_BYTES = 2**28
"""Bytes of the pickled part of a file; weights are stored apart from it."""
WEIGHTS = ("model", "state_dict")
EMA = ("state_dict_ema", "model_ema")


def load_official(
    model: nn.Module, weights: str | Path | Mapping[str, Any], *, ema: bool = False, source: str = "the checkpoint"
) -> LoadReport:
    """Load published weights into a model of any size and number of classes.

    Args:
        model: one of the package's backbones, or a module that holds one (from `features_only=True`, or a detector).
        weights: a file (the authors' pickle, or safetensors) or its content. Names may be the authors' or this package's.
            Softmax twins take the published files of Swin, PVT, CSWin and DeiT.
        ema: use the moving average that some files hold besides the weights.
        source: the name in messages of weights that were read already.

    Returns:
        A report of what matched, what was resized and what was left out. Any mismatch raises a ValueError and leaves the model
        as it was.
    """
    if not isinstance(weights, Mapping | str | Path):
        raise TypeError(f"weights must be a path or a dictionary of tensors, got {weights!r}")
    source = source if isinstance(weights, Mapping) else str(weights)
    state = select_weights(weights if isinstance(weights, Mapping) else read_checkpoint(weights), ema=ema, source=source)
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {model!r}")
    backbone = _backbone_of(model)
    adapted, report = adapt(state, backbone, loose=True)
    _explain_pruned(adapted, backbone, report)
    _check_fit(adapted, backbone, report, source)
    hollow = next((name for name, value in adapted.items() if value.is_meta), None)
    if hollow is not None:
        raise ValueError(f"{source}: {hollow} is on the meta device, without numbers: load the weights on another device")
    on_meta = any(parameter.is_meta for parameter in backbone.parameters())
    if on_meta and report.kept:
        raise ValueError(f"the model is on the meta device, and {source} has no {next(iter(report.kept))} for it")
    backbone.load_state_dict({**backbone.state_dict(), **adapted}, assign=on_meta)
    return report


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """The content of a safetensors or torch file, on the CPU."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path} is a folder" if path.is_dir() else f"there is no file {path}")
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        _check_archive(path)
        with torch.serialization.safe_globals([Namespace]):  # the options of training scripts: it holds values and runs no code
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except BombError:
        raise
    except Exception as error:  # torch raises many kinds for a broken file
        if forbidden := _forbidden_names(path):
            raise ValueError(f"{path} wants to call {', '.join(forbidden)}: refused, nothing was run") from error
        lines = str(error).splitlines()
        useful = lines and "weights_only" not in str(error) and " " in lines[0]
        reason = lines[0] if useful else "it is no whole file of weights"
        raise ValueError(f"{path} cannot be read as a checkpoint, perhaps it is truncated: {reason}") from error
    if not isinstance(loaded, dict):
        raise ValueError(f"{path} holds a {type(loaded).__name__}, not a dictionary of weights")
    _check_claims(loaded, path)
    return loaded


class BombError(ValueError):
    """A file that would take far more memory than its size."""


def _check_archive(path: Path) -> None:
    """Raise if the file would be unpacked to more than its size: torch stores weights uncompressed, once each."""
    size = path.stat().st_size
    with path.open("rb") as file:
        zipped = file.read(4) == b"PK\x03\x04"
    if zipped:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        if unpacked > size:
            raise BombError(
                f"{path} has {size:,} bytes and would be unpacked to {unpacked:,}: refused; torch.save writes weights "
                "uncompressed"
            )
    if any(name.endswith(".bytearray") for name in _forbidden_names(path)):
        raise BombError(f"{path} wants to call bytearray, which allocates any size: refused, nothing was run")


def _check_claims(loaded: Any, path: Path) -> None:
    """Raise if a tensor has more numbers than the whole file could hold, such as one number repeated."""
    size = path.stat().st_size
    waiting = [("", loaded)]
    seen = set()  # a dictionary may hold itself
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, Mapping) and id(value) not in seen:
            seen.add(id(value))
            waiting += [(str(key), part) for key, part in value.items()]
        elif isinstance(value, Tensor) and value.numel() * value.element_size() > size:
            raise BombError(f"{path}: {name} claims to be {tuple(value.shape)}, more than the file's {size:,} bytes: refused")


def _forbidden_names(path: Path) -> list[str]:
    """Names that a pickle would import, other than those of tensors and dictionaries. The pickle is read, not run."""
    names: list[str] = []
    with suppress(Exception):  # not a pickle, or damaged: keep the names found so far
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                pickles = [entry for entry in archive.infolist() if entry.filename.endswith(".pkl")]
                data = b"".join(archive.read(entry) for entry in pickles if entry.file_size < MAX_PICKLE_BYTES)
        else:
            with path.open("rb") as file:
                data = file.read(MAX_PICKLE_BYTES)
        stream = BytesIO(data)
        while stream.tell() < len(data):  # older files are several pickles, one after the other
            _collect_names(stream, names)
    return [name for name in dict.fromkeys(names) if not re.fullmatch(HARMLESS, name)]


def _collect_names(stream: BytesIO, names: list[str]) -> None:
    """Append the names that one pickle would import: written out, or built from strings, some of them from the memo."""
    pushed: list[object] = []
    memo: dict[object, object] = {}
    for opcode, argument, _ in pickletools.genops(stream):
        if opcode.name == "GLOBAL":
            names.append(str(argument).replace(" ", "."))
        elif opcode.name == "STACK_GLOBAL":
            names.append(".".join(str(part) for part in pushed[-2:]))
        elif opcode.name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memo[len(memo) if argument is None else argument] = pushed[-1] if pushed else None
            continue
        pushed.append(memo.get(argument) if opcode.name in ("GET", "BINGET", "LONG_BINGET") else argument)


def select_weights(checkpoint: Mapping[str, Any], *, ema: bool, source: str) -> dict[str, Tensor]:
    """The weights in the checkpoint of a training run, which may hold an optimizer, a configuration and more; all finite."""
    averages = [checkpoint[key] for key in EMA if isinstance(checkpoint.get(key), Mapping)]
    if ema and not averages:
        raise ValueError(f"{source} holds no moving average (EMA); it has: {', '.join(map(str, checkpoint))}"[:300])
    chosen = averages if ema else [checkpoint[key] for key in WEIGHTS if isinstance(checkpoint.get(key), Mapping)]
    found = dict(chosen[0] if chosen else checkpoint)
    if not found or not all(isinstance(name, str) and isinstance(value, Tensor) for name, value in found.items()):
        raise ValueError(f"{source} holds no weights; it has: {', '.join(map(str, checkpoint))}"[:300])
    for name, value in found.items():
        if value.layout is not torch.strided or value.is_quantized:
            kind = "quantized" if value.is_quantized else str(value.layout).removeprefix("torch.")
            raise ValueError(f"{source}: {name} is {kind}, and dense tensors are expected: call its to_dense() or dequantize()")
    check_weights(found, source)
    state = clean_state_dict(found)
    wrapped = all(name.startswith("model.") for name in state)  # by `features_only=True`
    return {name.removeprefix("model."): value for name, value in state.items()} if wrapped else state


def _backbone_of(model: nn.Module) -> Backbone:
    found = [module for module in model.modules() if isinstance(module, Backbone)]
    if len(found) != 1:
        raise ValueError(f"{type(model).__name__} holds {len(found)} of the package's backbones, and not one")
    return found[0]


def _explain_pruned(state: dict[str, Tensor], backbone: Backbone, report: LoadReport) -> None:
    """Remove weights of layers that `features_only=True` has cut off after the last map."""
    own = backbone.state_dict()
    for name in list(state):
        cut = name.startswith("norm.") and isinstance(backbone.norm, nn.Identity) and backbone.pruned
        stage = re.match(r"stages\.(\d+)\.(?:blocks\.(\d+)\.)?", name)
        if stage and backbone.pruned:
            number, block = int(stage[1]), int(stage[2] or 0)
            cut = number >= len(backbone.depths()) or block >= backbone.depths()[number]
        if cut and name not in own:
            del state[name]
            report.left_out[name] = "after the last map that is returned"


def _check_fit(state: dict[str, Tensor], backbone: Backbone, report: LoadReport, source: str) -> None:
    """Raise, in one sentence, unless the checkpoint and the model have the same parameters."""
    own = backbone.state_dict()
    unknown = [name for name in state if name not in own]
    missing = [name for name in own if name not in state and name not in report.kept]
    other = [name for name in state if name in own and state[name].shape != own[name].shape]
    whole = [name for name in state if name in own and not state[name].is_floating_point()]
    if whole:
        raise ValueError(
            f"{source} holds whole numbers where {_name(backbone)} has weights: {whole[0]} is {state[whole[0]].dtype}"
        )
    if not unknown and not missing and not other:
        return
    problems = []
    if unknown:
        problems.append(f"{len(unknown)} parameters are unknown to the model ({unknown[0]}, ...)")
    if missing:
        problems.append(f"{len(missing)} of the model's are missing ({missing[0]}, ...)")
    if other:
        shapes = f"{tuple(state[other[0]].shape)} instead of {tuple(own[other[0]].shape)}"
        problems.append(f"{len(other)} have other shapes ({other[0]}: {shapes}, ...)")
    raise ValueError(f"{source} does not fit {_name(backbone)}: {', '.join(problems)}{_hint(state, backbone)}")


def _name(backbone: Backbone) -> str:
    configuration = getattr(backbone, "pretrained_cfg", None) or {}
    return str(configuration.get("architecture") or type(backbone).__name__)


def _hint(state: dict[str, Tensor], backbone: Backbone) -> str:
    """Arguments of the model that would fit, where they can be recognised."""
    blocks = {tuple(map(int, m.groups())) for name in state if (m := re.match(r"stages\.(\d+)\.blocks\.(\d+)\.", name))}
    depths = tuple(1 + max(b for s, b in blocks if s == stage) for stage in sorted({s for s, _ in blocks}))
    hints = []
    if sum(name in backbone.state_dict() for name in state) < len(state) / 2:
        return "; `inline convert` prints which model a file is of"
    if depths and depths != backbone.depths():
        hints.append(f"depths={depths}")
    if "stages.3.positions.cls_token" in state and not backbone.num_prefix_tokens:
        hints.append("class_token=True, num_heads=(1, 2, 5, 8)")
    linear = [name for name in state if ".local." in name]
    own_linear = [name for name in backbone.state_dict() if ".local." in name]
    if own_linear and not linear:
        hints.append("mixer='softmax'")
    return f"; perhaps it is for {', '.join(hints)}" if hints else ""
