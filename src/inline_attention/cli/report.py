"""What a run says while it goes: bars on a terminal, plain lines in a log; and its result as a table."""

from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from ..training.plan import Plan
    from ..training.task import Task
    from ..training.train import Outcome

QUIET = 10.0
"""Seconds between two lines about training in a log."""


class TrainingReport:
    """Tells on the error output how a run goes."""

    def __init__(self, columns: Mapping[str, str], *, silent: bool = False) -> None:
        self.columns = columns
        self.console = Console(stderr=True, quiet=silent)
        self.bar: Progress | None = None
        self.plan: Plan | None = None
        self.start = self.told = perf_counter()
        self.first = 0

    def __enter__(self) -> "TrainingReport":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.bar is not None:
            self.bar.stop()

    def say(self, text: str) -> None:
        """One line."""
        self.console.print(text, highlight=False, soft_wrap=True, markup=False)

    def begin(self, plan: "Plan", start: int) -> None:
        """How much there is to do."""
        micro = f" in {plan.micro_batches} parts" if plan.micro_batches > 1 else ""
        whence = f", from step {start}" if start else ""
        over = plan.pictures % plan.batch
        left = f" ({over} left over in each epoch)" if over else ""
        self.say(
            f"{plan.pictures:,} pictures{left}, batches of {plan.batch}{micro}, {plan.steps_per_epoch} steps per epoch, "
            f"{plan.steps:,} steps{whence}"
        )
        if start >= plan.steps:
            self.say("This run is finished already.")
        self.plan, self.first = plan, start
        self.start = self.told = perf_counter()
        if not self.console.is_terminal:
            return
        text = TextColumn("{task.description}")
        columns = (text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
        self.bar = Progress(*columns, TextColumn("{task.fields[said]}"), console=self.console, transient=True)
        self.training = self.bar.add_task("training", total=plan.steps, completed=start, said="")
        self.checking = self.bar.add_task("evaluating", total=1, said="", visible=False)
        self.bar.start()

    def step(self, step: int, loss: float, rate: float) -> None:
        """A step was done."""
        if self.bar is not None:
            self.bar.update(self.training, completed=step, said=f"loss {loss:.3f}, {rate:,.0f} pictures/s")

    def logged(self, row: dict[str, Any]) -> None:
        """Metrics on training."""
        now = perf_counter()
        if self.bar is not None or self.plan is None or now - self.told < QUIET:
            return
        self.told = now
        left = (now - self.start) / (row["step"] - self.first) * (self.plan.steps - row["step"])
        self.say(
            f"step {row['step']}/{self.plan.steps}  loss {row['train_loss']:.3f}  lr {row['lr']:.1e}  "
            f"{row['pictures_per_second']:,.0f} pictures/s  waiting {row['waiting']:.0%}  {_time(left)} left"
        )

    def evaluating(self, done: int, total: int) -> None:
        """An evaluation is on its way."""
        if self.bar is not None:
            self.bar.update(self.checking, completed=done, total=total, visible=done < total)

    def evaluated(self, row: dict[str, Any]) -> None:
        """Metrics on an evaluation."""
        judged, label = next(iter(self.columns.items()))
        loss = f"  loss {row['loss']:.3f}" if "loss" in row else ""
        average = f"  average {_told(row[f'ema_{judged}'], label)}" if f"ema_{judged}" in row else ""
        self.say(
            f"epoch {row['epoch']:>3}  train loss {row['train_loss']:.3f}{loss}  "
            f"{label.removesuffix(' %')} {_told(row[judged], label)}{average}  {_time(row['seconds'])}"
        )


def _told(value: float | None, label: str) -> str:
    """A number with its unit, which its label has."""
    return f"{number(value)} %" if label.endswith(" %") else number(value)


def number(value: float | None, digits: int = 2) -> str:
    """With two digits, or a dash for what cannot be told."""
    return "-" if value is None else f"{value:.{digits}f}"


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def print_result(outcome: "Outcome", task: "Task", written: list[Path]) -> None:
    """The table at the end, and the next thing to do."""
    from ..training.source import TRAIN

    console = Console()
    last = [row for row in outcome.rows if row["kind"] == "evaluation"][-1]
    training = [row for row in outcome.rows if row["kind"] == "training"]
    table = Table(box=SIMPLE_HEAD, padding=(0, 1))
    own = task.recipe.task.name != "classify" and task.recipe.data.val in TRAIN
    table.add_column("training pictures" if own else "held-out pictures")
    for column in ("epoch", *task.columns.values()):
        table.add_column(column, justify="right")
    few = len(outcome.classes) <= 5
    table.add_row("last weights", str(last["epoch"]), *_numbers(task, last, "", few=few))
    if f"ema_{task.judged}" in last:
        table.add_row("their average", str(last["epoch"]), *_numbers(task, last, "ema_", few=few))
    which = "best average" if outcome.best["weights"] == "average" else "best weights"
    table.add_row(which, str(outcome.best["epoch"]), *_numbers(task, outcome.best, "", few=few))
    console.print(table)
    busy = sum(row["waiting"] for row in training) / len(training)
    speed = sorted(row["pictures_per_second"] for row in training)[len(training) // 2]
    console.print(
        f"{_time(last['seconds'])} of training, {speed:,.0f} pictures/s, {busy:.1%} of the time waiting for pictures.",
        highlight=False,
        soft_wrap=True,
    )
    note = "The best were chosen by these very pictures: 'last weights' is the honest number."
    if own:
        note = "Scored on the pictures that it learned from: it shows that they can be learned, and nothing else."
    console.print(note, highlight=False, soft_wrap=True)
    if outcome.bad:
        console.print(f"{len(outcome.bad)} pictures or entries were left out:", highlight=False)
        for text in outcome.bad:
            console.print(f"  {text}", highlight=False, soft_wrap=True, markup=False)
    names = ", ".join(path.name for path in written)
    console.print(f"Written: {outcome.folder}: best.safetensors, metrics.csv, {names}", highlight=False, soft_wrap=True)
    analyze = f", inline analyze report {outcome.folder}" if task.recipe.task.name == "classify" else ""
    console.print(
        f"Next: inline eval {outcome.folder}, inline predict PICTURE --model {outcome.folder}{analyze}",
        highlight=False,
        soft_wrap=True,
    )


def _numbers(task: "Task", row: dict[str, Any], prefix: str, *, few: bool) -> list[str]:
    """Of the task's columns; of five classes or fewer, the top five say nothing."""
    return [
        "-" if name == "top5" and few else number(row[f"{prefix}{name}"], 3 if name == "loss" else 2) for name in task.columns
    ]
