"""A recipe: everything that decides what a run computes. TOML files hold it, options of the command change it."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from importlib.resources import files
from json import dumps
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Precision = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True)
class TaskPart:
    """What is learned: a class for a picture, objects with boxes and masks, or a class for every pixel."""

    name: Literal["classify", "detect", "segment"] = "classify"
    """What the model is to say of a picture."""
    head: Literal["auto", "mask_rcnn", "cascade_mask_rcnn", "semantic_fpn", "upernet"] = "auto"
    """On the backbone's maps; auto: mask_rcnn to detect, semantic_fpn to segment."""
    width: int = 256
    """Channels of the head's maps; its other layers follow."""
    auxiliary: float = 0.4
    """Weight of the loss of UperNet's second, smaller head."""
    sides: tuple[int, ...] = (800,)
    """Detection: shorter sides that pictures are brought to, one drawn for each picture; the last one in evaluation."""
    longest: int = 1333
    """The most that a longer side may have where pictures are brought to a shorter one."""
    anchors: tuple[int, int, int, int, int] = (32, 64, 128, 256, 512)
    """Detection: sides of the boxes that proposals start from, one for each level of the pyramid."""
    samples: int = 512
    """Detection: boxes of a picture that the head learns from, a quarter of them on objects; fewer are faster."""
    freeze_norm: bool | None = None
    """Detection: leave batch norms of the backbone as they are; unset: where it starts from weights."""
    inference: Literal["whole", "slide"] = "whole"
    """Segmentation: look at whole pictures, or at windows of data.size and take the mean where they overlap."""
    stride: float = 0.6667
    """Of these windows, as a share of their sides."""
    side: int | None = None
    """Segmentation: shorter side that pictures are brought to in evaluation, 0 for their own; unset: that of data.size."""


@dataclass(frozen=True)
class ModelPart:
    """Which model."""

    name: str = "inline_deit_nano"
    """Any name that timm knows; `inline list` shows this package's."""
    mixer: str | None = None
    """Attention of an inline_* model: inline, softmax, linear, ..."""
    kernel: str | None = None
    """Feature map of linear and inline attention: identity, relu, ..."""
    local: bool | None = None
    """Carry the local residual, or not; unset: as the mixer has it."""
    drop_path: float = 0.0
    """Share of residual branches dropped in the last block, growing linearly from the first."""
    args: str = ""
    """Further arguments of timm.create_model, as in TOML: 'patch_size=4, depths=[1,1,2,1]'."""
    swap: str = ""
    """Give the model another attention, such as a timm ViT InLine: arguments of `swap` as in TOML, 'mixer="inline"'."""
    weights: str | None = None
    """Start from these: a file (ours or the authors') or a run's folder. Other sizes and classes are fitted."""
    checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""
    compile: bool = False
    """Compile the model with torch.compile."""


@dataclass(frozen=True)
class DataPart:
    """Which pictures, and how they are shown."""

    source: str = "digits"
    """A folder or tar of class folders, wds/..., hfds/..., torch/..., digits or fashion-mnist; others to detect and segment."""
    root: str | None = None
    """Folder of a wds/, hfds/ or torch/ source."""
    train: str = "train"
    """Name of the training split of a source that has named splits."""
    val: str = "validation"
    """Name of the validation split of a source that has named splits; to detect and segment also 'train'."""
    val_share: float = 0.2
    """Share (of each class) that is held out where a source has no validation split."""
    limit: int = 0
    """To detect and segment: only the first so many pictures of each split, to try things; 0: all."""
    size: tuple[int, int] = (32, 32)
    """Height and width that pictures are brought to; to segment, of the crop, whose shorter side pictures are scaled to."""
    channels: Literal[1, 3] = 3
    """3 for colour, 1 for grey."""
    view: Literal["squash", "center"] = "squash"
    """Evaluation: 'squash' resizes both sides as the paper does, 'center' the shorter one as timm usually does."""
    crop: float = 0.875
    """Evaluation: the share of the resized side that the centre crop keeps."""
    interpolation: Literal["bicubic", "bilinear", "nearest"] = "bicubic"
    """How pictures are resized."""
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    """Subtracted from red, green and blue in 0..1; a grey picture takes the mean of the three."""
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    """Divides them after that."""
    workers: int | None = None
    """Processes that read pictures, for each training process; unset: by the cores there are."""
    skip_bad: bool = False
    """Go on without pictures that cannot be read, and list them at the end, instead of stopping."""


