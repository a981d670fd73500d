"""The fields of a recipe: everything that decides what a run computes, section by section."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_type_hints

from ..data.config import AugmentConfig, DataConfig, OffGrid, Target
from ..lite.transform import RENAMED_TRANSFORM_FIELDS

RUNS = Path("runs")
"""Where runs are kept unless a folder is named."""
Precision = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True)
class TaskConfig:
    """What the model predicts: a class for an image, objects with boxes (and masks), a class for every pixel, or of a slide."""

    name: Literal["classify", "detect", "segment", "bags", "slides"] = "classify"
    """What the model predicts of an image; or of a slide, from a bag of tile features, or from its whole image."""
    head: Literal["auto", "mask_rcnn", "cascade_mask_rcnn", "faster_rcnn", "cascade_rcnn", "semantic_fpn", "upernet"] = "auto"
    """On the backbone's maps; auto: mask_rcnn to detect, or faster_rcnn without masks; semantic_fpn to segment."""
    width: int = 256
    """Channels of the head's maps; its other layers follow."""
    auxiliary: float = 0.4
    """Weight of the loss of UperNet's second, smaller head."""
    sides: tuple[int, ...] = (800,)
    """Detection: shorter sides that images are resized to, one drawn for each image; the last one in evaluation."""
    longest: int = 1333
    """Upper bound of the longer side where images are resized by their shorter one."""
    anchors: tuple[int, int, int, int, int] = (32, 64, 128, 256, 512)
    """Detection: sides of the boxes that proposals start from, one for each level of the pyramid."""
    samples: int = 512
    """Detection: boxes of an image that the head is trained on, a quarter of them on objects; fewer are faster."""
    freeze_norm: bool | None = None
    """Detection: freeze the backbone's batch norms; unset: only when it starts from weights."""
    inference: Literal["whole", "slide"] = "whole"
    """Segmentation: predict whole images, or windows of data.size whose overlaps are averaged."""
    stride: float = 0.6667
    """Of these windows, as a share of their sides."""
    side: int | None = None
    """Segmentation: shorter side that images are resized to in evaluation, 0 for their own; unset: that of data.size."""
    large: bool = False
    """Segmentation: whole images of any size, read by rows, with masks as large, in place of crops."""
    target: Target = "auto"
    """Slides: what their labels are, classes, several labels of 0 or 1, or a number; auto: as the table shows."""
    features: int = 0
    """Bags: channels of the tiles' features; 0: as the files have them."""
    normalize: bool = True
    """Bags: give each tile's features a mean of 0 and a variance of 1, as encoders differ in scale."""
    tile_step: int = 0
    """Bags: pixels of the slide from one tile to the next; 0: as the file says, or as its coordinates show."""
    off_grid: OffGrid = "nearest"
    """Bags: tiles between the cells of the grid go to the nearest free cell, or the file is refused."""
    center: float = 0.0
    """Slides with a number: their mean, which the model's output is counted from. A run sets it by its training slides."""
    spread: float = 1.0
    """Slides with a number: their standard deviation, likewise."""


@dataclass(frozen=True)
class ModelConfig:
    """Which model."""

    name: str = "inline_deit_nano"
    """Any name that timm knows; `inline list` shows this package's."""
    mixer: str | None = None
    """Attention of an inline_* model: inline, softmax, linear, ..."""
    kernel: str | None = None
    """Feature map of linear and inline attention: identity, relu, ..."""
    local: bool | None = None
    """Add the local residual, or not; unset: the mixer's default."""
    drop_path: float = 0.0
    """Share of residual branches dropped in the last block, growing linearly from the first."""
    args: str = ""
    """Further arguments of timm.create_model, as in TOML: 'patch_size=4, depths=[1,1,2,1]'."""
    swap: str = ""
    """Replace the model's attention, such as a timm ViT's by InLine: arguments of `swap` as in TOML, 'mixer="inline"'."""
    pretrained: bool = False
    """Start from the model's published weights: the authors', for inline_* models, or those that timm has for its own. A name
    with a tag, such as inline_swin_nano.digits, starts from the weights of the tag without it."""
    weights: str | None = None
    """Start from these weights: a file (ours or the authors') or a run's folder. Other sizes and classes are adapted. With
    model.pretrained, or for an inline_* model, also a folder of published files, such as inline_swin_tiny.pth."""
    checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""
    compile: bool = False
    """Compile the model with torch.compile."""


