"""Writes, uploads and loads a model as a folder in timm's hub format.

The folder holds `config.json`, `model.safetensors` and `README.md`. With `import inline_attention`, timm loads it by
`timm.create_model("local-dir:FOLDER", pretrained=True)` and, once it is uploaded, by `"hf-hub:OWNER/NAME"`; transformers by
`AutoModelForImageClassification.from_pretrained`.
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from huggingface_hub import HfApi
from safetensors import SafetensorError
from safetensors.torch import save_file
from timm.models import create_model, is_model, save_for_hf
from torch import nn

from ..lite.decode import first_line, per_channel
from ..lite.transform import TRANSFORM_FIELDS, upgrade_transform
from ..models.finite import check_weights

WEIGHTS = "model.safetensors"
FILES = ("config.json", WEIGHTS, "README.md")
OUTPUT_TOLERANCE = 1e-3
"""Of the largest output: more than rounding on another device or layout, less than another number of heads."""


def save_for_hub(
    model: nn.Module,
    folder: str | Path,
    *,
    name: str,
    arguments: Mapping[str, Any],
    classes: Sequence[str],
    data: Mapping[str, Any],
    card: str,
) -> Path:
    """Write a model as a folder that timm loads. It is checked against the model before it gets its name.

    Weights keep their precision; timm loads them as float32.

    Args:
        model: a model of `timm.create_model(name, **arguments)`, with any weights.
        folder: to create; it must not exist.
        name: in timm's registry.
        arguments: of `timm.create_model`: numbers, strings, lists.
        classes: names of the outputs, in their order.
        data: the evaluation transform: size (H, W), channels, crop_mode, crop, interpolation, mean and std (RGB).
        card: the text of `README.md`, such as `model_card` writes.
    """
    folder = Path(folder)
    if folder.exists():
        raise ValueError(f"{folder} exists already: choose another folder")
    if "swap" in arguments:
        raise ValueError(f"timm's hub format has no place for swapped attention, as in this {name}: share the run's own file")
    data = upgrade_transform(data)
    config = hub_config(model, name, arguments, classes, data)
    tensors = {
        key: value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for key, value in model.state_dict().items()
    }
    transform = {key: data[key] for key in TRANSFORM_FIELDS}
    metadata = {"model": name, "arguments": dict(arguments), "classes": list(classes), "data": transform}
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        stand_in: Any = SimpleNamespace(**_read_by_timm(model), state_dict=lambda: tensors)
        save_for_hf(stand_in, str(temporary), model_config=config, safe_serialization=True)
        # The same file once more, with the metadata of this package's own files of weights.
        save_file(tensors, temporary / WEIGHTS, metadata={"format": "pt", "inline": json.dumps(metadata, sort_keys=True)})
        (temporary / "README.md").write_text(card, encoding="utf-8")
        _check(model, temporary, name, (data["channels"], *data["size"]))
        temporary.rename(folder)
    except (OSError, SafetensorError) as error:
        raise OSError(f"cannot write {folder}: {getattr(error, 'strerror', None) or first_line(error)}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def hub_config(
    model: nn.Module, name: str, arguments: Mapping[str, Any], classes: Sequence[str], data: Mapping[str, Any]
) -> dict[str, Any]:
    """The part of `config.json` that timm does not read from the model: arguments, classes, evaluation transform."""
    if not is_model(name):
        raise ValueError(f"{name!r} is not a model in timm's registry: give the name that the model was created with")
    count = getattr(model, "num_classes", None)
    if count is None or not getattr(model, "pretrained_cfg", None):
        raise ValueError(f"{type(model).__name__} is not a classifier of timm's: it has no num_classes or no pretrained_cfg")
    if len(classes) != count:
        raise ValueError(f"there are {len(classes)} class names for a model of {count} classes: give one for each")
    if missing := [key for key in TRANSFORM_FIELDS if key not in data]:
        raise ValueError(f"data has no {missing[0]!r}; it must have: {', '.join(TRANSFORM_FIELDS)}")
    try:
        model_args: dict[str, Any] = json.loads(json.dumps(dict(arguments)))
        model_args.pop("num_classes", None)  # config.json has it already, and transformers refuses to be given it twice
    except (TypeError, ValueError) as error:
        raise ValueError(f"the arguments of {name} cannot be written as JSON: {first_line(error)}") from error
    return {
        "architecture": name.split(".")[0],
        "label_names": list(classes),
        "model_args": model_args,
        "pretrained_cfg": _pretrained_cfg(model.pretrained_cfg, data, len(classes)),
    }


def _pretrained_cfg(own: Any, data: Mapping[str, Any], count: int) -> dict[str, Any]:
    """What timm's transforms and weight loading read; the names of first and last layer are from the model's own."""
    channels = data["channels"]
    return {
        "input_size": [channels, *data["size"]],
        "fixed_input_size": bool(own.get("fixed_input_size", False)),
        "interpolation": data["interpolation"],
        "crop_pct": data["crop"],
        "crop_mode": data["crop_mode"],
        "mean": list(per_channel(data["mean"], channels)),
        "std": list(per_channel(data["std"], channels)),
        "num_classes": count,
        "pool_size": None,
        # timm always adapts the first layer from three channels: without a name, it leaves one of other channels alone.
        "first_conv": own.get("first_conv") if channels == 3 else None,
        "classifier": own.get("classifier"),
    }


def _read_by_timm(model: nn.Module) -> dict[str, Any]:
    """The attributes that timm reads from a model to write it, besides its weights."""
    cfg: Any = model.pretrained_cfg
    optional = {name: getattr(model, name, None) for name in ("num_features", "global_pool")}
    return {"num_classes": model.num_classes, "pretrained_cfg": {"architecture": "", **cfg}, **optional}


@torch.no_grad()
def _check(model: nn.Module, folder: Path, name: str, shape: tuple[int, ...]) -> None:
    """Raise unless the folder holds the model: the same weights, and the same outputs for random pixels.

    Equal weights are not enough: the number of heads and the kernel leave no trace in them.
    """
    ours = deepcopy(model).cpu().float().eval()
    try:
        theirs = create_model(f"local-dir:{folder}", pretrained=True).eval()
        own, other = ours.state_dict(), theirs.state_dict()
        if own.keys() != other.keys() or not all(torch.equal(own[key], other[key]) for key in own):
            raise ValueError("the weights differ")
        noise = torch.randn(1, *shape, generator=torch.Generator().manual_seed(0))
        expected, got = ours(noise), theirs(noise)
        if not torch.allclose(got, expected, rtol=0, atol=OUTPUT_TOLERANCE * float(expected.abs().max())):
            raise ValueError("the outputs differ")
    except (TypeError, RuntimeError, AssertionError, ValueError) as error:
        raise ValueError(f"{name} with these arguments is not the model that was given: {_one_line(error)}") from error


def _one_line(error: BaseException) -> str:
    """An error in one line; torch's message about weights that do not fit goes on after its first line."""
    return " ".join(str(error).split())[:200] if str(error).startswith("Error(s)") else first_line(error)