@dataclass(frozen=True)
class AugmentPart:
    """How training pictures are varied."""

    scale: tuple[float, float] = (0.08, 1.0)
    """Share of the picture that a random crop covers."""
    ratio: tuple[float, float] = (0.75, 1.3333)
    """Width over height of a random crop."""
    resize: tuple[float, float] = (0.5, 2.0)
    """Segmentation: factors between which pictures are scaled before they are cropped, in place of `scale` and `ratio`."""
    hflip: float = 0.5
    """Probability of mirroring."""
    vflip: float = 0.0
    """Probability of turning upside down."""
    color_jitter: float = 0.0
    """Strength of random brightness, contrast and saturation (and hue, to detect and segment); RandAugment takes its place."""
    auto: str = ""
    """Policy in timm's words, such as rand-m9-mstd0.5-inc1."""
    erase: float = 0.0
    """Probability of erasing a rectangle with noise."""
    mixup: float = 0.0
    """Alpha of mixup; 0: none."""
    cutmix: float = 0.0
    """Alpha of cutmix; 0: none."""
    mix_prob: float = 1.0
    """Probability of mixing a batch at all."""
    mix_switch: float = 0.5
    """Probability of cutmix where both are on."""
    smoothing: float = 0.0
    """Label smoothing."""


@dataclass(frozen=True)
class OptimPart:
    """How weights are changed. Rates are per `rate_batch` pictures and scale with the global batch."""

    name: str = "adamw"
    """Any optimizer that timm knows."""
    batch: int = 128
    """Pictures per step over all processes together."""
    device_batch: int = 128
    """At most so many of them at once in a process; more steps' gradients are added up to fill the batch."""
    rate_batch: int = 512
    """The batch that the three rates are meant for."""
    lr: float = 5e-4
    """Learning rate at the top of the schedule."""
    warmup_lr: float = 5e-7
    """Learning rate of the first step."""
    min_lr: float = 5e-6
    """Learning rate at the end."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of Adam's moments."""
    eps: float = 1e-8
    """Added to Adam's divisor."""
    weight_decay: float = 0.05
    """Not on biases, norms, class tokens, position embeddings and tables."""
    clip: float = 0.0
    """Longest gradient; 0: any."""
    layer_decay: float = 1.0
    """Learning rate of each layer over that of the next one: for fine-tuning."""
    freeze: tuple[str, ...] = ()
    """Modules of the backbone that stay as they are, such as stages.0: for fine-tuning."""


@dataclass(frozen=True)
class SchedulePart:
    """How long."""

    epochs: int = 30
    """Passes over the pictures along the cosine, warm-up counted."""
    warmup: int = 2
    """Of these, passes over which the learning rate rises."""
    cooldown: int = 0
    """More passes at the lowest rate."""
    steps: int = 0
    """Length in steps, in place of epochs; 0: by epochs."""
    warmup_steps: int = 0
    """Length of the warm-up in steps, in place of epochs; 0: by epochs."""
    shape: Literal["cosine", "poly", "drops"] = "cosine"
    """How the rate falls: along a cosine, as a power of the steps left, or to a tenth at given epochs."""
    power: float = 1.0
    """Of poly."""
    drops: tuple[int, ...] = ()
    """Epochs after which the rate is a tenth of what it was, whatever optim.min_lr says."""


@dataclass(frozen=True)
class EmaPart:
    """A moving average of the weights, evaluated beside them."""

    decay: float = 0.0
    """Per step at a global batch of `rate_batch`; 0: no average."""
    rate_batch: int = 4096
    """The batch that the decay is meant for; with another it is raised to the power batch / rate_batch."""


@dataclass(frozen=True)
class RunPart:
    """How the run is carried out."""

    precision: Precision = "fp32"
    """Of activations; weights and sums stay in fp32."""
    seed: int = 0
    """Of weights, order and augmentation."""
    log: int = 20
    """Steps between two lines of metrics."""
    save: int = 0
    """Steps between two checkpoints, besides one per epoch; 0: none."""
    evaluate: int = 1
    """Epochs between two evaluations."""
    fsdp: bool = False
    """Shard weights, gradients and optimizer over processes, block by block."""


@dataclass(frozen=True)
class Recipe:
    """What a run computes."""

    task: TaskPart = field(default_factory=TaskPart)
    model: ModelPart = field(default_factory=ModelPart)
    data: DataPart = field(default_factory=DataPart)
    augment: AugmentPart = field(default_factory=AugmentPart)
    optim: OptimPart = field(default_factory=OptimPart)
    schedule: SchedulePart = field(default_factory=SchedulePart)
    ema: EmaPart = field(default_factory=EmaPart)
    run: RunPart = field(default_factory=RunPart)


CARRIED_OUT = {
    "data.skip_bad",
    "data.workers",
    "data.root",
    "data.source",
    "optim.device_batch",
    "run.log",
    "run.save",
    "run.fsdp",
    "model.compile",
}
"""What may differ between a run and its continuation: where and how, not what. (Another device batch mixes other pairs.)"""

Part = TypeVar("Part")


