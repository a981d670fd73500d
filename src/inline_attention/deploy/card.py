"""The model card of a hub folder, written from the records of a run. It states nothing that was not recorded."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from ..models.counting import Count

TAGS = ("image-classification", "timm", "inline-attention")
LISTED_CLASSES = 20
"""At most so many class names are listed."""
READER_PREFIXES = ("wds/", "hfds/", "torch/")
"""Of data sources that are names, not paths on a disk."""

RECIPE_ROWS: tuple[tuple[str, str, str, Any], ...] = (
    ("epochs", "schedule", "epochs", 0),
    ("steps", "schedule", "steps", 0),
    ("warm-up, epochs", "schedule", "warmup", 0),
    ("warm-up, steps", "schedule", "warmup_steps", 0),
    ("learning rate falls along", "schedule", "shape", ""),
    ("optimizer", "optim", "name", ""),
    ("batch", "optim", "batch", 0),
    ("learning rate", "optim", "lr", 0),
    ("which is for a batch of", "optim", "rate_batch", 0),
    ("weight decay", "optim", "weight_decay", 0),
    ("longest gradient", "optim", "clip", 0),
    ("layer decay", "optim", "layer_decay", 1),
    ("frozen", "optim", "freeze", []),
    ("drop path", "model", "drop_path", 0),
    ("random crop, share of the image", "augment", "scale", []),
    ("random crop, width over height", "augment", "ratio", []),
    ("mirrored, probability", "augment", "hflip", 0),
    ("upside down, probability", "augment", "vflip", 0),
    ("colour jitter", "augment", "color_jitter", 0),
    ("policy", "augment", "auto", ""),
    ("erasing, probability", "augment", "erase", 0),
    ("mixup, alpha", "augment", "mixup", 0),
    ("cutmix, alpha", "augment", "cutmix", 0),
    ("label smoothing", "augment", "smoothing", 0),
    ("moving average, decay", "ema", "decay", 0),
    ("precision", "run", "precision", ""),
    ("seed", "run", "seed", None),
)
"""Rows of the table: label, section and field of the recipe, and the value that means off; such rows are left out."""


@dataclass(frozen=True)
class Facts:
    """The records of a model. All but the arguments that create it may be missing."""

    model: str
    """Name in timm's registry."""
    arguments: Mapping[str, Any]
    """Of `timm.create_model`."""
    classes: Sequence[str]
    data: Mapping[str, Any]
    """The evaluation transform: size, channels, crop_mode, crop, interpolation, mean, std."""
    count: Count | None = None
    """For one image of `data["size"]`."""
    result: Mapping[str, Any] = field(default_factory=dict)
    """`result.json` of the run: the scores of its best weights."""
    recipe: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """`recipe.toml` of the run."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """`environment.json` of the run."""
    repo: str | None = None
    """Its repository on the hub: "owner/name"."""
    license: str | None = None
    """Of the weights, as their owner states it; nothing is assumed."""


def model_card(facts: Facts) -> str:
    """The model card in Markdown, with metadata in YAML at its head."""
    parts = [_head(facts), _title(facts), _use(facts), _measured(facts), _training(facts), _model(facts), _unknown(facts)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(facts: Facts) -> str:
    licence = [f"license: {json.dumps(facts.license)}"] if facts.license else []  # a JSON string is a YAML string
    tags = [f"- {tag}" for tag in TAGS]
    return "\n".join(["---", *licence, "library_name: timm", f"pipeline_tag: {TAGS[0]}", "tags:", *tags, "---"])


def _title(facts: Facts) -> str:
    title = facts.repo.split("/")[-1] if facts.repo else facts.model
    origin = "the package inline-attention" if facts.model.startswith("inline_") else "timm"
    named = ", ".join(map(_escape, facts.classes[:LISTED_CLASSES]))
    more = len(facts.classes) - LISTED_CLASSES
    rest = f" and {more:,} more, in `config.json`" if more > 0 else ""
    return f"# {title}\n\n`{facts.model}` of {origin}, an image classifier of {len(facts.classes):,} classes: {named}{rest}."


def _use(facts: Facts) -> str:
    where = f"hf-hub:{facts.repo}" if facts.repo else "local-dir:FOLDER"
    mode = "L" if facts.data["channels"] == 1 else "RGB"
    register = "import inline_attention  # registers the model with timm\n" if facts.model.startswith("inline_") else ""
    imported = "after `import inline_attention`, " if register else ""
    pipeline = f'`transformers.pipeline("image-classification", model="{facts.repo or "FOLDER"}")("image.png")`'
    other = f"\n\nOr by transformers: {imported}{pipeline}." if mode == "RGB" and facts.classes else ""
    return f"""## Use

