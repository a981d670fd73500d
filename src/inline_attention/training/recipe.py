"""Recipes as TOML: found by name, read, checked and written."""

import sys
from collections.abc import Container, Mapping
from dataclasses import fields, is_dataclass
from importlib.resources import files
from json import dumps
from math import isfinite
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from ..data.config import data_faults
from ..lite.decode import first_line
from ..lite.limits import excess
from .config import RENAMED_FIELDS, RESUMABLE_FIELDS, SEED_LIMIT, ModelConfig, Recipe, TaskConfig, nearest

Section = TypeVar("Section")

RENAMED_RECIPES = {f"{size}_pictures": f"{size}_images" for size in ("small", "medium", "large")}
"""Old name: new name."""


def shipped() -> dict[str, str]:
    """The recipes in the package, by name: their text."""
    folder = files("inline_attention") / "recipes"
    found = [entry for entry in folder.iterdir() if entry.name.endswith(".toml")]
    return {entry.name.removesuffix(".toml"): entry.read_text() for entry in sorted(found, key=lambda entry: entry.name)}


def load(name: str) -> Recipe:
    """The recipe of that name, or of a TOML file.

    Example:
        >>> load("digits").model.name
        'inline_swin_nano'
    """
    path = Path(name)
    if path.suffix == ".toml":
        if not path.is_file():
            raise ValueError(f"there is no recipe {path}")
        return parse(read_toml(path), str(path))
    known = shipped()
    if name in RENAMED_RECIPES:
        raise ValueError(f"the recipe {name} is now called {RENAMED_RECIPES[name]}")
    if name not in known:
        raise ValueError(f"unknown recipe {name!r}{nearest(name, known)}; there are: {', '.join(known)}")
    return parse(known[name], name)


def read_toml(path: Path) -> str:
    """The text of a TOML file, which is UTF-8."""
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not TOML: it is no UTF-8 text, {error.reason} at byte {error.start}") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or first_line(error)}") from error


def parse(text: str, source: str, *, written_by_run: bool = False) -> Recipe:
    """A recipe from TOML. Unknown keys and values of another type are errors.

    Args:
        text: the TOML.
        source: what to call it in messages.
        written_by_run: the text is from a run's folder, so field names of earlier versions are valid too.
    """
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"{source} is not TOML: {first_line(error)}") from error
    if written_by_run:
        table = {name: upgrade(part, f"{name}.") for name, part in table.items()}
    return build(Recipe, table, "", source)


