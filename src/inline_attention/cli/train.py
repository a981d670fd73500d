"""`inline train`: from pictures to weights and an accuracy."""

import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from ..training.recipe import Recipe, load
from .arguments import prepare_folder

if TYPE_CHECKING:
    from ..training.task import Task
    from ..training.train import Outcome

DENSE = {"detect": "detect_small", "segment": "segment_small"}
"""Recipes of tasks whose pictures do not tell which one suits them."""
PEEKED = (
    "task", "task.name", "recipe", "data", "out", "data.source", "data.root", "data.train", "data.val", "schedule.epochs",
    "schedule.steps",
)  # fmt: skip
"""Options that other options' defaults hang on."""
RUNS = Path("runs")
"""Where runs are kept if nothing else is said."""


@dataclass(frozen=True)
class Train:
    """Train a model on pictures; without arguments, a small one on scikit-learn's digits, in a minute."""

    task: Literal["classify", "detect", "segment"] | None = None
    """What to learn: classes of pictures, objects with boxes and masks, or classes of pixels. Short for --task.name."""
    recipe: str | None = None
    """A recipe of the package, by name, or a TOML file; unset: one that suits the data. The options below are its fields."""
    data: str | None = None
    """Pictures: a folder of class folders, or, to detect and segment, one as in docs/dense.md; short for --data.source."""
    out: Path | None = None
    """Folder of the run; unset: a new one under runs/."""
    resume: bool = False
    """Go on with the run in --out, or with the newest under runs/."""
    dry_run: bool = False
    """Only tell the recipe, the steps, the parameters, and what memory and time they will take."""
    seed: int | None = None
    """Short for --run.seed."""
    skip_bad: bool = False
    """Short for --data.skip-bad."""
    device: str = "auto"
    """auto, cpu or the accelerator that is there."""
    json: bool = False
    """Print the result as JSON; what happens meanwhile goes to the error output."""
    settings: Annotated[Recipe, tyro.conf.arg(name="")] = field(default_factory=Recipe)

    def run(self) -> None:
        """Train, or tell what training would be."""
        from ..tasks import make_task
        from ..training import recipe as recipes

        recipe = self.settings
        if self.task not in (None, recipe.task.name):
            raise ValueError(f"--task {self.task}: the recipe is one to {recipe.task.name} by; leave out one of the two")
        if self.seed is not None:
            recipe = replace(recipe, run=replace(recipe.run, seed=self.seed))
        if self.skip_bad:
            recipe = replace(recipe, data=replace(recipe.data, skip_bad=True))
        recipes.check(recipe)
        task = make_task(recipe)
        if self.dry_run:
            from .dry_run import tell

            tell(task, self.device, as_json=self.json)
            return
        out = self._folder(f"{Path(recipe.data.source).name or 'data'}-{recipe.model.name}")
        from ..training.train import train
        from .report import TrainingReport

        main = int(os.environ.get("RANK", "0")) == 0
        report = TrainingReport(task.columns, silent=not main)
        by = "" if self.resume else f" by the recipe {self.recipe or 'digits'}"
        report.say(f"{recipe.model.name} on {recipe.data.source}{by}, into {out}")
        with interruptible() as wanted, report, _tidy(out):
            outcome = train(task, out, resume=self.resume, report=report, stop=lambda: bool(wanted), device=self.device)
        if main:
            self._finish(outcome, task)

    def _folder(self, name: str) -> Path:
        """The folder of the run: asked for, the newest, or a new one."""
        if self.resume:
            out = self.out or newest_run()
            if (out / "lesson.json").is_file():
                raise ValueError(f"{out} was made by inline linearize: go on by `inline linearize --out {out} --resume`")
            return out
        if self.out is not None:
            if (self.out / "recipe.toml").exists() and int(os.environ.get("RANK", "0")) == 0:
                raise ValueError(f"{self.out} holds a run: go on with --resume, or choose another --out")
            prepare_folder(self.out)
            return self.out
        if "RANK" in os.environ:
            raise ValueError("several processes need --out, so that they agree on the folder")
        numbers = iter(range(1, 1_000_000))
        folders = (RUNS / (name if number == 1 else f"{name}-{number}") for number in numbers)
        out = next(folder for folder in folders if not (folder / "recipe.toml").exists())
        prepare_folder(out)
        return out

    def _finish(self, outcome: "Outcome", task: "Task") -> None:
        """Draw, and say what was reached and how to go on."""
        from ..training.plots import draw_confusion, draw_curve
        from .attention import draw_attention
        from .report import print_result

        out, recipe = outcome.folder, task.recipe
        written = [draw_curve(outcome.rows, task, out / "curve.png")]
        if not outcome.finished:
            print(f"Stopped and saved. Go on: inline train --out {shlex.quote(str(out))} --resume", file=sys.stderr)
            sys.exit(130)
        if outcome.best.get("confusion"):
            what = "pictures" if recipe.task.name == "classify" else "pixels"
            written.append(draw_confusion(outcome.best["confusion"], outcome.classes, out / "confusion.png", what))
        if recipe.task.name == "classify":
            drawn = draw_attention(out, recipe)
        else:
            from .dense_pictures import draw_held_out

            drawn = draw_held_out(out)
        if drawn:
            written.append(drawn)
        if self.json:
            last = [row for row in outcome.rows if row["kind"] == "evaluation"][-1]
            best = {key: value for key, value in outcome.best.items() if key not in ("confusion", "per_class", "pictures")}
            print(json.dumps({"run": str(out), "last": last, "best": best, "bad": outcome.bad}, indent=1))
            return
        print_result(outcome, task, written)


