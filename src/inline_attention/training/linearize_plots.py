"""Figures of `inline linearize`: the error of each layer in each phase, and the choice of the blocks that keep softmax."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .distillation import PHASES

KEPT, LINEAR = "#c0392b", "#8a8f98"


def draw_layers(record: Mapping[str, Any], path: Path) -> Path:
    """Plot the error of every attention after the swap and after each phase, from `linearize.json`."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 4), layout="constrained")
    axis = figure.subplots()
    phases = {"swapped": record["swapped"], **{phase["phase"]: phase for phase in record["phases"]}}
    numbers_of = {row["name"]: row["block"] for row in record.get("keep", {}).get("blocks", ())}
    for name, numbers in phases.items():
        errors = numbers["layers"]
        places = [numbers_of.get(layer, place) for place, layer in enumerate(errors, 1)]
        style = PHASES[name]
        axis.plot(places, list(errors.values()), "-o", color=style.colour, markersize=4, label=style.label)
    axis.axhline(1, color="#8a8f98", linewidth=0.8, linestyle="--")
    axis.set_yscale("log")
    axis.set(xlabel="attention, from first to last", ylabel="squared difference / variance of the teacher's")
    axis.set_title(f"{record['model']}: attention against its teacher's, on the teacher's inputs", fontsize=11)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.grid(alpha=0.3)
    axis.legend(fontsize=9)
    figure.savefig(path, dpi=120)
    return path


def draw_kept(keep: Mapping[str, Any], path: Path) -> Path:
    """Plot the output error of each block alone, and with the most sensitive blocks kept, from `keep` of `linearize.json`."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 3.5), layout="constrained")
    alone, curve = figure.subplots(1, 2)
    for kept, label, colour in ((False, "linear", LINEAR), (True, "softmax kept", KEPT)):
        rows = [row for row in keep["blocks"] if row["kept"] == kept]
        if rows:
            alone.bar([row["block"] for row in rows], [row["error"] for row in rows], color=colour, label=label)
    alone.set(xlabel="block, from first to last", ylabel="output error", title="only this block linear")
    alone.legend(fontsize=9)
    curve.plot(range(len(keep["curve"])), keep["curve"], "-o", color=LINEAR, markersize=4, label="the most sensitive kept")
    curve.plot([len(keep["kept"])], [keep["error"]], "o", color=KEPT, label="chosen")
    curve.set(xlabel="blocks kept", title="all others linear")
    curve.set_ylim(bottom=0)
    curve.legend(fontsize=9)
    for axis in (alone, curve):
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    return path