def shipped() -> dict[str, str]:
    """The recipes in the package, by name: their text."""
    folder = files("inline_attention") / "recipes"
    found = [entry for entry in folder.iterdir() if entry.name.endswith(".toml")]
    return {entry.name.removesuffix(".toml"): entry.read_text() for entry in sorted(found, key=lambda entry: entry.name)}


def load(name: str) -> Recipe:
    """The recipe of that name, or in that file."""
    path = Path(name)
    if path.suffix == ".toml":
        if not path.is_file():
            raise ValueError(f"there is no recipe {path}")
        return parse(path.read_text(), str(path))
    known = shipped()
    if name not in known:
        raise ValueError(f"unknown recipe {name!r}{nearest(name, known)}; there are: {', '.join(known)}")
    return parse(known[name], name)


def parse(text: str, source: str) -> Recipe:
    """A recipe from TOML. Unknown keys and values of another type are errors."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{source} is not TOML: {error}") from error
    return build(Recipe, table, "", source)


def build(part: type[Part], table: dict[str, Any], prefix: str, source: str) -> Part:
    """A part of a recipe from a table; `prefix` and `source` are for messages."""
    hints = get_type_hints(part)
    for key in table:
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
            values[key] = _typed(kind, value, f"{source}: {name}")
    return part(**values)


def _typed(kind: Any, value: Any, name: str) -> Any:
    """The value as the field has it: whole numbers may stand for real ones, lists for tuples."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is UnionType:
        return _typed(next(k for k in inner if k is not NoneType), value, name)
    if origin is Literal:
        if value not in inner:
            raise ValueError(f"{name} must be one of {', '.join(map(str, inner))}, got {value!r}")
        return value
    if origin is tuple:
        length = None if inner[-1] is Ellipsis else len(inner)
        if not isinstance(value, list) or length not in (None, len(value)):
            raise ValueError(f"{name} must be a list{f' of {length}' if length else ''}, got {value!r}")
        return tuple(_typed(inner[0], item, name) for item in value)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ValueError(f"{name} must be of type {kind.__name__}, got {value!r}")
    return value


def nearest(name: str, known: Any, prefix: str = "") -> str:
    """' (did you mean ...?)', or nothing."""
    close = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {prefix}{close[0]}?)" if close else ""


def flat(recipe: Recipe) -> dict[str, Any]:
    """All fields by their dotted names."""
    return {
        f"{part.name}.{entry.name}": getattr(getattr(recipe, part.name), entry.name)
        for part in fields(recipe)
        for entry in fields(getattr(recipe, part.name))
    }


def to_toml(recipe: Recipe) -> str:
    """The whole recipe, unset fields left out. `parse` gives it back."""
    lines: list[str] = []
    for part in fields(recipe):
        lines.append(f"[{part.name}]")
        for entry in fields(getattr(recipe, part.name)):
            value = getattr(getattr(recipe, part.name), entry.name)
            if value is not None:
                lines.append(f"{entry.name} = {_literal(value)}")
        lines.append("")
    return "\n".join(lines)


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return dumps(value, ensure_ascii=False)
    return f"[{', '.join(map(_literal, value))}]" if isinstance(value, tuple) else repr(value)


def model_arguments(part: ModelPart) -> dict[str, Any]:
    """Arguments of `timm.create_model` that the recipe gives, besides name, classes and size."""
    given = _inline_table(part.args, "model.args", "'patch_size=4, depths=[1, 1]'")
    chosen = {"mixer": part.mixer, "kernel": part.kernel, "local": part.local}
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    return {**given, **{key: value for key, value in chosen.items() if value is not None}}


def swap_arguments(part: ModelPart) -> dict[str, Any]:
    """Arguments of `swap` that the recipe gives."""
    return _inline_table(part.swap, "model.swap", "'mixer=\"inline\"'")


def _inline_table(text: str, name: str, like: str) -> dict[str, Any]:
    try:
        table: dict[str, Any] = tomllib.loads(f"args = {{ {text} }}")["args"]
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{name} must be like {like}, got {text!r}: {error}") from error
    return table


def to_inline(table: Mapping[str, Any]) -> str:
    """Arguments as 'model.args' and 'model.swap' have them."""
    return ", ".join(f"{name}={_literal(tuple(v) if isinstance(v, list) else v)}" for name, v in table.items() if v is not None)


def changes(old: Recipe, new: Recipe) -> list[str]:
    """Fields that decide what is computed and differ, as 'name: old -> new'."""
    before, after = flat(old), flat(new)
    return [f"{k}: {before[k]} -> {after[k]}" for k in before if before[k] != after[k] and k not in CARRIED_OUT]


