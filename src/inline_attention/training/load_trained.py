"""Trained classifiers: loaded from a run's folder, a file of weights, or a model's name with weights."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from timm.data import ImageNetInfo, resolve_model_data_config
from timm.models import is_model, is_model_pretrained, list_models, split_model_name_tag
from torch import nn

from ..data.config import DataConfig
from ..lite.decode import first_line
from ..models.finite import check_outputs
from ..models.load_official import read_checkpoint, select_weights
from ..models.packaged_weights import packaged_path, tags_of
from ..models.published_models import REPORTED, SOURCE, identify
from ..models.published_weights import by_tag, read_published
from .config import TaskConfig, check_seed, nearest
from .model_factory import load_weights, make_model, own_weights, published_path, weights_path
from .weights_metadata import check_metadata, classes_of, data_of, make_for_file


@dataclass(frozen=True)
class Trained:
    """A model, the names of its classes, and how images become its input."""

    model: nn.Module
    name: str
    classes: tuple[str, ...]
    data: DataConfig
    loaded: str
    """The loader's line about the weights."""
    trained: bool = True
    """False for random weights."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `make_model` that make it."""
    chosen_by: str | None = None
    """The fingerprint of the images by which a run chose these weights, if their file records it."""
    reported: Mapping[str, Any] | None = None
    """What the authors report of these very weights: top1, in percent, and the source. Not measured here."""
    task: TaskConfig | None = None
    """Of a segmenter that is exported; None for a classifier."""


def load_trained(what: str, weights: Path | None = None, *, ema: bool = False, pretrained: bool = False) -> Trained:
    """A trained classifier.

    Args:
        what: the folder of a run, a file of weights (ours, or the authors'), or a model's name. A name with a tag, such as
            inline_swin_nano.digits, has the published weights of this tag.
        weights: for a model's name: a file, a run's folder, or a folder of published files.
        ema: take the moving average out of a file that holds both.
        pretrained: for a model's name: its published weights, which are downloaded unless they are here.
    """
    if Path(what).exists():
        if pretrained or weights is not None:
            given = "pretrained" if pretrained else f"weights {weights}"
            raise ValueError(f"{given} is for a model that is named, and {what} has its own: leave out one of the two")
        return _from_file(weights_path(what), None, ema=ema)
    if not is_model(what):
        raise ValueError(f"{what} is neither a run's folder, nor a file, nor a model{nearest(what, list_models())}")
    if ema and (pretrained or weights is None):
        raise ValueError(f"ema: {what} has no file to take an average out of: give weights, a file that holds both")
    if weights is not None and not pretrained:
        if not weights.exists():
            raise ValueError(f"there is no file {weights}")
        return _from_file(weights_path(weights, what), what, ema=ema)
    if pretrained or split_model_name_tag(what)[1]:
        return make_named(what, pretrained=True, folder=weights)
    others = "--pretrained for its published ones" if is_model_pretrained(what) else " or ".join(tags_of(what))
    raise ValueError(f"{what} needs weights: --weights FILE{f', or {others}' if others else ' (none are published for it)'}")


def make_named(name: str, *, pretrained: bool = False, seed: int = 0, folder: Path | None = None) -> Trained:
    """A model by its name, with random weights or with published ones. A name with a tag has the weights of this tag.

    Untrained models of this package are made for 224 pixels a side; others keep their own size, and take any other where timm
    allows.

    Args:
        name: one that timm knows.
        pretrained: load published weights; those of this package's models are the authors'.
        seed: of random weights.
        folder: of published files, which is looked at first.
    """
    if not is_model(name):
        raise ValueError(f"{name} is neither a run's folder, nor a file, nor a model{nearest(name, list_models())}")
    check_seed(seed)
    pretrained = pretrained or bool(split_model_name_tag(name)[1])
    if pretrained and not is_model_pretrained(name):
        raise ValueError(f"{name} has no published weights{by_tag(name)}")
    if folder is not None and (packaged_path(name) or not name.startswith("inline_")):
        raise ValueError(
            f"pretrained and weights {folder}: {name} has no published files to look for: leave out one of the two"
        )
    torch.manual_seed(seed)
    if name.startswith("inline_"):
        return _make_ours(name, f"untrained, seed {seed}", folder, pretrained=pretrained)
    arguments = _any_size(name)
    model = make_model(name, {**arguments, "pretrained": pretrained})
    loaded = "published weights" if pretrained else f"untrained, seed {seed}"
    classes = _classes({}, int(getattr(model, "num_classes", 0)), Path(name))
    data = _data({}, model, Path(name))
    return Trained(model.eval(), name, classes, data, loaded, trained=pretrained, arguments=arguments)


def _any_size(name: str) -> dict[str, Any]:
    """Arguments with which a model of timm's takes images of any size, as far as it can."""
    for arguments in ({"dynamic_img_size": True, "dynamic_img_pad": True}, {"dynamic_img_size": True}):
        with suppress(ValueError), torch.device("meta"):
            make_model(name, arguments)
            return arguments
    return {}


def _make_ours(name: str, loaded: str, folder: Path | None, *, pretrained: bool) -> Trained:
    """A model of this package: with published weights for their own size, untrained for 224 pixels a side."""
    if path := packaged_path(name):
        return replace(_from_file(path, name, ema=False), name=name)
    arguments = {} if pretrained else {"img_size": 224}
    model = make_model(name, arguments)
    if pretrained:
        path = published_path(name, folder)
        loaded = f"{path}: {load_weights(model, path, state=read_published(path, name))}"
    data, classes = _data({}, model, Path(name)), _classes({}, 1000, Path(name))
    found = Trained(model.eval(), name, classes, data, loaded, trained=pretrained, arguments=arguments)
    top1 = REPORTED[split_model_name_tag(name)[0]].top1 if pretrained else None
    return found if top1 is None else replace(found, reported={"top1": top1, "source": SOURCE})


