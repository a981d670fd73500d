"""The model of a recipe: its name and arguments for timm, the model itself, weights of a file loaded into it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from timm.models import create_model, get_pretrained_cfg, is_model, is_model_pretrained, list_models, split_model_name_tag
from timm.utils import freeze
from torch import Tensor, nn

from ..data.loader import Purpose, reseed
from ..lite.decode import first_line
from ..models.backbone import Backbone
from ..models.finite import check_weights
from ..models.load_official import load_official, read_checkpoint, select_weights
from ..models.published_weights import by_tag, fetch_weights, in_folder, read_published
from ..models.swap import SwapReport, swap
from .config import ModelConfig, Recipe, nearest
from .recipe import model_arguments, swap_arguments

if TYPE_CHECKING:
    from .task import Task


OWNED_ARGUMENTS = {
    "num_classes": "the data", "in_chans": "data.channels", "drop_path_rate": "model.drop_path", "img_size": "data.size",
}  # fmt: skip
"""Arguments of models that follow from other fields of the recipe."""


def build_model(task: "Task", classes: Sequence[str], *, resume: bool = False) -> tuple[nn.Module, str | None]:
    """The model to be trained, and the loader's report on the weights it starts from; a resumed run loads them later."""
    recipe = task.recipe
    config = recipe.model
    reseed(recipe.run.seed, Purpose.WEIGHTS)
    name, arguments = task.model_spec(len(classes))
    path = None if resume else starting_weights(config)
    pretrained = is_pretrained(config)
    if pretrained and not resume and path is None:
        arguments = {**arguments, "pretrained": True}  # timm's own
    model = task.make_model(name, arguments, len(classes))
    backbone: Any = task.backbone(model)
    report = f"{name}: the weights that timm has for it" if "pretrained" in arguments else None
    if path is not None:
        report = f"{path}: {task.load_weights(model, path, read_published(path, name) if pretrained else None)}"
    if config.checkpointing:
        try:
            backbone.set_grad_checkpointing(True)
        except (AssertionError, AttributeError) as error:
            raise ValueError(f"model.checkpointing: {config.name} cannot recompute its activations") from error
    for name in recipe.optim.freeze:
        if name not in dict(backbone.named_modules()):
            raise ValueError(f"optim.freeze: {config.name} has no {name!r}{nearest(name, dict(backbone.named_modules()))}")
        freeze(backbone, name)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f"optim.freeze: {', '.join(recipe.optim.freeze)} leaves nothing to train")
    return model, report


def is_pretrained(config: ModelConfig) -> bool:
    """Whether training starts from published weights: if they are asked for, and by a name with a tag."""
    return config.pretrained or (config.weights is None and bool(split_model_name_tag(config.name)[1]))


def starting_weights(config: ModelConfig) -> Path | None:
    """The file that training starts from, downloaded if need be; None for random weights, and for those that timm loads."""
    if not is_pretrained(config):
        return None if config.weights is None else weights_path(config.weights, config.name)
    name = config.name
    if not is_model_pretrained(name):
        raise ValueError(
            f"model.pretrained: {name} has no published weights{by_tag(name)}: leave it out, or give model.weights FILE"
        )
    if not name.startswith("inline_"):
        if config.weights is not None:
            raise ValueError(f"model.pretrained and model.weights {config.weights}: leave out one of the two")
        return None
    return published_path(name, config.weights)


def published_path(name: str, folder: str | Path | None = None) -> Path:
    """The file of a model's published weights: in the folder, or where `fetch_weights` finds it."""
    if folder is not None and not Path(folder).is_dir():
        raise ValueError(f"published weights are looked for in a folder, got {folder}: leave out pretrained to load this file")
    found = None if folder is None else in_folder(name, folder)
    return found or fetch_weights(name)


