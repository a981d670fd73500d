"""`inline eval` and `inline predict` with detectors and segmenters: scores, and objects or segments drawn over the images."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .arguments import prepare_folder
from .console import table_console
from .eval import Eval, eval_folder, print_rest, score, score_table, write_score
from .predict_output import DrawingPaths, segment_facts, segment_lines, single_images
from .train_report import number

if TYPE_CHECKING:
    import torch
    from rich.table import Table

    from ..training.dense_task import DenseModel
    from ..training.task import Score
    from .predict import Predict

SIZES = ("small", "medium", "large")


def evaluate_dense(options: Eval) -> None:
    """Load the model, evaluate it on every image once, print and write the result."""
    from ..training.dense_task import load_dense
    from ..training.eval_images import eval_images

    for name in ("crop_mode", "size", "crop", "root"):
        if getattr(options, name) is not None:
            raise ValueError(f"--{name.replace('_', '-')} is for models that classify: leave it out")
    if options.ema:
        raise ValueError("--ema is for files that hold both kinds of weights: a run's best weights are one of them")
    dense = load_dense(str(options.weights or options.model), options.inference, options.side)
    images = eval_images(dense.task, dense.classes, options.model, options.data, split=options.split, skip_bad=options.skip_bad)
    source, out = images.source, eval_folder(options)
    found = score(options, dense.task, dense.model, source, out)
    if found is None:
        return
    facts = {
        "model": dense.name, "weights": str(options.weights or options.model), "task": asdict(dense.task.recipe.task),
        "data": images.name,
    }  # fmt: skip
    bad = (*source.bad, *found.bad)
    text = write_score(out, facts, found, images, dense.classes, bad, "pixels")
    if options.json:
        print(text)
        return
    console = table_console()
    console.print(f"{dense.name}, {dense.task.head}: {dense.loaded}", highlight=False, soft_wrap=True, markup=False)
    console.print(_score_table(dense, found))
    print_rest(console, found, images, dense.classes, out, bad=bad)


def _score_table(dense: "DenseModel", found: "Score") -> "Table":
    speed = f"{found.images_per_second:,.1f}"
    if dense.task.recipe.task.name == "detect":
        table = score_table("AP of", "AP", "AP50", "AP75", *SIZES, "images/s")
        for kind, label in (("box", "boxes"), ("mask", "masks"))[: 1 + ("mask_ap" in found.metrics)]:
            names = ("ap", "ap50", "ap75", *(f"ap_{size}" for size in SIZES))
            numbers = [number(found.metrics[f"{kind}_{name}"]) for name in names]
            table.add_row(found.split, label, *numbers, speed)
        return table
    table = score_table(*dense.task.columns.values(), "images", "images/s")
    numbers = [number(found.metrics[name], 3 if name == "loss" else 2) for name in dense.task.columns]
    table.add_row(found.split, *numbers, f"{found.images:,}", speed)
    return table


def predict_dense(options: "Predict", model: str, device: "torch.device") -> None:
    """Predict images one by one, at their own sizes; draw each, and print as results come."""
    from ..lite.image_paths import open_images
    from ..training.dense_task import load_dense
    from ..training.load_trained import task_named
    from .drawings import LEAST_SCORE, draw_prediction

    _check(options, task_named(model))
    least_score = LEAST_SCORE if options.threshold is None else options.threshold
    dense = load_dense(model, options.inference, options.side)
    dense.model.to(device)
    out = options.out or Path("predictions")
    prepare_folder(out)
    paths, task = DrawingPaths(out), dense.task
    for name, image in single_images(open_images(options.images), task.recipe.data.channels, skip_bad=options.skip_bad):
        found = task.predict(dense.model, image, device, name)
        path = paths.unused(name)
        draw_prediction(dense, image, found, least_score).save(path)
        facts: dict[str, Any] = {"image": name, "drawn": str(path)}
        if task.recipe.task.name == "segment":
            facts |= segment_facts(found.numpy(), dense.classes, path)
        else:
            facts["objects"] = _objects(dense, found, least_score)
        print(json.dumps(facts) if options.json else _lines(facts, least_score))


def _check(options: "Predict", task: str) -> None:
    """Raise for options that this task has no use for."""
    if options.stream:
        raise ValueError("--stream is for models that classify or segment: leave it out")
    if options.ema:
        raise ValueError("--ema is for models that classify: leave it out")
    if options.threshold is not None and task != "detect":
        raise ValueError("--threshold is for models that detect: leave it out")
    if options.threshold is not None and not 0 <= options.threshold <= 1:
        raise ValueError(f"--threshold must be within 0..1, got {options.threshold}")


def _objects(dense: "DenseModel", found: dict[str, "torch.Tensor"], least_score: float) -> list[dict[str, Any]]:
    rows = zip(found["scores"].tolist(), found["labels"].tolist(), found["boxes"].tolist(), strict=True)
    objects: list[dict[str, Any]] = [
        {"name": dense.classes[label - 1], "score": score, "box": [round(side, 1) for side in box]}
        for score, label, box in rows
    ]
    if "masks" in found:
        for entry, area in zip(objects, (found["masks"][:, 0] >= 0.5).sum((1, 2)).tolist(), strict=True):
            entry["pixels"] = area
    return [entry for entry in objects if entry["score"] >= least_score]


def _lines(facts: dict[str, Any], least_score: float) -> str:
    """The result for one image, as lines of text."""
    lines = segment_lines(facts)
    for entry in facts.get("objects", ()):
        left, top, right, bottom = entry["box"]
        lines.append(f"  {entry['score']:7.2%}  {entry['name']} from ({left:.0f}, {top:.0f}) to ({right:.0f}, {bottom:.0f})")
    if not facts.get("objects", True):
        lines.append(f"  no object with a score of {least_score:g} or more")
    return "\n".join(lines)