def _from_file(path: Path, name: str | None, *, ema: bool) -> Trained:
    metadata = metadata_of(path)
    if "task" in metadata:
        name = metadata["task"]["name"]
        made_for = {"bags": "for bags of tiles", "slides": "for slides"}.get(name, f"to {name}")
        raise ValueError(f"{path} is a model {made_for}: this works with models that classify")
    state = select_weights(read_checkpoint(path), ema=ema, source=str(path))
    if "model" in metadata and (name is None or split_model_name_tag(name)[0] == metadata["model"]):
        name, arguments = spec_of(metadata, path)
    elif name is None:
        fitting = identify(state)
        if len(fitting) != 1:
            names = ", ".join(name for name, _ in fitting) or "no model of the package"
            raise ValueError(f"{path} fits {names}: give the name of the model and this file as its weights")
        name, arguments = fitting[0]
    else:
        classes = [value.shape[0] for key, value in state.items() if key in ("head.weight", "head.fc.weight", "fc.weight")]
        fitting = [found for found in identify(state) if found[0] == name]
        arguments = fitting[0][1] if fitting else ({"num_classes": classes[0]} if classes else {})
    model = make_for_file(path, make_model, name, arguments)
    loaded = load_weights(model, path, state=state)
    count = int(getattr(model, "num_classes", 0))
    if not count:
        raise ValueError(f"{path} has no classifier: it cannot predict classes")
    known, data, chosen_by = _classes(metadata, count, path), _data(metadata, model, path), metadata.get("fingerprint")
    return Trained(model.eval(), name, known, data, loaded, arguments=arguments, chosen_by=chosen_by)


def spec_of(metadata: Mapping[str, Any], path: Path) -> tuple[str, dict[str, Any]]:
    """Name and arguments of the model in a file's metadata. Unregistered names, and arguments that open files, are refused."""
    try:
        name, arguments = str(metadata["model"]), dict(metadata["arguments"])
    except (KeyError, ValueError, TypeError) as error:
        raise ValueError(f"{path} does not say with which arguments its model is made") from error
    forbidden = [key for key in arguments if "pretrained" in key or key in ("checkpoint_path", "cache_dir", "scriptable")]
    if not is_model(name) or forbidden:
        raise ValueError(f"{path} asks for {forbidden[0] if forbidden else name!r}: refused")
    return name, arguments


def task_named(what: str, weights: Path | None = None) -> str:
    """What a model was trained for: 'classify', 'detect', 'segment' or 'bags'. Files without this metadata are classifiers."""
    path = weights_path(what) if Path(what).exists() else weights
    file = own_weights(path) if path is not None and path.exists() else None
    return "classify" if file is None else str(metadata_of(file).get("task", {}).get("name", "classify"))


def metadata_of(path: Path) -> Mapping[str, Any]:
    """The metadata of a file of weights; empty for files that are not ours. A file is read again only if it has changed."""
    if path.suffix != ".safetensors":
        return {}
    try:
        status = path.stat()
    except OSError as error:
        raise ValueError(f"{path} cannot be read as safetensors, perhaps it is truncated: {error}") from error
    return _read_metadata(path, status.st_ino, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=8)
def _read_metadata(path: Path, *_version: int) -> Mapping[str, Any]:
    try:
        with safe_open(path, "pt") as file:
            table = json.loads((file.metadata() or {}).get("inline", "{}"))
    except Exception as error:  # safetensors' own kinds, and the system's
        raise ValueError(f"{path} cannot be read as safetensors, perhaps it is truncated: {first_line(error)}") from error
    return check_metadata(table, path)


def _classes(metadata: Mapping[str, Any], count: int, path: Path) -> tuple[str, ...]:
    """Names from the file; ImageNet's for a thousand; numbers otherwise."""
    if "classes" in metadata:
        return classes_of(metadata, path, count)
    if count == 1000:
        info = ImageNetInfo()
        return tuple(info.index_to_description(index) for index in range(count))
    return tuple(map(str, range(count)))


def _data(metadata: Mapping[str, Any], model: nn.Module, path: Path) -> DataConfig:
    """How images become the model's input: as in the run, or by the model's timm configuration."""
    return data_of(metadata, path) if "data" in metadata else input_of(model)


def input_of(model: nn.Module) -> DataConfig:
    """How images become the input of a model of timm's, by its own configuration."""
    config = resolve_model_data_config(model)
    channels, *size = config["input_size"]
    return replace(
        DataConfig(),
        size=(size[0], size[1]),
        channels=channels,
        crop_mode="squash" if config["crop_mode"] == "squash" else "center",
        crop=config["crop_pct"],
        interpolation=config["interpolation"],
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
    )


@torch.no_grad()
def top_classes(
    trained: Trained, pixels: torch.Tensor, count: int = 5, names: Sequence[str] = ()
) -> list[list[tuple[str, float]]]:
    """(name, probability) of the most likely classes of each image in (B, C, H, W); `names` are the images', for messages."""
    return top_of_logits(trained, trained.model(pixels), count, names)


def top_of_logits(
    trained: Trained, logits: torch.Tensor, count: int = 5, names: Sequence[str] = ()
) -> list[list[tuple[str, float]]]:
    """The same from the model's output, (B, classes). Outputs that are not finite raise a FloatingPointError."""
    check_outputs(logits, names, trained.name)
    probabilities, indices = logits.float().softmax(1).topk(min(count, len(trained.classes)))
    return [
        [(trained.classes[index], probability) for index, probability in zip(row, values, strict=True)]
        for row, values in zip(indices.tolist(), probabilities.tolist(), strict=True)
    ]