```python
{register}import timm
from PIL import Image

model = timm.create_model("{where}", pretrained=True).eval()
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model), is_training=False)
logits = model(transform(Image.open("image.png").convert("{mode}"))[None])
print(model.pretrained_cfg["label_names"][int(logits.argmax())])
```{other}"""


def _measured(facts: Facts) -> str:
    result = facts.result
    if "top1" not in result:
        return ""
    numbers = {"top-1": f"{result['top1']:.2f} %"}
    if "top5" in result and len(facts.classes) > 5:
        numbers["top-5"] = f"{result['top5']:.2f} %"
    if "loss" in result:
        numbers["cross entropy"] = f"{result['loss']:.3f}"
    images = f"{result['images']:,} " if "images" in result else ""
    source, split = _source(facts), ""
    if "split" in result:
        note = f", {_escape(result['split_note'])}" if result.get("split_note") else ""
        split = f" (split {_escape(str(result['split']))}{note}; fingerprint `{result.get('fingerprint', 'not recorded')}`)"
    chosen = "These weights are the best of the run"
    if "epoch" in result:
        chosen += f", after epoch {result['epoch']},"
    chosen += " on these very images, so the numbers are slightly too good"
    if result.get("weights") == "average":
        chosen += ". They are a moving average"
    kind = "validation images" if result.get("split", "val") == "val" else "images"
    place = f"{source}, {images}{kind}" if source else f"{images}{kind}"
    return f"## Measured\n\nMeasured on {place}{split}. {chosen}.\n\n{_table(numbers)}"


def _training(facts: Facts) -> str:
    rows: dict[str, str] = {}
    if source := _source(facts):
        rows["images"] = source
    by_steps = bool(facts.recipe.get("schedule", {}).get("steps"))  # in place of epochs
    for label, part, key, off in RECIPE_ROWS:
        value = facts.recipe.get(part, {}).get(key)
        if value is not None and value != off and not (by_steps and key in ("epochs", "warmup")):
            rows[label] = _escape(", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value))
    if start := facts.recipe.get("model", {}).get("weights"):
        rows["started from"] = f"`{PurePath(start).name}`"
    if "seconds" in facts.result:
        rows["seconds of training"] = f"{facts.result['seconds']:,.1f}"
    machine = ", ".join(f"{name} {value}" for name, value in facts.environment.items())
    run = f"\n\nOn: {machine}." if machine else ""
    return f"## Training\n\n{_table(rows)}{run}" if rows or run else ""


def _model(facts: Facts) -> str:
    height, width = facts.data["size"]
    rows = {
        "images": f"{height} x {width}, {facts.data['channels']} channels, {facts.data['crop_mode']}, crop {facts.data['crop']}"
    }
    if facts.count is not None:
        rows["parameters"] = f"{facts.count.params:,}"
        rows[f"multiply-adds for {height} x {width}"] = f"{facts.count.flops:,}"
    rows["arguments"] = f"`{json.dumps(dict(facts.arguments))}`"
    return f"## Model\n\n{_table(rows)}"


def _unknown(facts: Facts) -> str:
    unknown = []
    if "top1" not in facts.result:
        unknown.append("Its accuracy: no evaluation is recorded.")
    if not facts.recipe:
        unknown.append("How it was trained: no recipe is recorded.")
    if facts.license is None:
        unknown.append("The licence of the weights: none was given.")
    unknown.append("Its accuracy on images from elsewhere, its robustness, its speed: not measured.")
    return "## Unknown\n\n" + "\n".join(f"- {line}" for line in unknown)


def _source(facts: Facts) -> str:
    """The data source; of a path, its last part only."""
    source = str(facts.recipe.get("data", {}).get("source", ""))
    return f"`{source if source.startswith(READER_PREFIXES) else PurePath(source).name}`" if source else ""


def _table(rows: Mapping[str, str]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {label} | {value} |" for label, value in rows.items())])


def _escape(text: str) -> str:
    """Text with Markdown's special characters escaped."""
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>|#" else letter for letter in " ".join(text.split()))
