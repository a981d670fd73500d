"""`inline train`: train a model on images."""

import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from ..training.config import RUNS, Recipe
from .arguments import parse, prepare_folder

if TYPE_CHECKING:
    from ..data.config import DataConfig
    from ..data.sources import Source
    from ..training.run import TrainingResult
    from ..training.task import Task


@dataclass(frozen=True)
class TrainOptions:
    """The options of `inline train` that are not fields of the recipe."""

    task: Literal["classify", "detect", "segment", "bags", "slides"] | None = None
    """What to learn: classes of images, objects with boxes and masks, classes of pixels, or slides from bags of tile features
    or from their whole images. Short for --task.name."""
    large: bool = False
    """Learn from whole images of any size, read by rows: slides with --labels, or --task segment with masks as large. See
    docs/large_training.md."""
    recipe: str | None = None
    """A recipe of the package, by name, or a TOML file; unset: one that suits the data."""
    data: str | None = None
    """Images: a folder of class folders, or, to detect and segment, one as in docs/dense.md; or a folder of tile features.
    Short for --data.source."""
    labels: str | None = None
    """A CSV with the labels of slides, whose tile features are in --data: see docs/bags.md. Short for --data.labels."""
    out: Path | None = None
    """Folder of the run; unset: a new one under runs/."""
    resume: bool = False
    """Go on with the run in --out, or with the newest under runs/."""
    dry_run: bool = False
    """Train nothing: print the recipe, the steps, the parameters, and the memory and time that training will take."""
    seed: int | None = None
    """Seed of weights, order and augmentation. Short for --run.seed."""
    skip_bad: bool = False
    """Leave out images that cannot be read, and list them at the end, instead of stopping. Short for --data.skip-bad."""
    device: str = "auto"
    """auto, cpu or the accelerator that is there."""
    json: bool = False
    """Print the result as JSON. Progress goes to the error output."""


