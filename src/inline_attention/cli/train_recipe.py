"""Which recipe `inline train` starts from, and its help: the options that a beginner needs, a section, or all of them."""

from dataclasses import dataclass, fields, make_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from ..data.config import DataConfig, Target
from ..training.config import Recipe, nearest
from ..training.recipe import absolute_file, absolute_source, load
from .arguments import explain, silent_tyro, unset_values
from .train import Train, TrainOptions, newest_run

if TYPE_CHECKING:
    from ..data.sources import Source

DENSE = {"detect": "detect_small", "segment": "segment_small", "bags": "bags", "slides": "slides"}
"""Recipes of tasks for which the images do not decide the recipe."""
SEGMENT_LARGE = "segment_large"
SECTIONS = [entry.name for entry in fields(Recipe)]


@dataclass(frozen=True)
class EarlyOptions:
    """The options that decide the defaults of the others. tyro parses them first, and leaves the rest."""

    task: str | None = None
    large: bool = False
    task_name: Annotated[str | None, tyro.conf.arg(name="task.name")] = None
    recipe: str | None = None
    resume: bool = False
    out: Path | None = None
    data: str | None = None
    labels: Annotated[str | None, tyro.conf.arg(aliases=["--data.labels"])] = None
    columns: Annotated[tuple[str, ...], tyro.conf.arg(name="data.columns")] = ()
    target: Annotated[Target, tyro.conf.arg(name="task.target")] = "auto"
    source: Annotated[str | None, tyro.conf.arg(name="data.source")] = None
    root: Annotated[str | None, tyro.conf.arg(name="data.root")] = None
    train: Annotated[str | None, tyro.conf.arg(name="data.train")] = None
    val: Annotated[str | None, tyro.conf.arg(name="data.val")] = None
    limit: Annotated[int, tyro.conf.arg(name="data.limit")] = 0
    images: Annotated[str, tyro.conf.arg(name="data.images")] = ""
    masks: Annotated[str, tyro.conf.arg(name="data.masks")] = ""
    ignore: Annotated[tuple[int, ...], tyro.conf.arg(name="data.ignore")] = ()
    class_name: Annotated[str, tyro.conf.arg(name="data.class-name")] = DataConfig.class_name
    skip_bad: Annotated[bool, tyro.conf.arg(aliases=["--data.skip-bad"])] = False
    size: Annotated[tuple[int, int] | None, tyro.conf.arg(name="data.size")] = None
    epochs: Annotated[int | None, tyro.conf.arg(name="schedule.epochs")] = None
    steps: Annotated[int | None, tyro.conf.arg(name="schedule.steps")] = None
    help: Annotated[bool, tyro.conf.arg(aliases=["-h", "--help-all"])] = False


@dataclass(frozen=True)
class BeginnerOptions(TrainOptions):
    """What `inline train --help` shows: TrainOptions, and the fields of the recipe that are changed most often."""

    model: Annotated[str, tyro.conf.arg(name="model.name")] = ""
    """Any model of timm's by name; `inline list` shows this package's."""
    epochs: Annotated[int, tyro.conf.arg(name="schedule.epochs")] = 0
    """Passes over the training images."""
    batch: Annotated[int, tyro.conf.arg(name="optim.batch")] = 0
    """Images per step, over all processes together."""
    lr: Annotated[float, tyro.conf.arg(name="optim.lr")] = 0.0
    """Learning rate for optim.rate-batch images; it grows in proportion to the batch."""
    size: Annotated[tuple[int, int], tyro.conf.arg(name="data.size")] = (0, 0)
    """Height and width that images are resized to."""


def early_options(words: list[str]) -> EarlyOptions:
    """The first stage of parsing."""
    try:
        early, _ = silent_tyro(EarlyOptions, args=words, return_unknown_args=True, add_help=False)
    except SystemExit as stop:
        raise ValueError(explain(words, Train, "train")) from stop
    return early


