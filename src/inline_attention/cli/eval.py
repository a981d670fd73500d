"""`inline eval`: measure how good a trained model is on validation images."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .arguments import prepare_folder
from .console import table_console
from .train_report import number

if TYPE_CHECKING:
    from torch import nn

    from ..data.sources import Source
    from ..training.eval_images import EvalImages
    from ..training.load_trained import Trained
    from ..training.task import Score, Task

HARDEST = 10
"""How many of the hardest classes are printed."""


@dataclass(frozen=True)
class Eval:
    """Measure a trained model: accuracy, COCO's average precision, mean intersection over union, or as slides' labels need."""

    model: Annotated[str, tyro.conf.Positional]
    """A run's folder, a file of weights (ours or the authors'), or a model's name with --pretrained or --weights."""
    task: Literal["classify", "detect", "segment", "bags", "slides"] | None = None
    """What the model was trained for; unset: as its file says."""
    pretrained: bool = False
    """Take the published weights of a model that is given by name; they are downloaded unless they are here."""
    weights: Path | None = None
    """For a model that is given by name: a file of weights, or a folder of published files."""
    data: str | None = None
    """Images: any source of `inline train`, or a folder of class folders; unset: those of the run."""
    labels: str | None = None
    """A CSV with the labels of slides, with --data; unset: that of the run."""
    columns: tuple[str, ...] = ()
    """Columns of --labels with the labels; unset: as for `inline train`."""
    root: str | None = None
    """Folder of a wds/, hfds/ or torch/ source."""
    split: str | None = None
    """Which split of the images, such as test; unset: the validation set, or all images of a folder without splits."""
    crop_mode: Literal["squash", "center"] | None = None
    """'squash' resizes both sides as the paper does, 'center' the shorter one as timm usually does; unset: as trained."""
    size: tuple[int, int] | None = None
    """Height and width of the model's input; unset: as trained."""
    crop: float | None = None
    """Share of the resized side that the centre crop keeps; unset: as trained."""
    inference: Literal["whole", "slide"] | None = None
    """Segmentation: whole images, or windows of the training crop; unset: as trained."""
    side: int | None = None
    """Segmentation: shorter side that images are resized to, 0 for their own; unset: as trained."""
    ema: bool = False
    """Take the moving average out of a file that holds both."""
    batch: int | None = None
    """Images at once; unset: 64 to classify, else 4."""
    workers: int | None = None
    """Processes that read images; unset: by the number of cores."""
    skip_bad: bool = False
    """Leave out images that cannot be read, and list them, instead of stopping."""
    out: Path | None = None
    """Folder for eval.json and confusion.png; unset: eval/ in the run's folder, or here."""
    device: str = "auto"
    """auto, cpu or the accelerator that is there."""
    json: bool = False
    """Print JSON instead of the table."""

    def run(self) -> None:
        """Load the model, evaluate it on every image once, print and write the result."""
        from ..training.classify import Classify
        from ..training.config import Recipe
        from ..training.eval_images import validation_set
        from ..training.load_trained import load_trained, task_named
        from ..training.recipe import check
        from .bags import evaluate_bags
        from .dense import evaluate_dense

        if self.batch is not None and self.batch < 1:
            raise ValueError(f"--batch must be positive, got {self.batch}")
        task = task_named(self.model, self.weights)
        if self.task not in (None, task):
            raise ValueError(f"{self.weights or self.model} was trained to {task}, not to {self.task}")
        if task in ("bags", "slides"):
            evaluate_bags(self, task)
            return
        if self.labels is not None or self.columns:
            raise ValueError(f"--{'columns' if self.labels is None else 'labels'} is for models of slides: leave it out")
        if task != "classify":
            evaluate_dense(self)
            return
        for name in ("inference", "side"):
            if getattr(self, name) is not None:
                raise ValueError(f"--{name} {getattr(self, name)} is for models that segment: leave it out")
        trained = load_trained(self.model, self.weights, ema=self.ema, pretrained=self.pretrained)
        images = validation_set(trained, self.model, self.data, self.root, self.split)
        given: dict[str, Any] = {"crop_mode": self.crop_mode, "size": self.size, "crop": self.crop}
        data = replace(trained.data, **{key: value for key, value in given.items() if value is not None})
        recipe = Recipe(data=data)
        check(recipe)
        out = eval_folder(self)
        found = score(self, Classify(recipe), trained.model, replace(images.source, classes=trained.classes), out)
        if found is None:
            return
        facts = {
            "model": trained.name, "weights": str(self.weights or self.model), "loaded": trained.loaded, "data": images.name,
            "crop_mode": data.crop_mode, "size": data.size, "crop": data.crop, "reported": trained.reported,
        }  # fmt: skip
        text = write_score(out, facts, found, images, trained.classes, found.bad, "images")
        if self.json:
            print(text)
        else:
            self._print(trained, found, images, out)

    def _print(self, trained: "Trained", found: "Score", images: "EvalImages", out: Path) -> None:
        console = table_console()
        console.print(f"{trained.name}: {trained.loaded}", highlight=False, soft_wrap=True, markup=False)
        table = score_table("images", "top-1 %", "top-5 %", "loss", "images/s")
        numbers, speed = found.metrics, f"{found.images_per_second:,.0f}"
        top5 = number(numbers["top5"]) if len(trained.classes) > 5 else "-"
        table.add_row(
            images.source.split, f"{found.images:,}", number(numbers["top1"]), top5, number(numbers["loss"], 3), speed
        )
        console.print(table)
        if trained.reported is not None:
            line = f"Reported by the paper for ImageNet-1K's 50,000 validation images: {trained.reported['top1']} % top-1"
            console.print(line, highlight=False, soft_wrap=True)
        if (Path(self.model) / "linearize.json").is_file():  # which keeps its last weights and not the best ones
            images = replace(images, chosen_by=False)
        print_rest(console, found, images, trained.classes, out, bad=found.bad, unit=" %")


