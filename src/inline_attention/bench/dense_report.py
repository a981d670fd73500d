"""What the records of `inline bench dense` say: a table, ratios, a picture."""

from collections.abc import Sequence
from math import isnan

from matplotlib.figure import Figure

from .drawing import INLINE, SOFTMAX, TEXTBOOK, logarithmic
from .record import Record, peak, seconds, spread
from .wording import shown

COLUMNS = ["model", "head", "size", "attention", "s", "spread", "MB", "time", "memory"]
LEGEND = (
    "Segmentation of one picture as a whole, 150 classes: seconds of the best round, the median round over it (spread; none "
    "where one call was timed), peak memory; and both over InLine's. Attention: InLine; softmax over all tokens, through SDPA, "
    "which holds no weights; softmax over all tokens that writes its weights out, where they fit; and PVT's own, whose keys "
    "come from a map reduced 8, 4 and 2 times a side."
)
FORMS = {
    "inline": "InLine",
    "softmax": "softmax, SDPA",
    "written": "softmax, weights written out",
    "reduced": "softmax, reduced keys",
}


def time(record: Record, form: str) -> float:
    """Seconds of a picture, by rounds or by one call."""
    timed = seconds(record, "forward", form)
    return seconds(record, "once", form) if isnan(timed) else timed


def rows(records: Sequence[Record]) -> list[list[str]]:
    """The table, a row for each form of a case that ran."""
    return [
        [
            r["model"],
            r["head"],
            f"{r['size']}",
            label,
            shown(time(r, form), 2),
            shown(spread(r, "forward", form)),
            shown(peak(r, form) / 1e6, 0),
            shown(time(r, form) / time(r, "inline")),
            shown(peak(r, form) / peak(r, "inline")),
        ]
        for r in records
        for form, label in FORMS.items()
        if not isnan(time(r, form))
    ]


def sentences(records: Sequence[Record]) -> list[str]:
    """InLine's share of the others' time and memory, and what failed."""
    out = []
    for r in records:
        for form, label in FORMS.items():
            if form == "inline" or isnan(time(r, form)):
                continue
            share, held = time(r, "inline") / time(r, form), peak(r, "inline") / peak(r, form)
            what = f"{r['model']} with {r['head']} at {r['size']} x {r['size']}"
            out.append(f"{what}: {shown(share)} of the time and {shown(held)} of the memory of {label}")
    return out + [f"Failed: {form} of {r['model']} at {r['size']}: {why}" for r in records for form, why in r["errors"].items()]


def draw(records: Sequence[Record]) -> Figure:
    """Time and peak memory of a picture against its side."""
    styles = {"inline": (INLINE, "-o"), "softmax": (SOFTMAX, "--s"), "written": (SOFTMAX, ":^"), "reduced": (TEXTBOOK, "-.d")}
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    sizes = sorted({r["size"] for r in records})
    by_size = sorted(records, key=lambda r: r["size"])
    for form, (colour, style) in styles.items():
        times = [time(r, form) for r in by_size]
        if all(map(isnan, times)):
            continue
        left.plot([r["size"] for r in by_size], times, style, color=colour, label=FORMS[form], markersize=5)
        right.plot([r["size"] for r in by_size], [peak(r, form) / 1e6 for r in by_size], style, color=colour, markersize=5)
    for axis, label in ((left, "time of a picture, s"), (right, "peak memory, MB")):
        logarithmic(axis, sizes)
        axis.set(xlabel="side of the picture, pixels", ylabel=label)
    left.legend(fontsize=9)
    figure.suptitle(", ".join(dict.fromkeys(f"{r['model']} with {r['head']}" for r in records)), fontsize=11)
    return figure
