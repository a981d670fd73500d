"""`inline eval` of detectors and segmenters."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .arguments import prepare_folder
from .report import number

if TYPE_CHECKING:
    from ..tasks.dense_model import DenseModel
    from ..training.evaluate import Score
    from .eval import Eval

SHOWN = 10
"""Classes that the table shows: the hardest."""
SIZES = ("small", "medium", "large")


def evaluate_dense(asked: "Eval") -> None:
    """Load, look at every picture once, tell."""
    from ..tasks.dense_model import load_dense
    from ..training.evaluate import evaluate
    from ..training.launch import make_accelerator
    from ..training.loader import evaluation_batches, worker_count
    from ..training.plots import draw_confusion
    from ..training.source import Source
    from .progress import counter

    for name in ("view", "size", "crop", "root"):
        if getattr(asked, name) is not None:
            raise ValueError(f"--{name} is for models that classify: leave it out")
    dense = load_dense(str(asked.weights or asked.model), asked.inference)
    pictures, source = _held_out(dense, asked)
    name = "eval" if asked.data is None else f"eval-{Path(asked.data).name}"
    out = asked.out or (Path(asked.model) / name if Path(asked.model).is_dir() else Path(name))
    task, data = dense.task, dense.task.recipe.data
    accelerator = make_accelerator(task.recipe.run, asked.device, [], out)
    if accelerator.is_main_process:
        prepare_folder(out)
    batches = evaluation_batches(
        pictures,
        task.show(training=False),
        asked.batch,
        rank=accelerator.process_index,
        processes=accelerator.num_processes,
        channels=data.channels,
        workers=worker_count(asked.workers, accelerator.num_processes, len(pictures)),
    )
    model = dense.model.to(accelerator.device)
    meter = task.meter(Source(pictures, pictures, dense.classes), accelerator)
    with counter("evaluating", len(pictures), Console(stderr=True, quiet=not accelerator.is_main_process)) as progress:
        score = evaluate(model, batches, meter, accelerator, skip_bad=asked.skip_bad, progress=progress)
    accelerator.end_training()
    if not accelerator.is_main_process:
        return
    facts = {
        "model": dense.name, "weights": str(asked.weights or asked.model), "task": asdict(task.recipe.task), "data": source,
        **score.numbers, **score.details, "pictures": score.pictures, "pictures_per_second": score.pictures_per_second,
        "bad": score.bad, "classes": dense.classes,
    }  # fmt: skip
    text = "{\n" + ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in facts.items()) + "\n}"
    (out / "eval.json").write_text(text + "\n")
    written = ["eval.json"]
    if "confusion" in score.details:
        draw_confusion(score.details["confusion"], dense.classes, out / "confusion.png", "pixels")
        written.append("confusion.png")
    if asked.json:
        print(text)
    else:
        _print(dense, score, source, f"{out}/{', '.join(written)}", own=asked.data is None)


def _held_out(dense: "DenseModel", asked: "Eval") -> tuple[Any, str]:
    """The run's own pictures, or those of another folder, labelled with the model's classes."""
    from ..tasks import make_task
    from ..training.run_folder import RunFolder

    if asked.data is None:
        if not Path(asked.model).is_dir():
            raise ValueError(f"{asked.model} does not say which pictures: --data DIR")
        recipe = RunFolder(Path(asked.model)).recipe()
    else:
        recipe = dense.task.recipe
        recipe = replace(recipe, data=replace(recipe.data, source=asked.data, val=asked.split, limit=0))
    recipe = replace(recipe, data=replace(recipe.data, skip_bad=asked.skip_bad or recipe.data.skip_bad))
    source = make_task(recipe).open()
    if source.classes != dense.classes:
        other = [name for name in source.classes if name not in dense.classes]
        told = f"a class {other[0]!r}" if other else f"{len(source.classes)} classes"
        raise ValueError(f"{recipe.data.source} has {told}, and {asked.model} knows {', '.join(dense.classes)}"[:300])
    return source.val, recipe.data.source


def _print(dense: "DenseModel", score: "Score", source: str, written: str, *, own: bool) -> None:
    console = Console()
    console.print(f"{dense.name}, {dense.task.head}, on {source}: {dense.said}", highlight=False, soft_wrap=True, markup=False)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1))
    speed = f"{score.pictures_per_second:,.1f}"
    if dense.task.recipe.task.name == "detect":
        for column in ("of", "AP", "AP50", "AP75", *SIZES, "pictures", "pictures/s"):
            table.add_column(column, justify="left" if column == "of" else "right")
        for kind in ("box", "mask"):
            names = ("ap", "ap50", "ap75", *(f"ap_{size}" for size in SIZES))
            found = [number(score.numbers[f"{kind}_{name}"]) for name in names]
            table.add_row({"box": "boxes", "mask": "masks"}[kind], *found, f"{score.pictures:,}", speed)
    else:
        for column in (*dense.task.columns.values(), "pictures", "pictures/s"):
            table.add_column(column, justify="right")
        found = [number(score.numbers[name], 3 if name == "loss" else 2) for name in dense.task.columns]
        table.add_row(*found, f"{score.pictures:,}", speed)
    console.print(table)
    shares = zip(score.details["per_class"], dense.classes, strict=True)
    known = sorted((share, name) for share, name in shares if share is not None)
    hardest = ", ".join(f"{name} {share:.1f}" for share, name in known[:SHOWN])
    console.print(f"Hardest classes: {hardest}", highlight=False, soft_wrap=True, markup=False)
    if own:
        note = "The run chose these weights by these very pictures; its own table has the last weights' score."
        console.print(note, highlight=False, soft_wrap=True)
    if score.bad:
        console.print(f"{len(score.bad)} pictures could not be read and were left out:", highlight=False)
        for text in score.bad:
            console.print(f"  {text}", highlight=False, soft_wrap=True, markup=False)
    console.print(f"Written: {written}", highlight=False, soft_wrap=True)