POSITIVE = (
    "optim.batch", "optim.device_batch", "optim.rate_batch", "optim.lr", "optim.layer_decay", "schedule.epochs",
    "ema.rate_batch", "run.log", "run.evaluate", "data.crop", "data.val_share", "schedule.power", "task.width",
    "task.longest", "task.stride",
)  # fmt: skip
NOT_NEGATIVE = (
    "optim.warmup_lr", "optim.min_lr", "optim.weight_decay", "optim.clip", "optim.eps", "run.save", "run.seed",
    "schedule.warmup", "schedule.cooldown", "schedule.steps", "schedule.warmup_steps", "data.limit", "task.auxiliary",
    "augment.mixup", "augment.cutmix", "augment.color_jitter",
)  # fmt: skip
SHARES = (
    "model.drop_path", "augment.smoothing", "ema.decay", "augment.hflip", "augment.vflip", "augment.erase",
    "augment.mix_prob", "augment.mix_switch", "data.crop", "task.stride",
)  # fmt: skip


def check(recipe: Recipe) -> None:
    """Raise for values that cannot be meant."""
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
    if min(recipe.data.size) < 1:
        faults.append(f"data.size must be two positive numbers, got {recipe.data.size}")
    if recipe.data.workers is not None and recipe.data.workers < 0:
        faults.append(f"data.workers must not be negative, got {recipe.data.workers}")
    if recipe.schedule.warmup > recipe.schedule.epochs:
        faults.append(
            f"schedule.warmup must be within the {recipe.schedule.epochs} epochs, got {recipe.schedule.warmup}: take fewer"
        )
    if recipe.run.fsdp and recipe.ema.decay:
        faults.append("ema.decay and run.fsdp do not go together: average with DDP, or set ema.decay 0")
    faults += _check_schedule(recipe) + _check_task(recipe)
    if faults:
        raise ValueError(faults[0])


def _check_schedule(recipe: Recipe) -> list[str]:
    schedule, faults = recipe.schedule, []
    if (schedule.shape == "drops") != bool(schedule.drops):
        faults.append(f"schedule.drops are the epochs of schedule.shape drops, got {schedule.drops} with {schedule.shape}")
    if list(schedule.drops) != sorted(set(schedule.drops)) or any(drop < 1 for drop in schedule.drops):
        faults.append(f"schedule.drops must be rising epochs, got {schedule.drops}")
    if schedule.steps and schedule.cooldown:
        faults.append(f"schedule.cooldown is in epochs: leave it out beside schedule.steps, got {schedule.cooldown}")
    return faults


HEADS = {"classify": (), "detect": ("mask_rcnn", "cascade_mask_rcnn"), "segment": ("semantic_fpn", "upernet")}
"""That a task can take; the first is the usual one."""


_DETECTING = ("task.sides", "task.anchors", "task.samples", "task.freeze_norm")
_SEGMENTING = ("task.auxiliary", "task.inference", "task.stride", "task.side", "augment.resize")
_CLASSIFYING = (
    "data.root", "data.train", "data.view", "data.crop", "augment.scale", "augment.ratio", "augment.vflip", "augment.auto",
    "augment.erase", "augment.mixup", "augment.cutmix", "augment.mix_prob", "augment.mix_switch", "augment.smoothing",
)  # fmt: skip
FOREIGN = {
    "classify": (*_DETECTING, *_SEGMENTING, "task.width", "task.longest", "data.limit"),
    "detect": (*_SEGMENTING, *_CLASSIFYING, "data.size", "data.interpolation"),
    "segment": (*_DETECTING, *_CLASSIFYING),
}
"""Fields that a task does not look at."""
SMALLEST = 8
"""Pixels of a side that a model takes at least."""


def _check_task(recipe: Recipe) -> list[str]:
    task, faults = recipe.task, []
    if task.head != "auto" and task.head not in HEADS[task.name]:
        there = ", ".join(HEADS[task.name]) or "none"
        faults.append(f"task.head {task.head} is not one to {task.name} with; there are: {there}")
    usual, values = flat(Recipe()), flat(recipe)
    for name in FOREIGN[task.name]:
        if values[name] != usual[name]:
            faults.append(f"{name} has no meaning for --task {task.name}, got {values[name]!r}: leave it out")
    if task.side is not None and task.side < 0:
        faults.append(f"task.side must be positive, or 0 for pictures as they are, got {task.side}")
    if task.name == "detect" and (not task.sides or min(task.sides) < SMALLEST or max(task.sides) > task.longest):
        faults.append(f"task.sides must be from {SMALLEST} to task.longest, {task.longest}, got {task.sides}")
    if min(task.anchors) < 1 or task.samples < 4:
        faults.append(f"task.anchors must be positive and task.samples 4 or more, got {task.anchors} and {task.samples}")
    if task.name == "segment" and recipe.run.fsdp:
        faults.append("run.fsdp does not go with task segment, whose processes look a different number of times: take DDP")
    return faults
