"""Figures of a run: the curves of loss and metric, and the confusion matrix."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .task import Task

OF_SLIDES = ("bags", "slides")
"""Tasks that are about slides."""
TRAINING, VALIDATION, AVERAGE = "#8a8f98", "#1f5fa8", "#c0392b"
MOST_NAMED_CLASSES = 40
"""Classes up to which the confusion matrix names them."""


def draw_curve(rows: Sequence[dict[str, Any]], task: Task, path: Path) -> Path:
    """The loss, and the metric that selects the best weights, against epochs."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    training = [row for row in rows if row["kind"] == "training"]
    evaluations = [row for row in rows if row["kind"] == "evaluation"]
    epochs = [row["epoch"] for row in evaluations]
    left.plot([row["epoch"] for row in training], [row["train_loss"] for row in training], color=TRAINING, label="training")
    name, title = task.main_metric, task.columns[task.main_metric]
    for prefix, colour, whose in (("", VALIDATION, "model"), ("ema_", AVERAGE, "average")):
        if not evaluations or f"{prefix}{name}" not in evaluations[-1]:
            continue
        right.plot(epochs, [row[f"{prefix}{name}"] for row in evaluations], "-o", color=colour, markersize=3, label=whose)
        if f"{prefix}loss" in evaluations[-1]:
            label = "validation" if not prefix else "validation, average"
            left.plot(epochs, [row[f"{prefix}loss"] for row in evaluations], "-o", color=colour, markersize=3, label=label)
    if evaluations and evaluations[-1][name] is not None:
        last = evaluations[-1]
        note = f"{last[name]:.1f} %" if title.endswith(" %") else f"{last[name]:.3g}"
        right.annotate(
            note, (last["epoch"], last[name]), textcoords="offset points", xytext=(-4, -14), ha="right", color=VALIDATION
        )
    left.set(
        xlabel="epoch",
        ylabel="loss" if task.recipe.task.name in ("detect", "bags", "slides") else "cross entropy",
        title="Loss",
    )
    right.set(
        xlabel="epoch",
        ylabel=title,
        title="Validation slides" if task.recipe.task.name in OF_SLIDES else "Validation images",
    )
    for axis in (left, right):
        axis.grid(alpha=0.3)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        if axis.lines:
            axis.legend(fontsize=9)
    recipe = task.recipe
    mixer = recipe.model.mixer
    figure.suptitle(f"{recipe.model.name}{f', {mixer}' if mixer else ''} on {recipe.data.source}", fontsize=11)
    figure.savefig(path, dpi=120)
    return path


def draw_confusion(confusion: Sequence[Sequence[int]], classes: Sequence[str], path: Path, what: str = "images") -> Path:
    """Share of each true class (row) by predicted class (column)."""
    from matplotlib.figure import Figure

    counts = np.asarray(confusion, dtype=float)
    shares = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
    few = len(classes) <= MOST_NAMED_CLASSES
    side = max(4.5, min(12.0, 0.42 * len(classes))) if few else 8.0
    figure = Figure(figsize=(side + 1.6, side + 0.6), layout="constrained")
    axis = figure.subplots()
    drawn = axis.imshow(shares, cmap="Blues", vmin=0, vmax=100)
    if few:
        axis.set_xticks(range(len(classes)), classes, rotation=90 if max(map(len, classes)) > 3 else 0)
        axis.set_yticks(range(len(classes)), classes)
    if len(classes) <= 15:
        for row in range(len(classes)):
            for column in range(len(classes)):
                if counts[row, column]:
                    colour = "white" if shares[row, column] > 50 else "black"
                    axis.text(column, row, f"{counts[row, column]:,.0f}", ha="center", va="center", color=colour, fontsize=8)
    right = 100 * np.trace(counts) / max(counts.sum(), 1)
    axis.set(xlabel="predicted class", ylabel="true class", title=f"{right:.2f} % of {counts.sum():,.0f} {what} right")
    figure.colorbar(drawn, ax=axis, label="% of the class", shrink=0.8)
    figure.savefig(path, dpi=110)
    return path
