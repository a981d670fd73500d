"""Pictures of a run: how it learned, and what it takes for what."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .task import Task

TRAIN, HELD, AVERAGE = "#8a8f98", "#1f5fa8", "#c0392b"
MOST_NAMES = 40
"""Classes up to which the confusion matrix names them."""


def draw_curve(rows: Sequence[dict[str, Any]], task: Task, path: Path) -> Path:
    """The loss, and the number that weights are chosen by, against epochs."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    training = [row for row in rows if row["kind"] == "training"]
    checked = [row for row in rows if row["kind"] == "evaluation"]
    epochs = [row["epoch"] for row in checked]
    left.plot([row["epoch"] for row in training], [row["train_loss"] for row in training], color=TRAIN, label="training")
    name, judged = task.judged, task.columns[task.judged]
    for prefix, colour, whose in (("", HELD, "model"), ("ema_", AVERAGE, "average")):
        if not checked or f"{prefix}{name}" not in checked[-1]:
            continue
        right.plot(epochs, [row[f"{prefix}{name}"] for row in checked], "-o", color=colour, markersize=3, label=whose)
        if f"{prefix}loss" in checked[-1]:
            held = "held out" if not prefix else "held out, average"
            left.plot(epochs, [row[f"{prefix}loss"] for row in checked], "-o", color=colour, markersize=3, label=held)
    if checked and checked[-1][name] is not None:
        last = checked[-1]
        note = f"{last[name]:.1f}{' %' if judged.endswith(' %') else ''}"
        right.annotate(note, (last["epoch"], last[name]), textcoords="offset points", xytext=(-4, -14), ha="right", color=HELD)
    left.set(xlabel="epoch", ylabel="loss" if task.recipe.task.name == "detect" else "cross entropy", title="Loss")
    right.set(xlabel="epoch", ylabel=judged, title="Held-out pictures")
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


def draw_confusion(confusion: Sequence[Sequence[int]], classes: Sequence[str], path: Path, what: str = "pictures") -> Path:
    """Share of each true class (row) by what the model says (column)."""
    from matplotlib.figure import Figure

    counts = np.asarray(confusion, dtype=float)
    shares = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
    few = len(classes) <= MOST_NAMES
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
    axis.set(xlabel="the model says", ylabel="it is", title=f"{right:.2f} % of {counts.sum():,.0f} {what} right")
    figure.colorbar(drawn, ax=axis, label="% of the class", shrink=0.8)
    figure.savefig(path, dpi=110)
    return path