def upgrade(table: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """A section of a recipe that an earlier version wrote, by the names that its fields have now."""
    return {RENAMED_FIELDS.get(f"{prefix}{key}", f"{prefix}{key}").removeprefix(prefix): table[key] for key in table}


def build(section: type[Section], table: Mapping[str, Any], prefix: str, source: str) -> Section:
    """A section of a recipe from a table; `prefix` and `source` are for messages."""
    hints = get_type_hints(section)
    for key in table:
        if f"{prefix}{key}" in RENAMED_FIELDS:
            raise ValueError(f"{source}: {prefix}{key} is now called {RENAMED_FIELDS[f'{prefix}{key}']}")
        if key not in hints:
            near = nearest(key, hints, prefix) or f"; there are: {', '.join(hints)}"
            raise ValueError(f"{source}: unknown key {prefix}{key}{near}")
    values = {}
    for key, value in table.items():
        kind, name = hints[key], f"{prefix}{key}"
        if is_dataclass(kind) and isinstance(kind, type):
            if not isinstance(value, dict):
                raise ValueError(f"{source}: {name} must be a table, got {value!r}")
            values[key] = build(kind, value, f"{name}.", source)
        else:
            values[key] = typed_value(kind, value, f"{source}: {name}")
    return section(**values)


def typed_value(kind: Any, value: Any, name: str) -> Any:
    """The value in the field's type: an int is accepted for a float, a list for a tuple."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is UnionType:
        if value is None:
            return None
        return typed_value(next(k for k in inner if k is not NoneType), value, name)
    if origin is Literal:
        if value not in inner:
            raise ValueError(f"{name} must be one of {', '.join(map(str, inner))}, got {value!r}")
        return value
    if origin is tuple:
        length = None if inner[-1] is Ellipsis else len(inner)
        if not isinstance(value, list | tuple) or length not in (None, len(value)):
            raise ValueError(f"{name} must be a list{f' of {length}' if length else ''}, got {value!r}")
        return tuple(typed_value(inner[0], item, name) for item in value)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ValueError(f"{name} must be of type {kind.__name__}, got {value!r}")
    return value


def flat(recipe: Recipe) -> dict[str, Any]:
    """All fields by their dotted names."""
    return {
        f"{part.name}.{entry.name}": getattr(getattr(recipe, part.name), entry.name)
        for part in fields(recipe)
        for entry in fields(getattr(recipe, part.name))
    }


def to_toml(recipe: Recipe, without: Container[str] = ()) -> str:
    """The recipe as TOML, without unset fields and those of `without`; `parse` reads it back."""
    lines: list[str] = []
    for part in fields(recipe):
        lines.append(f"[{part.name}]")
        for entry in fields(getattr(recipe, part.name)):
            value = getattr(getattr(recipe, part.name), entry.name)
            if value is not None and f"{part.name}.{entry.name}" not in without:
                lines.append(f"{entry.name} = {_literal(value)}")
        lines.append("")
    return "\n".join(lines)


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name}={_literal(inner)}' for name, inner in value.items())}}}"
    return f"[{', '.join(map(_literal, value))}]" if isinstance(value, tuple) else repr(value)


_WEIGHTS = "model.pretrained, or model.weights FILE, is what a run starts from"
REFUSED_ARGUMENTS = {
    **dict.fromkeys(("pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir"), _WEIGHTS),
    **dict.fromkeys(("features_only", "out_indices", "scriptable", "exportable", "no_jit"), "the task decides it"),
    "swap": "model.swap is for it",
}
"""Arguments of `timm.create_model` that a recipe has another place for, or none."""


def model_arguments(model: ModelConfig) -> dict[str, Any]:
    """Arguments of `timm.create_model` that the recipe gives, besides name, classes and size."""
    given = _inline_table(model.args, "model.args", "'patch_size=4, depths=[1, 1]'")
    chosen = {"mixer": model.mixer, "kernel": model.kernel, "local": model.local}
    for key in given:
        if key in REFUSED_ARGUMENTS:
            raise ValueError(f"model.args: {key} is {given[key]!r}, and {REFUSED_ARGUMENTS[key]}: leave it out")
        if chosen.get(key) not in (None, given[key]):
            raise ValueError(f"model.args: {key} is {given[key]!r}, and model.{key} {chosen[key]!r}: leave out one of the two")
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    return {**given, **{key: value for key, value in chosen.items() if value is not None}}


def swap_arguments(model: ModelConfig) -> dict[str, Any]:
    """Arguments of `swap` that the recipe gives."""
    return _inline_table(model.swap, "model.swap", "'mixer=\"inline\"'")


def _inline_table(text: str, name: str, like: str) -> dict[str, Any]:
    try:
        loaded = tomllib.loads(f"args = {{ {text} }}")
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"{name} must be like {like}, got {text[:200]!r}: {first_line(error)}") from error
    if set(loaded) != {"args"}:
        raise ValueError(f"{name} must be like {like}, got {text[:200]!r}")
    table: dict[str, Any] = loaded["args"]
    return table


def to_inline(table: Mapping[str, Any]) -> str:
    """Arguments as 'model.args' and 'model.swap' have them."""
    return ", ".join(f"{name}={_literal(tuple(v) if isinstance(v, list) else v)}" for name, v in table.items() if v is not None)


def changes(old: Recipe, new: Recipe) -> list[str]:
    """Fields that differ and change what is computed, as 'name: old -> new'."""
    before, after = flat(old), flat(new)
    return [f"{k}: {before[k]} -> {after[k]}" for k in before if before[k] != after[k] and k not in RESUMABLE_FIELDS]


POSITIVE = (
    "optim.batch", "optim.device_batch", "optim.rate_batch", "optim.lr", "optim.layer_decay", "schedule.epochs",
    "ema.rate_batch", "run.log", "run.evaluate", "data.crop", "data.val_share", "schedule.power", "task.width",
    "task.longest", "task.stride", "task.spread",
)  # fmt: skip
NOT_NEGATIVE = (
    "optim.warmup_lr", "optim.min_lr", "optim.weight_decay", "optim.clip", "optim.eps", "run.save", "run.seed",
    "schedule.warmup", "schedule.cooldown", "schedule.steps", "schedule.warmup_steps", "data.limit", "task.auxiliary",
    "augment.mixup", "augment.cutmix", "augment.color_jitter", "task.features", "task.tile_step",
)  # fmt: skip
SHARES = (
    "model.drop_path", "augment.smoothing", "ema.decay", "augment.hflip", "augment.vflip", "augment.erase",
    "augment.mix_prob", "augment.mix_switch", "augment.turn", "augment.drop_tiles", "data.crop", "task.stride",
)  # fmt: skip


def check(recipe: Recipe) -> None:
    """Raise a ValueError, of one line, for the first value that is out of range or does not suit the task."""
    values = flat(recipe)
    inf = float("inf")
    faults = [f"{name} must be positive, got {values[name]}" for name in POSITIVE if not 0 < values[name] < inf]
    faults += [f"{name} must not be negative, got {values[name]}" for name in NOT_NEGATIVE if not 0 <= values[name] < inf]
    faults += [f"{name} must be within 0..1, got {values[name]}" for name in SHARES if not 0 <= values[name] <= 1]
    for name in ("augment.scale", "augment.ratio", "augment.resize"):
        low, high = values[name]
        if not 0 < low <= high < inf or (name == "augment.scale" and high > 1):
            faults.append(
                f"{name} must be two rising positive numbers{', 1 at most' * (name == 'augment.scale')}, got {low} {high}"
            )
    if recipe.data.val_share >= 1 or recipe.ema.decay >= 1:
        faults.append(f"data.val_share and ema.decay must be below 1, got {recipe.data.val_share} and {recipe.ema.decay}")
    faults += data_faults(recipe.data)
    if recipe.data.workers is not None and recipe.data.workers < 0:
        faults.append(f"data.workers must not be negative, got {recipe.data.workers}")
    if recipe.schedule.warmup > recipe.schedule.epochs:
        faults.append(
            f"schedule.warmup must be within the {recipe.schedule.epochs} epochs, got {recipe.schedule.warmup}: take fewer"
        )
    if recipe.run.fsdp and recipe.ema.decay:
        faults.append("ema.decay and run.fsdp do not go together: average with DDP, or set ema.decay 0")
    faults += _check_schedule(recipe) + _check_task(recipe) + _check_values(values)
    if faults:
        raise ValueError(faults[0])


MOST = {
    "schedule.epochs": 10**6, "schedule.warmup": 10**6, "schedule.cooldown": 10**6, "data.workers": 1024,
    "optim.batch": 10**7, "optim.device_batch": 10**7, "task.width": 2**16, "task.features": 2**16,
    "run.seed": SEED_LIMIT - 1,
}  # fmt: skip
"""The largest values of whole numbers, beyond which there is a mistake; 10^9 for all others."""
MAY_BE_EMPTY = ("model.args", "model.swap", "augment.auto", "data.images", "data.masks", "data.labels")


def _check_values(values: Mapping[str, Any]) -> list[str]:
    """What holds for all fields: numbers are finite and not absurdly large, texts are not empty."""
    faults = []
    for name, value in values.items():
        parts, most = value if isinstance(value, tuple) else (value,), MOST.get(name, 10**9)
        for part in parts:
            if isinstance(part, int) and part > most:
                faults.append(f"{name} must be {most:,} at most, got {part}")
            elif isinstance(part, float) and not isfinite(part):
                faults.append(f"{name} must be finite, got {value}")
            elif isinstance(part, str) and not part.strip() and name not in MAY_BE_EMPTY:
                faults.append(f"{name} must not be empty, got {part!r}: leave it out, or name what is meant")
    return faults


def _check_schedule(recipe: Recipe) -> list[str]:
    schedule, faults = recipe.schedule, []
    if (schedule.shape == "drops") != bool(schedule.drops):
        faults.append(f"schedule.drops are the epochs of schedule.shape drops, got {schedule.drops} with {schedule.shape}")
    if list(schedule.drops) != sorted(set(schedule.drops)) or any(drop < 1 for drop in schedule.drops):
        faults.append(f"schedule.drops must be rising epochs, got {schedule.drops}")
    if schedule.steps and schedule.cooldown:
        faults.append(f"schedule.cooldown is in epochs: leave it out beside schedule.steps, got {schedule.cooldown}")
    return faults


HEADS = {
    "classify": (),
    "detect": ("mask_rcnn", "cascade_mask_rcnn", "faster_rcnn", "cascade_rcnn"),
    "segment": ("semantic_fpn", "upernet"),
    "bags": (),
    "slides": (),
}
"""Heads of each task; the first is the default."""
BOX_HEADS = {"mask_rcnn": "faster_rcnn", "cascade_mask_rcnn": "cascade_rcnn"}
"""A detector with masks, and the same without: boxes alone."""
_DETECTING = ("task.sides", "task.anchors", "task.samples", "task.freeze_norm")
_SEGMENTING = ("task.auxiliary", "task.inference", "task.stride", "task.side", "augment.resize")
_OF_IMAGES = (
    "data.root", "data.train", "data.crop_mode", "data.crop", "augment.scale", "augment.ratio", "augment.auto", "augment.erase",
    "augment.mixup", "augment.cutmix", "augment.mix_prob", "augment.mix_switch",
)  # fmt: skip
_CLASSIFYING = (*_OF_IMAGES, "augment.vflip", "augment.smoothing")
_HEAD = ("task.head", "task.width", "task.longest", "data.limit")
_SLIDES = (
    "task.target", "task.features", "task.normalize", "task.tile_step", "task.off_grid", "task.center", "task.spread",
    "data.labels", "data.columns", "augment.turn", "augment.drop_tiles",
)  # fmt: skip
_IN_PARTS = (
    "data.level", "data.mpp", "data.select", "data.value_range", "data.valid", "run.tokens", "run.keep", "run.folder",
)  # fmt: skip
_OF_BAGS = ("task.features", "task.normalize", "task.tile_step", "task.off_grid", "augment.drop_tiles")
_LARGE_SEGMENTING = (
    "task.longest", "task.inference", "task.stride", "task.side", "augment.resize", "data.interpolation",
)  # fmt: skip
_MASKS = ("data.images", "data.masks", "data.ignore", "data.class_name")
UNUSED_BY_TASK = {
    "classify": ("task.large", *_DETECTING, *_SEGMENTING, *_HEAD, *_MASKS, *_SLIDES, *_IN_PARTS),
    "detect": ("task.large", *_SEGMENTING, *_CLASSIFYING, *_SLIDES, *_IN_PARTS, "data.size", "data.interpolation"),
    "segment": (*_DETECTING, *_CLASSIFYING, *_SLIDES, *_IN_PARTS, "data.class_name"),
    "bags": (
        "task.large",
        *_DETECTING,
        *_SEGMENTING,
        *_HEAD,
        *_MASKS,
        *_OF_IMAGES,
        *_IN_PARTS,
        "data.channels",
        "data.interpolation",
        "data.mean",
        "data.std",
        "augment.color_jitter",
    ),
    "segment_large": (
        *_DETECTING,
        *_LARGE_SEGMENTING,
        *_OF_IMAGES,
        *(field for field in _SLIDES if field != "augment.turn"),
        "augment.smoothing",
        "data.class_name",
    ),
    "slides": ("task.large", *_DETECTING, *_SEGMENTING, *_HEAD, *_MASKS, *_OF_IMAGES, *_OF_BAGS, "data.interpolation"),
}
"""Fields that a task does not use, by its name; "segment_large" is to segment whole images by rows."""


def unused_fields(task: TaskConfig) -> tuple[str, ...]:
    """Fields that this task does not use."""
    return UNUSED_BY_TASK["segment_large" if task.name == "segment" and task.large else task.name]


SMALLEST = 8
"""Pixels of the shortest side that a model takes."""


def _check_task(recipe: Recipe) -> list[str]:
    task, faults = recipe.task, []
    if task.head != "auto" and task.head not in HEADS[task.name]:
        there = ", ".join(HEADS[task.name]) or "none"
        faults.append(f"task {task.name} has no head {task.head}; there are: {there}")
    usual, values = flat(Recipe()), flat(recipe)
    for name in unused_fields(task):
        if values[name] != usual[name]:
            faults.append(f"{name} has no meaning for --task {task.name}, got {values[name]!r}: leave it out")
    for name, side in (("longest", task.longest), ("side", task.side or 0)):
        if too_large := excess(side, side):
            faults.append(f"task.{name}: {too_large}")
    if task.side is not None and task.side < 0:
        faults.append(f"task.side must be positive, or 0 for images as they are, got {task.side}")
    if task.name == "detect" and (not task.sides or min(task.sides) < SMALLEST or max(task.sides) > task.longest):
        faults.append(f"task.sides must be from {SMALLEST} to task.longest, {task.longest}, got {task.sides}")
    if min(task.anchors) < 1 or task.samples < 4:
        faults.append(f"task.anchors must be positive and task.samples 4 or more, got {task.anchors} and {task.samples}")
    if task.name == "segment" and recipe.run.fsdp:
        # processes call a segmenter a different number of times, which sharded weights would wait for
        faults.append("run.fsdp does not go with task segment, whose processes call the model at different times: take DDP")
    return faults


def absolute_source(source: str) -> str:
    """A path that exists as an absolute one, since a run is used from other folders, too; names of sources as they are."""
    if not source.strip():
        raise ValueError(f"the images must not be empty, got {source!r}: give a folder, or the name of a source")
    path = Path(source).expanduser()
    return str(path.resolve()) if path.exists() else source


def absolute_file(path: str) -> str:
    """The path of a file as an absolute one, links not followed, so that messages name what was given; nothing for no file."""
    return str(Path(path).expanduser().absolute()) if path else ""