@dataclass(frozen=True)
class OptimConfig:
    """Optimizer and learning rates. Rates are per `rate_batch` images and scale with the global batch."""

    name: str = "adamw"
    """Any optimizer that timm knows."""
    batch: int = 128
    """Images per step over all processes together."""
    device_batch: int = 128
    """Upper bound of a process's micro-batch; gradients are accumulated to fill the batch."""
    rate_batch: int = 512
    """The batch that the three learning rates are meant for."""
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
    """Not applied to biases, norms, class tokens, position embeddings and tables."""
    clip: float = 0.0
    """Gradients are clipped to this norm; 0: not clipped."""
    layer_decay: float = 1.0
    """Learning rate of each layer over that of the next one: for fine-tuning."""
    freeze: tuple[str, ...] = ()
    """Modules of the backbone that are not trained, such as stages.0: for fine-tuning."""


@dataclass(frozen=True)
class ScheduleConfig:
    """Length of the run and shape of the learning rate."""

    epochs: int = 30
    """Epochs along the cosine, warm-up included."""
    warmup: int = 2
    """Of these, epochs over which the learning rate rises."""
    cooldown: int = 0
    """Further epochs at the lowest rate."""
    steps: int = 0
    """Length in steps, in place of epochs; 0: by epochs."""
    warmup_steps: int = 0
    """Length of the warm-up in steps, in place of epochs; 0: by epochs."""
    shape: Literal["cosine", "poly", "drops"] = "cosine"
    """How the rate falls: along a cosine, as a power of the steps left, or to a tenth at given epochs."""
    power: float = 1.0
    """Of poly."""
    drops: tuple[int, ...] = ()
    """Epochs after which the rate is divided by ten, whatever optim.min_lr is."""


@dataclass(frozen=True)
class EmaConfig:
    """A moving average of the weights, evaluated beside them."""

    decay: float = 0.0
    """Per step at a global batch of `rate_batch`; 0: no average."""
    rate_batch: int = 4096
    """The batch that the decay is meant for; with another it is raised to the power batch / rate_batch."""


@dataclass(frozen=True)
class RunConfig:
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
    tokens: int = 8192
    """Slides from their images: tokens to hold in memory at once."""
    keep: int | None = None
    """Slides: inputs of blocks to keep in files for the backward pass; the others are computed again; unset: all."""
    folder: str | None = None
    """Slides: where these files are; "memory" for no files; unset: the system's temporary folder."""
    fsdp: bool = False
    """Shard weights, gradients and optimizer over processes, block by block."""


@dataclass(frozen=True)
class Recipe:
    """What a run computes, as typed sections.

    Example:
        >>> recipe = Recipe().with_fields({"schedule.epochs": 2, "optim.lr": 1e-3})
        >>> recipe.schedule.epochs
        2
    """

    task: TaskConfig = field(default_factory=TaskConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    ema: EmaConfig = field(default_factory=EmaConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def with_fields(self, values: Mapping[str, Any]) -> "Recipe":
        """A copy with other values, by dotted names such as "schedule.epochs". A wrong name or type raises a ValueError."""
        from .recipe import typed_value  # recipe.py imports this file

        known = [f"{section.name}.{entry.name}" for section in fields(self) for entry in fields(getattr(self, section.name))]
        changed = self
        for name, value in values.items():
            if name in RENAMED_FIELDS:
                raise ValueError(f"the field {name} is now called {RENAMED_FIELDS[name]}")
            if name not in known:
                raise ValueError(f"unknown field {name}{nearest(name, known)}")
            section, _, entry = name.partition(".")
            part = getattr(changed, section)
            typed = typed_value(get_type_hints(type(part))[entry], value, name)
            changed = replace(changed, **{section: replace(part, **{entry: typed})})
        return changed


RENAMED_FIELDS = {f"data.{old}": f"data.{new}" for old, new in RENAMED_TRANSFORM_FIELDS.items()}
"""Old name: new name. Run folders and weights that have the old one are read; what a user writes must have the new one."""

RESUMABLE_FIELDS = {
    "data.skip_bad",
    "data.workers",
    "data.root",
    "data.source",
    "data.labels",
    "optim.device_batch",
    "run.log",
    "run.save",
    "run.tokens",
    "run.keep",
    "run.folder",
    "run.fsdp",
    "model.compile",
}
"""Fields that may differ when a run is resumed: where and how, not what. (Another device batch mixes other pairs.)"""


SEED_LIMIT = 2**63
"""Seeds are below it: numpy, torch and TOML take them all."""


def check_seed(seed: int, name: str = "seed") -> None:
    """Raise unless the seed is one that numpy and torch take."""
    if not 0 <= seed < SEED_LIMIT:
        raise ValueError(f"{name} must be from 0 to 2^63 - 1, got {seed}")


def nearest(name: str, known: Any, prefix: str = "") -> str:
    """' (did you mean ...?)', or nothing."""
    close = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {prefix}{close[0]}?)" if close else ""