def begin(arguments: list[str]) -> Train:
    """The defaults of `inline train`: those of the recipe that is asked for, or of the run that goes on."""
    if arguments[:1] != ["train"]:
        return Train()
    recipe = None
    asked = {name: _peek(arguments, f"--{name}") for name in PEEKED}
    asked["help"] = next((word for word in arguments if word in ("-h", "--help")), None)
    if "--resume" in arguments:
        from ..training.run_folder import RunFolder

        if asked["recipe"]:
            raise ValueError(f"--resume goes on with the run's own recipe: leave out --recipe {asked['recipe']}")
        settings = RunFolder(Path(asked["out"]) if asked["out"] else newest_run()).recipe()
    elif asked["recipe"]:
        settings = load(asked["recipe"])
    else:
        recipe, settings = _suiting(asked)
    source = asked["data"] or asked["data.source"] or settings.data.source
    if Path(source).exists():
        source = str(Path(source).resolve())  # a run is used from other folders, too
    schedule, epochs = settings.schedule, asked["schedule.epochs"]
    if epochs and epochs.isdigit() and int(epochs) < schedule.warmup:
        schedule = replace(schedule, warmup=0)
    if asked["schedule.steps"] and asked["schedule.steps"].isdigit():
        schedule = replace(schedule, warmup=0, warmup_steps=int(asked["schedule.steps"]) // 20)
    return Train(recipe=recipe, settings=replace(settings, data=replace(settings.data, source=source), schedule=schedule))


def _suiting(asked: dict[str, str | None]) -> tuple[str, Recipe]:
    """A recipe for the data, and its name; the digits' if nothing is said."""
    source, task = asked["data"] or asked["data.source"], asked["task"] or asked["task.name"] or "classify"
    if task in DENSE:
        if source is None and not asked["help"]:
            raise ValueError(f"--task {task} needs pictures: --data DIR")
        return DENSE[task], load(DENSE[task])
    if source is None:
        return "digits", load("digits")
    if suited := _looks_dense(Path(source)):
        raise ValueError(f"{source} has {suited[1]}, not class folders: --task {suited[0]}")
    from ..training.choose import suiting
    from ..training.recipe import DataPart

    usual = DataPart(source=source, root=asked["data.root"])
    return suiting(replace(usual, train=asked["data.train"] or usual.train, val=asked["data.val"] or usual.val))


def _looks_dense(root: Path) -> tuple[str, str] | None:
    """The task that a folder suits, and what shows it, if that is another than classification."""
    for task, pattern in (
        ("detect", "annotations/instances_*.json"),
        ("detect", "train/_annotations.coco.json"),
        ("segment", "annotations/trimaps"),
        ("segment", "annotations/training"),
        ("segment", "SegmentationClass"),
    ):
        if root.is_dir() and any(root.glob(pattern)):
            return task, pattern
    both = (root / "images").is_dir() and any((root / name).is_dir() for name in ("masks", "labels"))
    return ("segment", "images/ and masks/") if both else None


def _peek(arguments: list[str], option: str) -> str | None:
    """The value of an option (the last one, as the parser has it), before the options are parsed whose defaults hang on it."""
    found = None
    for place, word in enumerate(arguments):
        if word == option and place + 1 < len(arguments):
            found = arguments[place + 1]
        elif word.startswith(f"{option}="):
            found = word.partition("=")[2]
    return found


def newest_run() -> Path:
    """The run under runs/ that was written to last."""
    found = sorted(RUNS.glob("*/recipe.toml"), key=lambda file: max(f.stat().st_mtime for f in file.parent.iterdir()))
    if not found:
        raise ValueError(f"there is no run under {RUNS.resolve()}: `inline train` makes one, --out names one elsewhere")
    return found[-1].parent


@contextmanager
def _tidy(out: Path) -> Iterator[None]:
    """Take the folder away again if nothing came into it."""
    try:
        yield
    finally:
        with suppress(OSError):
            out.rmdir()  # which takes empty folders only


@contextmanager
def interruptible() -> Iterator[list[Any]]:
    """Ctrl-C and the end of a cluster's time are wishes to stop; a second Ctrl-C stops at once."""
    wanted: list[Any] = []

    def wish(number: int, _: Any) -> None:
        if wanted and number == signal.SIGINT:
            raise KeyboardInterrupt
        wanted.append(number)

    before = {number: signal.signal(number, wish) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield wanted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