def score_table(*columns: str) -> Table:
    """A table whose first column is the split; the others are numbers, whose titles are not cut."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1))
    table.add_column("split", overflow="fold")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def score(options: Eval, task: "Task", model: "nn.Module", source: "Source", out: Path) -> "Score | None":
    """Evaluate a task's model on `source.val`; None in all processes but the main one."""
    from ..ops.checks import check_device
    from ..training.task import evaluate_once
    from .progress import step_counter

    is_main = int(os.environ.get("RANK", "0")) == 0
    check_device(options.device)
    if is_main:
        prepare_folder(out)
    with step_counter("evaluating", Console(stderr=True, quiet=not is_main), "image") as progress:
        found = evaluate_once(
            model, task, source, device=options.device, batch=options.batch, workers=options.workers,
            skip_bad=options.skip_bad, progress=progress,
        )  # fmt: skip
    return found if is_main else None


def eval_folder(options: Eval) -> Path:
    """The folder of the result: --out, or one in the run's folder, or one here."""
    name = "eval" if options.data is None else f"eval-{Path(options.data).name}"
    name += f"-{Path(options.split).name}" if options.split else ""
    return options.out or (Path(options.model) / name if (Path(options.model) / "recipe.toml").is_file() else Path(name))


def write_score(
    out: Path,
    facts: Mapping[str, Any],
    found: "Score",
    images: "EvalImages",
    classes: tuple[str, ...],
    bad: tuple[str, ...],
    unit: str,
) -> str:
    """Write eval.json and the confusion matrix; return the JSON.

    Args:
        facts: about model and images.
        images: those that were scored.
        bad: images and entries that were left out.
        unit: what the confusion matrix counts: images or pixels.
    """
    from ..training.plots import draw_confusion

    record = {
        **facts, **images.source.scored, "trained_on": images.trained_on, "chosen_by": images.chosen_by,
        **found.metrics, **found.details, "images": found.images, "images_per_second": found.images_per_second, "bad": bad,
        "classes": classes,
    }  # fmt: skip
    text = "{\n" + ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in record.items()) + "\n}"
    (out / "eval.json").write_text(text + "\n")
    if found.details.get("confusion"):
        draw_confusion(found.details["confusion"], classes, out / "confusion.png", unit)
    return text


def print_rest(
    console: Console,
    found: "Score",
    images: "EvalImages",
    classes: tuple[str, ...],
    out: Path,
    *,
    bad: tuple[str, ...],
    unit: str = "",
    what: str = "images",
) -> None:
    """Print what comes below the table: the images, the hardest classes, a warning, what was left out, what was written."""
    source = images.source
    about = f"{found.images:,} {what} of {images.name}, split {source.split_text}, fingerprint {source.scored['fingerprint']}"
    console.print(about, highlight=False, soft_wrap=True, markup=False)
    pairs = zip(found.details["per_class"], classes, strict=True)
    by_score = sorted((value, name) for value, name in pairs if value is not None)
    hardest = ", ".join(f"{name} {value:.1f}{unit}" for value, name in by_score[:HARDEST] if value < 100)
    if by_score:
        console.print(f"Hardest classes: {hardest or 'none, all are right'}", highlight=False, soft_wrap=True, markup=False)
    if images.trained_on:
        some = "all of them" if images.trained_on >= len(source.val) else f"{images.trained_on:,} of them"
        console.print(f"The run was trained on {some}: this is no measure of other {what}.", highlight=False, soft_wrap=True)
    elif images.chosen_by:
        note = f"These weights were chosen by these very {what}; the table of their run has the last weights' score."
        console.print(note, highlight=False, soft_wrap=True)
    if bad:
        console.print(f"{len(bad)} {what} or entries were left out:", highlight=False)
        for text in bad:
            console.print(f"  {text}", highlight=False, soft_wrap=True, markup=False)
    drawn = ", confusion.png" if found.details.get("confusion") else ""
    console.print(f"Written: {out}/eval.json{drawn}", highlight=False, soft_wrap=True)