def model_spec(recipe: Recipe, classes: int) -> tuple[str, dict[str, Any]]:
    """Name and arguments with which `make_model` makes the recipe's model."""
    config, data = recipe.model, recipe.data
    if not is_model(config.name):
        close = nearest(config.name, list_models())
        raise ValueError(f"unknown model {config.name!r}{close}; `inline list` shows this package's, timm.list_models() all")
    given = model_arguments(config)
    own: dict[str, Any] = {"num_classes": classes, "in_chans": data.channels}
    if config.drop_path:
        own["drop_path_rate"] = config.drop_path
    pretrained = get_pretrained_cfg(config.name, allow_unregistered=True)
    sized = config.name.startswith("inline_") or (pretrained and pretrained.fixed_input_size)
    if sized and (recipe.task.name != "detect" or "img_size" not in given):  # which takes images of all sizes
        own["img_size"] = data.size
    for name, field in OWNED_ARGUMENTS.items():
        value = given.get(name)
        if name in given and name in own and own[name] not in (value, (value, value)):
            raise ValueError(f"model.args: {name} is {value!r}, and {field} gives {own[name]!r}: leave it out of model.args")
    if config.swap:
        own["swap"] = [swap_arguments(config)]
    return config.name, {**given, **own}


def make_model(name: str, arguments: Mapping[str, Any]) -> nn.Module:
    """The model, or one line about what is wrong with the arguments.

    Args:
        name: one that timm knows.
        arguments: of `timm.create_model`; under 'swap' a list of options of `swap_as_stored`, which replace the model's
            attention.
    """
    given = dict(arguments)
    swaps = given.pop("swap", [])
    try:
        model: nn.Module = create_model(name, **given)
        for options in swaps:
            swap_as_stored(model, options)
    except (ValueError, MemoryError):
        raise
    except Exception as error:  # timm's models check few of their arguments
        raise ValueError(f"{name} cannot be made: {first_line(error)}") from error
    if given.get("pretrained") or given.get("checkpoint_path"):  # weights that timm loaded
        check_weights(model.state_dict(), str(given.get("checkpoint_path") or name))
    return model


def swap_as_stored(model: nn.Module, options: Mapping[str, Any]) -> SwapReport:
    """`swap` with options that a file can hold: `example` is the shape (C, H, W) of a random image that the model is run on."""
    shape = options.get("example")
    if shape is None:
        return swap(model, **options)
    if not isinstance(shape, list | tuple) or len(shape) != 3 or any(type(side) is not int or side < 1 for side in shape):
        raise ValueError(f"the example of stored swap options is the shape of an image, [3, 224, 224], got {shape!r}")
    like = next(model.parameters())
    images = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0)).to(like)
    return swap(model, **{**options, "example": images})


def load_weights(
    model: nn.Module, path: Path, *, state: Mapping[str, Tensor] | None = None, ema: bool = False, headless: bool = False
) -> str:
    """Load a file's weights into a model and return one line about it. Models of this package are adapted to their sizes.

    Args:
        model: any model.
        path: the file.
        state: the weights of the file, if it was read already.
        ema: take the moving average out of a file that holds both.
        headless: the model may lack the classifier, and what else of the file comes after its maps.
    """
    state = select_weights(read_checkpoint(path), ema=ema, source=str(path)) if state is None else dict(state)
    if isinstance(model, Backbone):
        return str(load_official(model, state, source=str(path)))
    own = model.state_dict()
    unused = [name for name in state if name not in own] if headless else []
    try:
        model.load_state_dict({name: value for name, value in state.items() if name not in unused})
    except RuntimeError as error:
        raise ValueError(f"{path} does not fit {type(model).__name__}: {' '.join(str(error).split())[:200]}") from error
    listed = [name for name in unused if not name.endswith(".num_batches_tracked")]  # which frozen norms do not have
    return f"{len(state) - len(unused)} tensors matched" + (f", left out: {', '.join(listed)}" if listed else "")


def weights_path(what: str | Path, name: str = "") -> Path:
    """A file of weights: the one that is named, or of a folder a run's best, a hub folder's, or the model's published file."""
    path = Path(what)
    found = own_weights(path) or (in_folder(name, path) if name else None)
    if found is None:
        other = f" and no file of {name}, such as {name}.pth" if name else ""
        raise ValueError(
            f"{path} holds no best.safetensors{other}: no run, or one that was stopped before its first evaluation"
        )
    return found


def own_weights(path: Path) -> Path | None:
    """The file itself, or that of a run's folder or of a hub folder; None for other folders."""
    files = (path / "best.safetensors", path / "model.safetensors") if path.is_dir() else (path,)
    return next((file for file in files if file == path or file.is_file()), None)


def block_classes(model: nn.Module) -> list[str]:
    """Names of the classes that FSDP shards one by one: the blocks."""
    return sorted({type(module).__name__ for module in model.modules() if type(module).__name__.endswith("Block")})
