"""A model as a folder in timm's hub format: written, uploaded, loaded.

The folder holds `config.json`, `model.safetensors` and `README.md`. With `import inline_attention`, timm loads it by
`timm.create_model("local-dir:FOLDER", pretrained=True)` and, once it is uploaded, by `"hf-hub:OWNER/NAME"`.
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

from ..plain.wording import first_line

WEIGHTS = "model.safetensors"
FILES = ("config.json", WEIGHTS, "README.md")
SHOWN = ("size", "channels", "view", "crop", "interpolation", "mean", "std")
"""What `data` has to tell."""
TOLERANCE = 1e-3
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
    """Write a model as a folder that timm loads; it is there whole, and gives the model's outputs, or not at all.

    Weights are written in the precision that they have; timm makes a model of float32 from them.

    Args:
        model: what `timm.create_model(name, **arguments)` makes, with any weights.
        folder: is made; there must be none yet.
        name: in timm's registry.
        arguments: of `timm.create_model`: numbers, texts, lists.
        classes: what the outputs are called, in their order.
        data: how pictures are shown: size (H, W), channels, view, crop, interpolation, mean and std of red, green and blue.
        card: the text of `README.md`, such as `model_card` writes.
    """
    folder = Path(folder)
    if folder.exists():
        raise ValueError(f"{folder} is there already: name a folder that is not")
    if "swap" in arguments:
        raise ValueError(f"timm's hub format cannot say that the attention of {name} was swapped: share the run's own file")
    config = hub_config(model, name, arguments, classes, data)
    tensors = {
        key: value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for key, value in model.state_dict().items()
    }
    told = {"model": name, "arguments": dict(arguments), "classes": list(classes), "data": {key: data[key] for key in SHOWN}}
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        bare: Any = SimpleNamespace(**_read_by_timm(model), state_dict=lambda: tensors)
        save_for_hf(bare, str(temporary), model_config=config, safe_serialization=True)
        # The same file once more, saying of itself what this package's own files of weights say.
        save_file(tensors, temporary / WEIGHTS, metadata={"format": "pt", "inline": json.dumps(told, sort_keys=True)})
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
    """What `config.json` says, apart from what timm reads off the model: arguments, classes, how pictures are shown."""
    if not is_model(name):
        raise ValueError(f"{name!r} is not a model that timm knows: give the name that the model was made by")
    count = getattr(model, "num_classes", None)
    if count is None or not getattr(model, "pretrained_cfg", None):
        raise ValueError(f"{type(model).__name__} is not a classifier of timm's: it has no num_classes or no pretrained_cfg")
    if len(classes) != count:
        raise ValueError(f"there are {len(classes)} names of classes for a model of {count}: give one for each")
    if missing := [key for key in SHOWN if key not in data]:
        raise ValueError(f"data does not tell {missing[0]!r}; it has to tell: {', '.join(SHOWN)}")
    try:
        made: dict[str, Any] = json.loads(json.dumps(dict(arguments)))
    except (TypeError, ValueError) as error:
        raise ValueError(f"the arguments of {name} cannot be written as JSON: {first_line(error)}") from error
    return {
        "architecture": name.split(".")[0],
        "label_names": list(classes),
        "model_args": made,
        "pretrained_cfg": _pretrained_cfg(model.pretrained_cfg, data, len(classes)),
    }


def _pretrained_cfg(own: Any, data: Mapping[str, Any], count: int) -> dict[str, Any]:
    """What timm's data pipeline and weight loading read: of the model's own, the names of its first and last layer."""
    channels = data["channels"]
    grey = channels == 1
    return {
        "input_size": [channels, *data["size"]],
        "fixed_input_size": bool(own.get("fixed_input_size", False)),
        "interpolation": data["interpolation"],
        "crop_pct": data["crop"],
        "crop_mode": data["view"],
        "mean": [sum(data["mean"]) / 3] if grey else list(data["mean"]),
        "std": [sum(data["std"]) / 3] if grey else list(data["std"]),
        "num_classes": count,
        "pool_size": None,
        # timm adapts the first layer from three channels, whatever it has: where it has others, it must not find it.
        "first_conv": own.get("first_conv") if channels == 3 else None,
        "classifier": own.get("classifier"),
    }


def _read_by_timm(model: nn.Module) -> dict[str, Any]:
    """What timm reads off a model to write it, besides its weights."""
    cfg: Any = model.pretrained_cfg
    optional = {name: getattr(model, name, None) for name in ("num_features", "global_pool")}
    return {"num_classes": model.num_classes, "pretrained_cfg": {"architecture": "", **cfg}, **optional}


@torch.no_grad()
def _check(model: nn.Module, folder: Path, name: str, shape: tuple[int, ...]) -> None:
    """Raise unless what is in the folder is the model: the same weights, and the same outputs for a picture of noise.

    Weights alone do not tell: heads and kernels leave no trace in them.
    """
    ours = deepcopy(model).cpu().float().eval()
    try:
        theirs = create_model(f"local-dir:{folder}", pretrained=True).eval()
        own, other = ours.state_dict(), theirs.state_dict()
        if own.keys() != other.keys() or not all(torch.equal(own[key], other[key]) for key in own):
            raise ValueError("other weights come back")
        noise = torch.randn(1, *shape, generator=torch.Generator().manual_seed(0))
        expected, got = ours(noise), theirs(noise)
        if not torch.allclose(got, expected, rtol=0, atol=TOLERANCE * float(expected.abs().max())):
            raise ValueError("the outputs differ")
    except (TypeError, RuntimeError, AssertionError, ValueError) as error:
        raise ValueError(f"{name} with these arguments is not the model that was given: {_one_line(error)}") from error


def _one_line(error: BaseException) -> str:
    """What an error says; torch's of weights that do not fit say it after their first line."""
    return " ".join(str(error).split())[:200] if str(error).startswith("Error(s)") else first_line(error)


def push_to_hub(
    folder: str | Path, repo_id: str, *, private: bool = False, token: str | None = None, message: str = "Add model"
) -> str:
    """Upload a folder of `save_for_hub`; gives the address of what was uploaded.

    Args:
        folder: what to upload, all of it.
        repo_id: "owner/name"; made if there is none.
        private: whether a repository that is made is private. One that is there stays as it is.
        token: with leave to write; None for the one that `hf auth login` stored, or that is in $HF_TOKEN.
        message: what the commit says.
    """
    folder = Path(folder)
    if missing := [file for file in FILES if not (folder / file).is_file()]:
        raise ValueError(f"{folder} has no {missing[0]}: it is not a folder that save_for_hub wrote")
    try:
        api = HfApi(token=token)
        api.create_repo(repo_id, private=private, exist_ok=True)
        return str(api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message=message))
    except Exception as error:  # its own kinds, those of the network, and the system's
        known = "hf auth login stores a token, token= gives one, and it needs leave to write"
        hint = f"; {known}" if _refused(error) else ""
        raise ValueError(f"{folder} cannot be uploaded to {repo_id}: {first_line(error)}{hint}") from error


def _refused(error: Exception) -> bool:
    """Whether it was for want of a token that is good for it."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status in (401, 403) or "token" in str(error).lower()


def from_pretrained(source: str | Path, **arguments: Any) -> nn.Module:
    """A model out of a folder, or from the hub, ready to be shown pictures.

    Args:
        source: a folder in timm's hub format, or "owner/name" or "owner/name@revision" on the hub.
        arguments: of `timm.create_model`, in place of those that the model was made by: num_classes, img_size, ...
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
    return model.eval()
