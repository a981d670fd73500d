"""One way to evaluate: a task's model on pictures, into a folder."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from .arguments import prepare_folder

if TYPE_CHECKING:
    from torch import nn

    from ..training.evaluate import Score
    from ..training.source import Source
    from ..training.task import Task
    from .eval import Eval

SHOWN = 10
"""Classes that are told: the hardest."""


def score(asked: "Eval", task: "Task", model: "nn.Module", source: "Source", out: Path, batch: int) -> "Score | None":
    """Look at every picture of `source.val` once; None in all processes but the main one."""
    from ..training.evaluate import evaluate
    from ..training.launch import make_accelerator
    from ..training.loader import evaluation_batches, worker_count
    from .progress import counter

    accelerator = make_accelerator(task.recipe.run, asked.device, [], out)
    if accelerator.is_main_process:
        prepare_folder(out)
    total = len(source.val)
    batches = evaluation_batches(
        source.val,
        task.show(training=False),
        asked.batch or batch,
        rank=accelerator.process_index,
        processes=accelerator.num_processes,
        channels=task.recipe.data.channels,
        workers=worker_count(asked.workers, accelerator.num_processes, total),
    )
    with counter("evaluating", total, Console(stderr=True, quiet=not accelerator.is_main_process)) as progress:
        model = model.to(accelerator.device)
        meter = task.meter(source, accelerator)
        found = evaluate(model, batches, meter, accelerator, skip_bad=asked.skip_bad, progress=progress)
    accelerator.end_training()
    return found if accelerator.is_main_process else None


def folder_of(asked: "Eval") -> Path:
    """Where the result goes: asked for, or beside the run, or here."""
    name = "eval" if asked.data is None else f"eval-{Path(asked.data).name}"
    return asked.out or (Path(asked.model) / name if Path(asked.model).is_dir() else Path(name))


def write(
    out: Path, facts: Mapping[str, Any], found: "Score", classes: tuple[str, ...], bad: tuple[str, ...], what: str
) -> str:
    """Keep what was found as eval.json, and as a picture of what is taken for what; the JSON.

    Args:
        facts: about model and pictures.
        bad: what was left out.
        what: the things that were counted, such as pictures.
    """
    from ..training.plots import draw_confusion

    whole = {
        **facts, **found.numbers, **found.details, "pictures": found.pictures,
        "pictures_per_second": found.pictures_per_second, "bad": bad, "classes": classes,
    }  # fmt: skip
    text = "{\n" + ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in whole.items()) + "\n}"
    (out / "eval.json").write_text(text + "\n")
    if found.details.get("confusion"):
        draw_confusion(found.details["confusion"], classes, out / "confusion.png", what)
    return text


def tell_rest(
    console: Console, found: "Score", classes: tuple[str, ...], out: Path, *, own: bool, bad: tuple[str, ...], unit: str = ""
) -> None:
    """What comes below the table: the hardest classes, whose pictures these are, what was left out, what was written."""
    shares = zip(found.details["per_class"], classes, strict=True)
    known = sorted((share, name) for share, name in shares if share is not None)
    hardest = ", ".join(f"{name} {share:.1f}{unit}" for share, name in known[:SHOWN] if share < 100)
    console.print(f"Hardest classes: {hardest or 'none, all are right'}", highlight=False, soft_wrap=True, markup=False)
    if own:
        note = "The run chose these weights by these very pictures; its own table has the last weights' score."
        console.print(note, highlight=False, soft_wrap=True)
    if bad:
        console.print(f"{len(bad)} pictures or entries were left out:", highlight=False)
        for text in bad:
            console.print(f"  {text}", highlight=False, soft_wrap=True, markup=False)
    drawn = ", confusion.png" if found.details.get("confusion") else ""
    console.print(f"Written: {out}/eval.json{drawn}", highlight=False, soft_wrap=True)