def push_to_hub(
    folder: str | Path, repo_id: str, *, private: bool = False, token: str | None = None, message: str = "Add model"
) -> str:
    """Upload a folder of `save_for_hub`; returns its address.

    Args:
        folder: what to upload, all of it.
        repo_id: "owner/name"; created if it does not exist.
        private: whether a new repository is private. An existing one is not changed.
        token: with write access; None for the one of `hf auth login`, or $HF_TOKEN.
        message: of the commit.
    """
    folder = Path(folder)
    if missing := [file for file in FILES if not (folder / file).is_file()]:
        raise ValueError(f"{folder} has no {missing[0]}: it is not a folder that save_for_hub wrote")
    try:
        api = HfApi(token=token)
        api.create_repo(repo_id, private=private, exist_ok=True)
        return str(api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message=message))
    except Exception as error:  # of huggingface_hub, the network and the system
        advice = "hf auth login stores a token, token= passes one, and it needs write access"
        hint = f"; {advice}" if _needs_token(error) else ""
        raise ValueError(f"{folder} cannot be uploaded to {repo_id}: {first_line(error)}{hint}") from error


def _needs_token(error: Exception) -> bool:
    """Whether the upload was refused for want of a token with write access."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status in (401, 403) or "token" in str(error).lower()


def from_pretrained(source: str | Path, **arguments: Any) -> nn.Module:
    """Load a model from a folder or from the hub, in evaluation mode.

    Args:
        source: a folder in timm's hub format, or "owner/name" or "owner/name@revision" on the hub.
        arguments: of `timm.create_model`, which replace those that the model was created with: num_classes, img_size, ...
    """
    local = Path(source).is_dir()
    if not local and (isinstance(source, Path) or len(source.split("/")) != 2):
        raise ValueError(f"{source} is neither a folder nor a repository of the hub, which is owner/name")
    if local and not (Path(source) / "config.json").is_file():
        raise ValueError(f"{source} has no config.json: it is not a folder in timm's hub format")
    try:
        model: nn.Module = create_model(f"{'local-dir' if local else 'hf-hub'}:{source}", pretrained=True, **arguments)
    except Exception as error:  # of the hub, the network, the files, and the arguments
        raise ValueError(f"{source} cannot be loaded: {_one_line(error)}") from error
    check_weights(model.state_dict(), str(source))
    return model.eval()
