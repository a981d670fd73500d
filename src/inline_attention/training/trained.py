"""A trained model, from a run's folder, a file of weights, or a name with weights: ready to be shown pictures."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from timm.data import ImageNetInfo, resolve_model_data_config
from timm.models import is_model, is_model_pretrained, list_models
from torch import nn

from ..models.checkpoints import read_checkpoint, select_weights
from ..models.identify import identify
from .create import make_model
from .lay_in import lay_in, weights_of
from .recipe import DataPart, build, nearest


@dataclass(frozen=True)
class Trained:
    """A model, what its classes are called, and how pictures are shown to it."""

    model: nn.Module
    name: str
    classes: tuple[str, ...]
    data: DataPart
    said: str
    """What the loader says of the weights."""
    trained: bool = True
    """False for weights that were drawn."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """With which `make_model` makes it."""


def load_trained(what: str, weights: Path | None = None, *, ema: bool = False) -> Trained:
    """A model to use.

    Args:
        what: the folder of a run, a file of weights (ours, or the authors'), or a model's name.
        weights: a file for a model that was named.
        ema: take the moving average out of a file that holds both.
    """
    path = Path(what)
    if path.exists():
        return _from_file(weights_of(what), None, ema=ema)
    if not is_model(what):
        raise ValueError(f"{what} is neither a run's folder, nor a file, nor a model{nearest(what, list_models())}")
    if weights is None:
        raise ValueError(f"{what} needs weights: --weights FILE (the package ships none)")
    if not weights.is_file():
        raise ValueError(f"there is no file {weights}")
    return _from_file(weights, what, ema=ema)


def make_named(name: str, *, pretrained: bool = False, seed: int = 0) -> Trained:
    """A model by its name, with weights drawn by the seed, or with those that timm fetches for it from its hub.

    Our models are made for 224 pixels a side; others keep their own size, and take any other where timm lets them.
    """
    if not is_model(name):
        raise ValueError(f"{name} is neither a run's folder, nor a file, nor a model{nearest(name, list_models())}")
    if pretrained and not is_model_pretrained(name):
        raise ValueError(f"{name} has no weights on timm's hub")
    torch.manual_seed(seed)
    ours = name.startswith("inline_")
    asked: dict[str, Any] = {"pretrained": True} if pretrained else {}
    tries: list[dict[str, Any]] = [{"img_size": 224}]
    if not ours:
        tries = [{"dynamic_img_size": True, "dynamic_img_pad": True}, {"dynamic_img_size": True}, {}]
    for arguments in tries:
        try:
            model = make_model(name, {**asked, **arguments})
            break
        except ValueError:
            if arguments is tries[-1]:
                raise
    data = _data({}, model)
    said = "weights of timm's hub" if pretrained else f"untrained, seed {seed}"
    classes = _classes({}, int(getattr(model, "num_classes", 0)))
    data = replace(data, size=(224, 224)) if ours else data
    return Trained(model.eval(), name, classes, data, said, trained=pretrained, arguments=arguments)


def _from_file(path: Path, name: str | None, *, ema: bool) -> Trained:
    metadata = metadata_of(path)
    if "task" in metadata:
        raise ValueError(f"{path} is a model to {metadata['task']['name']}: this works with models that classify")
    state = select_weights(read_checkpoint(path), ema=ema, source=str(path))
    if "model" in metadata and name in (None, metadata["model"]):
        name, arguments = creation_of(metadata, path)
    elif name is None:
        fitting = identify(state)
        if len(fitting) != 1:
            names = ", ".join(name for name, _ in fitting) or "no model of the package"
            raise ValueError(f"{path} fits {names}: name the model, and give the file with --weights")
        name, arguments = fitting[0]
    else:
        classes = [value.shape[0] for key, value in state.items() if key in ("head.weight", "head.fc.weight", "fc.weight")]
        fitting = [found for found in identify(state) if found[0] == name]
        arguments = fitting[0][1] if fitting else ({"num_classes": classes[0]} if classes else {})
    model = make_model(name, arguments)
    said = lay_in(model, path, ema=ema)
    count = int(getattr(model, "num_classes", 0))
    if not count:
        raise ValueError(f"{path} has no classifier: there is nothing that it could tell")
    return Trained(model.eval(), name, _classes(metadata, count), _data(metadata, model), said, arguments=arguments)


def creation_of(metadata: dict[str, Any], path: Path) -> tuple[str, dict[str, Any]]:
    """What a file says of its model, as far as it may: a registered name, and arguments that open nothing."""
    try:
        name, arguments = str(metadata["model"]), dict(metadata["arguments"])
    except (KeyError, ValueError, TypeError) as error:
        raise ValueError(f"{path} does not say with which arguments its model is made") from error
    forbidden = [key for key in arguments if "pretrained" in key or key in ("checkpoint_path", "cache_dir", "scriptable")]
    if not is_model(name) or forbidden:
        raise ValueError(f"{path} asks for {forbidden[0] if forbidden else name!r}: refused")
    return name, arguments


def task_named(what: str, weights: Path | None = None) -> str:
    """What a model was trained for: 'classify', 'detect' or 'segment'. Files that do not say it are classifiers."""
    path = weights or Path(what)
    if not path.exists():
        return "classify"
    return str(metadata_of(weights_of(str(path))).get("task", {}).get("name", "classify"))


def metadata_of(path: Path) -> dict[str, Any]:
    """What a file of weights says of itself; nothing for files that are not ours."""
    if path.suffix != ".safetensors":
        return {}
    try:
        with safe_open(path, "pt") as file:
            return dict(json.loads((file.metadata() or {}).get("inline", "{}")))
    except Exception as error:  # its own kinds, and the system's
        raise ValueError(f"{path} cannot be read as safetensors, perhaps it is truncated: {error}") from error


def _classes(metadata: dict[str, Any], count: int) -> tuple[str, ...]:
    """Names from the file; ImageNet's for a thousand; numbers otherwise."""
    if "classes" in metadata:
        return tuple(map(str, metadata["classes"]))
    if count == 1000:
        info = ImageNetInfo()
        return tuple(info.index_to_description(index) for index in range(count))
    return tuple(map(str, range(count)))


def _data(metadata: dict[str, Any], model: nn.Module) -> DataPart:
    """How pictures are shown: as in the run, or as the model's timm configuration says."""
    if "data" in metadata:
        return build(DataPart, metadata["data"], "data.", "the weights")
    config = resolve_model_data_config(model)
    channels, *size = config["input_size"]
    return replace(
        DataPart(),
        size=(size[0], size[1]),
        channels=channels,
        view="squash" if config["crop_mode"] == "squash" else "center",
        crop=config["crop_pct"],
        interpolation=config["interpolation"],
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
    )


@torch.no_grad()
def top_classes(trained: Trained, pixels: torch.Tensor, count: int = 5) -> list[list[tuple[str, float]]]:
    """(name, probability) of the likeliest classes of each picture in (B, C, H, W)."""
    return likeliest(trained, trained.model(pixels), count)


def likeliest(trained: Trained, logits: torch.Tensor, count: int = 5) -> list[list[tuple[str, float]]]:
    """The same from what the model gave out, (B, classes)."""
    shares, places = logits.float().softmax(1).topk(min(count, len(trained.classes)))
    return [
        [(trained.classes[place], share) for place, share in zip(row, values, strict=True)]
        for row, values in zip(places.tolist(), shares.tolist(), strict=True)
    ]