@dataclass(frozen=True)
class Train(TrainOptions):
    """Train a model on images; without arguments, a small one on scikit-learn's digits, in a minute."""

    settings: Annotated[Recipe, tyro.conf.arg(name="")] = field(default_factory=Recipe)
    opened: Annotated[Any, tyro.conf.Suppress] = field(default=None, init=False)
    """Not an option: the images that were opened to choose the recipe, so that they are opened once; a DataConfig, a Source."""

    @classmethod
    def from_words(cls, words: list[str]) -> "Train":
        """Parse the words after `inline train`. The recipe comes first: it decides the defaults of the other options."""
        from .train_recipe import early_options, print_help, starting_recipe

        early = early_options(words)
        name, recipe, opened = starting_recipe(early)
        default = cls(recipe=name, settings=recipe)
        if early.help:
            print_help(default, words)
            sys.exit(0)
        parsed = parse(cls, words, "train", default)
        object.__setattr__(parsed, "opened", opened)  # a frozen dataclass, from tyro
        return parsed

    def run(self) -> None:
        """Train, or print what training would be."""
        from ..training.recipe import check
        from ..training.task import make_task

        recipe = self.settings
        if self.task not in (None, recipe.task.name):
            raise ValueError(f"--task {self.task}: the recipe is for --task {recipe.task.name}; leave out one of the two")
        if self.large and not (recipe.task.name == "slides" or recipe.task.large):
            raise ValueError("--large is for whole images by rows, and the recipe is not: leave out one of the two")
        if self.seed is not None:
            recipe = replace(recipe, run=replace(recipe.run, seed=self.seed))
        if self.skip_bad:
            recipe = replace(recipe, data=replace(recipe.data, skip_bad=True))
        check(recipe)
        task, source = make_task(recipe), self._opened_source(recipe.data)
        if self.dry_run:
            from .train_report import print_dry_run

            name = f"of {self.out or newest_run(unfinished=True)}" if self.resume else self.recipe or "digits"
            print_dry_run(task, self.device, source, name, as_json=self.json)
            return
        out = self._folder(recipe)
        from ..training.run import run_training
        from .train_report import TrainingReport

        is_main = int(os.environ.get("RANK", "0")) == 0
        with stop_signals() as stop, _remove_if_empty(out):
            source = task.open() if source is None else source
            task = task.suited_to(source)
            by = "" if self.resume else f" by the recipe {self.recipe or 'digits'}"
            with TrainingReport(task.columns, silent=not is_main) as report:
                report.message(f"{recipe.model.name} on {recipe.data.source}{by}, into {out}")
                outcome = run_training(
                    task, out, source=source, resume=self.resume, reporter=report, stop=stop.is_set, device=self.device
                )
        if is_main:
            self._finish(outcome, task)

    def _opened_source(self, data: "DataConfig") -> "Source | None":
        """The images that were opened to choose the recipe, if the recipe's options do not ask for others."""
        if self.opened is None:
            return None
        from ..data.sources import same_images

        source: Source = self.opened[1]
        return source if same_images(self.opened[0], data) else None

    def _folder(self, recipe: Recipe) -> Path:
        """The folder of the run: --out, the newest, or a new one."""
        from ..training.folder_lock import lock_folder

        if self.resume:
            from .linearize import options_file

            out = self.out or newest_run(unfinished=True)
            if options_file(out).is_file():
                raise ValueError(f"{out} was made by inline linearize: go on by `inline linearize --out {out} --resume`")
            return out
        if self.out is not None:
            if (self.out / "recipe.toml").exists() and int(os.environ.get("RANK", "0")) == 0:
                with lock_folder(self.out):  # if a process writes into it, that is the error
                    raise ValueError(f"{self.out} holds a run: go on with --resume, or choose another --out")
            prepare_folder(self.out)
            return self.out
        if "RANK" in os.environ:
            raise ValueError("several processes need --out, so that they agree on the folder")
        from ..training.run_folder import new_run_folder

        out = new_run_folder(recipe)
        prepare_folder(out)
        return out

    def _finish(self, outcome: "TrainingResult", task: "Task") -> None:
        """Draw the curves, print the result and what to do next."""
        from ..training.plots import draw_confusion, draw_curve
        from .bags import draw_bags
        from .drawings import draw_attention, draw_predictions
        from .train_report import print_result

        out, recipe = outcome.folder, task.recipe
        written = [draw_curve(outcome.rows, task, out / "curve.png")]
        if not outcome.finished:
            print(f"Stopped and saved. Go on: inline train --out {shlex.quote(str(out))} --resume", file=sys.stderr)
            sys.exit(130)
        if outcome.best.get("confusion"):
            unit = {"classify": "images", "bags": "slides", "slides": "slides"}.get(recipe.task.name, "pixels")
            written.append(draw_confusion(outcome.best["confusion"], outcome.classes, out / "confusion.png", unit))
        draw = {"classify": draw_attention, "bags": draw_bags}.get(recipe.task.name, draw_predictions)
        in_parts = recipe.task.name == "slides" or recipe.task.large
        if not in_parts and (drawn := draw(out, outcome.source)):
            written.append(drawn)
        if self.json:
            last = [row for row in outcome.rows if row["kind"] == "evaluation"][-1]
            best = {key: value for key, value in outcome.best.items() if key not in ("confusion", "per_class", "images")}
            print(
                json.dumps({"run": str(out), **outcome.source.scored, "last": last, "best": best, "bad": outcome.bad}, indent=1)
            )
            return
        print_result(outcome, task, written)


def newest_run(*, unfinished: bool = False) -> Path:
    """The run under runs/ that was trained last; with `unfinished`, the last one that was stopped, if there is any."""

    def trained_at(recipe: Path) -> float:
        # not the newest file of all: an evaluation or a drawing does not make a run newer
        return max(file.stat().st_mtime for file in (recipe, recipe.with_name("metrics.jsonl")) if file.exists())

    found = sorted(RUNS.glob("*/recipe.toml"), key=trained_at)
    stopped = [file for file in found if not (file.parent / "result.json").exists()]
    found = stopped if unfinished and stopped else found
    if not found:
        raise ValueError(f"there is no run under {RUNS.resolve()}: `inline train` makes one, --out names one elsewhere")
    return found[-1].parent


@contextmanager
def _remove_if_empty(out: Path) -> Iterator[None]:
    """Remove the folder again if nothing was written to it."""
    try:
        yield
    finally:
        with suppress(OSError):
            out.rmdir()  # fails on folders that are not empty


@contextmanager
def stop_signals() -> Iterator[Event]:
    """An event that Ctrl-C and SIGTERM, such as at the end of a cluster's time, set; a second Ctrl-C stops at once."""
    stop = Event()

    def request(number: int, _: Any) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
