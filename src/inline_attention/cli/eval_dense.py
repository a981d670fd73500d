"""`inline eval` of detectors and segmenters."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .eval import Eval, eval_folder, print_rest, score, write_score
from .train_report import number

if TYPE_CHECKING:
    from ..training.dense_task import DenseModel
    from ..training.task import Score

SIZES = ("small", "medium", "large")


def evaluate_dense(options: Eval) -> None:
    """Load the model, evaluate it on every image once, print and write the result."""
    from ..training.dense_task import dense_validation_set, load_dense

    for name in ("crop_mode", "size", "crop", "root"):
        if getattr(options, name) is not None:
            raise ValueError(f"--{name.replace('_', '-')} is for models that classify: leave it out")
    if options.ema:
        raise ValueError("--ema is for files that hold both kinds of weights: a run's best weights are one of them")
    dense = load_dense(str(options.weights or options.model), options.inference, options.side)
    if options.data is None and Path(options.model).is_dir() and options.split != type(options).split:
        raise ValueError(f"--split {options.split} is of other images: give them by --data DIR")
    source, name = dense_validation_set(dense, options.model, options.data, options.split, skip_bad=options.skip_bad)
    out = eval_folder(options)
    found = score(options, dense.task, dense.model, source, out)
    if found is None:
        return
    facts = {
        "model": dense.name, "weights": str(options.weights or options.model), "task": asdict(dense.task.recipe.task),
        "data": name,
    }  # fmt: skip
    bad = (*source.bad, *found.bad)
    text = write_score(out, facts, found, dense.classes, bad, "pixels")
    if options.json:
        print(text)
        return
    console = Console()
    console.print(f"{dense.name}, {dense.task.head}, on {name}: {dense.loaded}", highlight=False, soft_wrap=True, markup=False)
    console.print(_table(dense, found))
    print_rest(console, found, dense.classes, out, chosen_by_these=options.data is None, bad=bad)


def _table(dense: "DenseModel", found: "Score") -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1))
    speed = f"{found.images_per_second:,.1f}"
    if dense.task.recipe.task.name == "detect":
        for column in ("of", "AP", "AP50", "AP75", *SIZES, "images", "images/s"):
            table.add_column(column, justify="left" if column == "of" else "right")
        for kind, label in (("box", "boxes"), ("mask", "masks")):
            names = ("ap", "ap50", "ap75", *(f"ap_{size}" for size in SIZES))
            numbers = [number(found.metrics[f"{kind}_{name}"]) for name in names]
            table.add_row(label, *numbers, f"{found.images:,}", speed)
        return table
    for column in (*dense.task.columns.values(), "images", "images/s"):
        table.add_column(column, justify="right")
    numbers = [number(found.metrics[name], 3 if name == "loss" else 2) for name in dense.task.columns]
    table.add_row(*numbers, f"{found.images:,}", speed)
    return table
