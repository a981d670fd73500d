"""How near each attention came to its teacher, as a picture."""

from pathlib import Path
from typing import Any

COLOURS = {"swapped": "#8a8f98", "new": "#e08e2b", "all": "#1f5fa8", "distil": "#c0392b"}
LABELS = {
    "swapped": "swapped, nothing learned",
    "new": "new parameters matched",
    "all": "all attention matched",
    "distil": "distilled end to end",
}


def draw_layers(record: dict[str, Any], path: Path) -> Path:
    """The error of every attention, after the swap and after each phase of `linearize.json`."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 4), layout="constrained")
    axis = figure.subplots()
    found = {"swapped": record["swapped"], **{phase["phase"]: phase for phase in record["phases"]}}
    for name, numbers in found.items():
        errors = list(numbers["layers"].values())
        axis.plot(range(1, len(errors) + 1), errors, "-o", color=COLOURS[name], markersize=4, label=LABELS[name])
    axis.axhline(1, color="#8a8f98", linewidth=0.8, linestyle="--")
    axis.set_yscale("log")
    axis.set(xlabel="attention, from first to last", ylabel="squared difference / variance of the teacher's")
    axis.set_title(f"{record['model']}: attention against its teacher's, on the teacher's inputs", fontsize=11)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.grid(alpha=0.3)
    axis.legend(fontsize=9)
    figure.savefig(path, dpi=120)
    return path
