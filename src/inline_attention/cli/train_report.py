"""Output of `inline train`: progress (bars on a terminal, lines in a log), the result as a table, and the dry run."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from .arguments import usable_device
from .console import table_console

if TYPE_CHECKING:
    from ..data.sources import Source
    from ..training.run import TrainingResult
    from ..training.schedule import Plan
    from ..training.task import Task

LOG_SECONDS = 10.0
"""Seconds between two lines about training in a log."""
LARGE_SIDE, SEEN_IMAGES = 512, 5
"""Pixels above which images are large, and how many of them are read to find out."""
THREE_DIGITS = ("loss", "auc", "mae", "rmse", "r2", "pearson")
"""Metrics that are no shares in percent."""
STREAMING_MODELS = ("inline_pvt_nano", "inline_deit_nano")
"""Small models whose blocks are all InLine, which `stream` takes at any size."""


class TrainingReport:
    """Prints the progress of a run on the error output. The training loop calls its methods."""

    def __init__(self, columns: Mapping[str, str], *, silent: bool = False) -> None:
        self.columns = columns
        self.console = Console(stderr=True, quiet=silent)
        self.bar: Progress | None = None
        self.plan: Plan | None = None
        self.start = self.last_line = perf_counter()
        self.first_step = 0

    def __enter__(self) -> "TrainingReport":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.bar is not None:
            self.bar.stop()

    def message(self, text: str) -> None:
        """Print one line."""
        self.console.print(text, highlight=False, soft_wrap=True, markup=False)

    def begin(self, plan: "Plan", start: int) -> None:
        """Print how much there is to do."""
        micro = f" in {plan.micro_batches} micro-batches" if plan.micro_batches > 1 else ""
        resumed = f", from step {start}" if start else ""
        over = plan.images % plan.batch
        left = f" ({over} left over in each epoch)" if over else ""
        self.message(
            f"{plan.images:,} images{left}, batches of {plan.batch}{micro}, {plan.steps_per_epoch} steps per epoch, "
            f"{plan.steps:,} steps{resumed}"
        )
        if start >= plan.steps:
            self.message("This run is finished already.")
        self.plan, self.first_step = plan, start
        self.start = self.last_line = perf_counter()
        if not self.console.is_terminal:
            return
        text = TextColumn("{task.description}")
        columns = (text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
        self.bar = Progress(*columns, TextColumn("{task.fields[text]}"), console=self.console, transient=True)
        self.training = self.bar.add_task("training", total=plan.steps, completed=start, text="")
        self.evaluation = self.bar.add_task("evaluating", total=1, text="", visible=False)
        self.image = self.bar.add_task("this image", total=1, text="", visible=False)
        self.bar.start()

    def step(self, step: int, loss: float, images_per_second: float) -> None:
        """Show a finished step."""
        if self.bar is not None:
            self.bar.update(self.training, completed=step, text=f"loss {loss:.3f}, {images_per_second:,.0f} images/s")

    def within(self, done: int, total: int) -> None:
        """Show how far a large image is."""
        if self.bar is not None:
            self.bar.update(self.image, completed=done, total=total, visible=done < total)

    def logged(self, row: dict[str, Any]) -> None:
        """Print the metrics of training."""
        now = perf_counter()
        if self.bar is not None or self.plan is None or now - self.last_line < LOG_SECONDS:
            return
        self.last_line = now
        left = (now - self.start) / (row["step"] - self.first_step) * (self.plan.steps - row["step"])
        self.message(
            f"step {row['step']}/{self.plan.steps}  loss {row['train_loss']:.3f}  lr {row['lr']:.1e}  "
            f"{row['images_per_second']:,.0f} images/s  waiting {row['waiting']:.0%}  {_time(left)} left"
        )

    def evaluating(self, done: int, total: int) -> None:
        """Show how far an evaluation is."""
        if self.bar is not None:
            self.bar.update(self.evaluation, completed=done, total=total, visible=done < total)

    def evaluated(self, row: dict[str, Any]) -> None:
        """Print the metrics of an evaluation."""
        metric, label = next(iter(self.columns.items()))
        loss = f"  loss {row['loss']:.3f}" if "loss" in row else ""
        average = f"  EMA {_with_unit(row[f'ema_{metric}'], label)}" if f"ema_{metric}" in row else ""
        self.message(
            f"epoch {row['epoch']:>3}  train loss {row['train_loss']:.3f}{loss}  "
            f"{label.removesuffix(' %')} {_with_unit(row[metric], label)}{average}  {_time(row['seconds'])}"
        )


def _with_unit(value: float | None, label: str) -> str:
    """A number with the unit that its label has."""
    return f"{number(value)} %" if label.endswith(" %") else number(value, 3)


def number(value: float | None, digits: int = 2) -> str:
    """A number with two digits, or a dash for None."""
    return "-" if value is None else f"{value:.{digits}f}"


def metric_number(row: Mapping[str, Any], name: str, key: str | None = None) -> str:
    """A metric of a row, with three digits unless it is a share in percent."""
    return number(row[key or name], 3 if name in THREE_DIGITS else 2)


def _duration(seconds: float) -> str:
    """A time in words."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 60 else f"{minutes} min {rest:02} s"


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def print_result(outcome: "TrainingResult", task: "Task", written: list[Path]) -> None:
    """Print the table at the end, and which commands come next."""
    console, source = table_console(), outcome.source
    last = [row for row in outcome.rows if row["kind"] == "evaluation"][-1]
    training = [row for row in outcome.rows if row["kind"] == "training"]
    table = Table(box=SIMPLE_HEAD, padding=(0, 1))
    table.add_column(f"split: {source.split}", overflow="fold")
    for column in ("epoch", *task.columns.values()):
        table.add_column(column, justify="right", no_wrap=True)
    few = len(outcome.classes) <= 5
    table.add_row("last weights", str(last["epoch"]), *_numbers(task, last, "", few=few))
    if f"ema_{task.main_metric}" in last:
        table.add_row("EMA weights", str(last["epoch"]), *_numbers(task, last, "ema_", few=few))
    which = "best EMA weights" if outcome.best["weights"] == "average" else "best weights"
    table.add_row(which, str(outcome.best["epoch"]), *_numbers(task, outcome.best, "", few=few))
    console.print(table)
    waiting = sum(row["waiting"] for row in training) / len(training)
    speed = sorted(row["images_per_second"] for row in training)[len(training) // 2]
    console.print(
        f"{_time(last['seconds'])} of training, {speed:,.0f} images/s, {waiting:.1%} of the time waiting for images.",
        highlight=False,
        soft_wrap=True,
    )
    scored = f"{len(source.val):,} images of the split {source.split_text}, fingerprint {source.scored['fingerprint']}"
    console.print(f"Scored on {scored}.", highlight=False, soft_wrap=True, markup=False)
    note = "The best weights were chosen by these very images; 'last weights' were not."
    if source.split == "train":
        note = "Scored on the training images: it shows that they can be learned, and nothing else."
    console.print(note, highlight=False, soft_wrap=True)
    if outcome.bad:
        console.print(f"{len(outcome.bad)} images or entries were left out:", highlight=False)
        for text in outcome.bad:
            console.print(f"  {text}", highlight=False, soft_wrap=True, markup=False)
    names = ", ".join(path.name for path in written)
    console.print(f"Written: {outcome.folder}: best.safetensors, metrics.csv, {names}", highlight=False, soft_wrap=True)
    what, last_words = {
        "classify": ("IMAGE", f", inline analyze report {outcome.folder}"),
        "bags": ("FILE.h5", " --attention"),
        "slides": ("SLIDE", ""),
    }.get(task.recipe.task.name, ("IMAGE", ""))
    console.print(
        f"Next: inline eval {outcome.folder}, inline predict {what} --model {outcome.folder}{last_words}",
        highlight=False,
        soft_wrap=True,
    )
    if task.recipe.task.name == "classify" and (text := _streaming(outcome, task.recipe.data.size)):
        console.print(text, highlight=False, soft_wrap=True)


def _streaming(outcome: "TrainingResult", size: tuple[int, int]) -> str:
    """How large images can be classified at their own size; nothing for images of up to 512 pixels a side."""
    from ..large.stages import ways_through
    from ..training.chosen_recipe import typical_side
    from ..training.load_trained import load_trained

    side = typical_side(outcome.source.val, SEEN_IMAGES)
    if side is None or side <= LARGE_SIDE:
        return ""
    trained = load_trained(str(outcome.folder))
    seen = f"Your images have about {side:,} pixels on their shorter side, and the model sees them at {size[0]} x {size[1]}."
    try:
        ways_through(trained.model, "--stream", (side, side))
    except ValueError:
        can = " or ".join(STREAMING_MODELS)
        return f"{seen} {trained.name} cannot take them at their own size: --model.name {can} can, by inline predict --stream"
    return f"{seen} At their own size: inline predict IMAGE --stream --model {outcome.folder}"


def _numbers(task: "Task", row: dict[str, Any], prefix: str, *, few: bool) -> list[str]:
    """The numbers of the task's columns; top-5 means nothing with five classes or fewer."""
    return ["-" if name == "top5" and few else metric_number(row, name, f"{prefix}{name}") for name in task.columns]


def print_dry_run(task: "Task", device: str, source: "Source | None", name: str, *, as_json: bool) -> None:
    """Print the recipe with the fields that its task uses, then steps, parameters, memory and time, measured on a few images.

    Args:
        name: of the recipe.
    """
    from ..training.estimate import estimate
    from ..training.recipe import flat, to_toml, unused_fields

    processes = int(os.environ.get("WORLD_SIZE", "1"))
    recipe = task.recipe
    found = estimate(task, processes, usable_device(device), source)
    if as_json:
        print(json.dumps({"name": name, "recipe": flat(recipe), "estimate": asdict(found)}, indent=1))
        return
    states, activations = found.state_bytes / 2**20, found.activation_bytes / 2**20
    rate = f"learning rate up to {found.lr:.2e} ({recipe.optim.lr:.2e} for {recipe.optim.rate_batch} images)"
    parts = f" in {found.accumulation} micro-batches of {found.micro_batch}" if found.accumulation > 1 else ""
    text = f"# the recipe {name}\n{to_toml(recipe, unused_fields(recipe.task))}"
    Console().print(text, highlight=False, markup=False, soft_wrap=True)
    for line in (
        f"{found.parameters:,} parameters, {found.trained:,} of them trained, {found.classes} classes",
        f"{found.images:,} images, batches of {found.batch}{parts}, {found.steps_per_epoch:,} steps per epoch, "
        f"{found.steps:,} steps, {rate}",
        f"about {states + activations:,.0f} MB: {states:,.0f} of weights, gradients and moments, {activations:,.0f} of "
        "activations; torch itself needs more on top",
        f"about {_duration(found.seconds)} on {found.device}, timed on a few images: {_duration(found.training_seconds)} of "
        f"training, {_duration(found.evaluation_seconds)} of {found.evaluations:,} evaluations on {found.validation_images:,} "
        "images; saving and the start come on top",
    ):
        print(line)
    if found.disk_bytes:
        print(f"about {found.disk_bytes / 2**20:,.0f} MB of temporary files for the largest image; run.keep takes less")