def starting_recipe(early: EarlyOptions) -> "tuple[str | None, Recipe, tuple[DataConfig, Source] | None]":
    """The recipe that is asked for, that of the run that goes on, or one that suits the data.

    With it the name of a recipe that was chosen by the data, and the images if that took opening them.
    """
    name, opened = None, None
    if early.resume:
        from ..training.run_folder import RunFolder

        if early.recipe is not None:
            raise ValueError(f"--resume goes on with the run's own recipe: leave out --recipe {early.recipe}")
        recipe = RunFolder(early.out or newest_run(unfinished=True)).recipe()
    elif early.recipe is not None:
        recipe = load(early.recipe)
    else:
        name, recipe, opened = _suiting(early)
    source = absolute_source(early.data or early.source or recipe.data.source)
    labels = early.labels or recipe.data.labels
    schedule = recipe.schedule
    if early.epochs is not None and 0 <= early.epochs < schedule.warmup:
        schedule = replace(schedule, warmup=0)
    if early.steps is not None and early.steps >= 0:
        schedule = replace(schedule, warmup=0, warmup_steps=early.steps // 20)
    data = replace(recipe.data, source=source, labels=absolute_file(labels))
    return name, replace(recipe, data=data, schedule=schedule), opened


def _suiting(early: EarlyOptions) -> "tuple[str, Recipe, tuple[DataConfig, Source] | None]":
    """Name and recipe for the data, and the images if it took opening them; the digits' if no data is given."""
    usual_task = "slides" if early.large else "bags" if early.labels else "classify"
    source, task = early.data or early.source, early.task or early.task_name or usual_task
    if early.large and task not in ("slides", "segment"):
        raise ValueError(f"--large is for slides with --labels and for --task segment, got --task {task}")
    if early.large and task == "segment":
        return SEGMENT_LARGE, *_suiting_dense(early, task, source, SEGMENT_LARGE)
    if task in DENSE:
        return DENSE[task], *_suiting_dense(early, task, source)
    if source is None:
        return "digits", load("digits"), None
    from ..data.sources import open_source
    from ..training.chosen_recipe import choose_recipe, looks_dense

    if suited := looks_dense(Path(source)):
        needs = " --labels FILE.csv" if suited[0] == "bags" else ""
        raise ValueError(f"{source} has {suited[1]}, not class folders: --task {suited[0]}{needs}")
    usual = DataConfig(source=absolute_source(source), root=early.root)
    data = replace(usual, train=early.train or usual.train, val=early.val or usual.val)
    opened = open_source(data)
    return *choose_recipe(source, opened), (data, opened)


def _suiting_dense(
    early: EarlyOptions, task: str, source: str | None, name: str | None = None
) -> "tuple[Recipe, tuple[DataConfig, Source] | None]":
    """The small recipe of a task, or the one of this name, fitted to the images or slides, and these."""
    recipe = load(name or DENSE[task])
    if early.help:
        return recipe, None
    if source is None:
        raise ValueError(f"--task {task} needs {'tile features' if task == 'bags' else 'images'}: --data DIR")
    from ..training.dense_recipe import fit_recipe
    from ..training.task import make_task

    names = ("limit", "images", "masks", "ignore", "class_name", "skip_bad", "columns")
    given: dict[str, Any] = {name: getattr(early, name) for name in names}
    given["labels"] = absolute_file(early.labels or "")
    data = replace(recipe.data, source=absolute_source(source), val=early.val or recipe.data.val, **given)
    recipe = replace(recipe, task=replace(recipe.task, target=early.target))
    opened = make_task(replace(recipe, data=data)).open()
    return fit_recipe(recipe, opened, early.size), (data, opened)


def print_help(default: Train, words: list[str]) -> None:
    """Print what --help, --help SECTION or --help-all asks for, with the defaults of the recipe."""
    recipe = default.settings
    shown: Any
    if "--help-all" in words:
        shown, about = default, "Train a model on images. All options, with the defaults of the recipe."
    elif section := _section(words):
        part = getattr(recipe, section)
        shown = make_dataclass("Section", [(section, type(part))], frozen=True)(part)
        about = f"Options of the recipe's section {section}."
    else:
        own = {entry.name: getattr(default, entry.name) for entry in fields(TrainOptions)}
        shown = BeginnerOptions(
            **own, model=recipe.model.name, epochs=recipe.schedule.epochs, batch=recipe.optim.batch, lr=recipe.optim.lr,
            size=recipe.data.size,
        )  # fmt: skip
        sections = ", ".join(SECTIONS)
        about = f"{Train.__doc__}\n\n--help-all prints all options, --help SECTION those of a section: {sections}."
    with unset_values():
        tyro.cli(type(shown), prog="inline train", description=about, default=shown, args=["--help"])


def _section(words: list[str]) -> str | None:
    """The word after --help or -h, which must be a section of the recipe; None if there is none."""
    after: list[str] = next((words[place + 1 :][:1] for place, word in enumerate(words) if word in ("-h", "--help")), [])
    if not after or after[0].startswith("-"):
        return None
    if after[0] not in SECTIONS:
        raise ValueError(f"unknown section {after[0]}{nearest(after[0], SECTIONS)}; there are: {', '.join(SECTIONS)}")
    return after[0]
