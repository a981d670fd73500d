"""`inline eval` of detectors and segmenters."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .report import number
from .scoring import folder_of, score, tell_rest, write

if TYPE_CHECKING:
    from ..tasks.dense_model import DenseModel
    from ..training.evaluate import Score
    from ..training.source import Source
    from .eval import Eval

BATCH = 4
SIZES = ("small", "medium", "large")


def evaluate_dense(asked: "Eval") -> None:
    """Load, look at every picture once, tell."""
    from ..tasks.dense_model import load_dense

    for name in ("view", "size", "crop", "root"):
        if getattr(asked, name) is not None:
            raise ValueError(f"--{name} is for models that classify: leave it out")
    if asked.ema:
        raise ValueError("--ema is for files that hold both kinds of weights: a run's best weights are one of them")
    dense = load_dense(str(asked.weights or asked.model), asked.inference, asked.side)
    source, name = _held_out(dense, asked)
    out = folder_of(asked)
    found = score(asked, dense.task, dense.model, source, out, BATCH)
    if found is None:
        return
    facts = {
        "model": dense.name, "weights": str(asked.weights or asked.model), "task": asdict(dense.task.recipe.task), "data": name,
    }  # fmt: skip
    bad = (*source.bad, *found.bad)
    text = write(out, facts, found, dense.classes, bad, "pixels")
    if asked.json:
        print(text)
        return
    console = Console()
    console.print(f"{dense.name}, {dense.task.head}, on {name}: {dense.said}", highlight=False, soft_wrap=True, markup=False)
    console.print(_table(dense, found))
    tell_rest(console, found, dense.classes, out, own=asked.data is None, bad=bad)


def _held_out(dense: "DenseModel", asked: "Eval") -> tuple["Source", str]:
    """The run's own pictures, or those of another folder, labelled with the model's classes."""
    from ..tasks import make_task
    from ..tasks.dense_task import DenseTask
    from ..training.run_folder import RunFolder

    if asked.data is None:
        if not Path(asked.model).is_dir():
            raise ValueError(f"{asked.model} does not say which pictures: --data DIR")
        if asked.split != type(asked).split:
            raise ValueError(f"--split {asked.split} is of other pictures: give them by --data DIR")
        recipe = RunFolder(Path(asked.model)).recipe()
        recipe = replace(recipe, data=replace(recipe.data, skip_bad=asked.skip_bad or recipe.data.skip_bad))
        return make_task(recipe).open(), recipe.data.source
    recipe = dense.task.recipe
    data = replace(recipe.data, source=asked.data, val=asked.split, skip_bad=asked.skip_bad)
    task = make_task(replace(recipe, data=data))
    assert isinstance(task, DenseTask)
    return task.open_other(dense.classes), asked.data


def _table(dense: "DenseModel", found: "Score") -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1))
    speed = f"{found.pictures_per_second:,.1f}"
    if dense.task.recipe.task.name == "detect":
        for column in ("of", "AP", "AP50", "AP75", *SIZES, "pictures", "pictures/s"):
            table.add_column(column, justify="left" if column == "of" else "right")
        for kind, label in (("box", "boxes"), ("mask", "masks")):
            names = ("ap", "ap50", "ap75", *(f"ap_{size}" for size in SIZES))
            told = [number(found.numbers[f"{kind}_{name}"]) for name in names]
            table.add_row(label, *told, f"{found.pictures:,}", speed)
        return table
    for column in (*dense.task.columns.values(), "pictures", "pictures/s"):
        table.add_column(column, justify="right")
    told = [number(found.numbers[name], 3 if name == "loss" else 2) for name in dense.task.columns]
    table.add_row(*told, f"{found.pictures:,}", speed)
    return table
