"""What the records of `inline bench export` say: a table, ratios, a picture."""

from collections.abc import Sequence
from functools import partial
from math import isnan

from matplotlib.figure import Figure

from .drawing import GREY, INLINE, SOFTMAX, TEXTBOOK, logarithmic
from .record import Record, ratio, seconds, spread
from .wording import places, shown

COLUMNS = ["model", "size", "batch", "runs in", "ms", "spread", "/ torch", "/ ONNX"]
LEGEND = (
    "Milliseconds of a batch, the best round; the median round over it (spread); and the time over that of InLine in torch "
    "(/ torch) and in onnxruntime (/ ONNX): below 1 is faster than InLine. Files are for every size; softmax is the same model "
    "with softmax for attention; timm's model is made for the size and runs in torch."
)
FORMS = {
    "inline": "InLine, torch",
    "inline onnx": "InLine, ONNX",
    "int8 onnx": "InLine, ONNX int8",
    "softmax": "softmax, torch",
    "softmax onnx": "softmax, ONNX",
    "rival": "timm's softmax, torch",
}


def rows(records: Sequence[Record]) -> list[list[str]]:
    """The table, a row for each form of a case that ran."""
    return [
        [
            r["model"],
            f"{r['size']}",
            f"{r['batch']}",
            label,
            shown(1e3 * seconds(r, "forward", form), 1),
            shown(spread(r, "forward", form)),
            shown(ratio(r, "forward", form, "inline")),
            shown(ratio(r, "forward", form, "inline onnx")),
        ]
        for r in records
        for form, label in FORMS.items()
        if not isnan(seconds(r, "forward", form))
    ]


def sentences(records: Sequence[Record]) -> list[str]:
    """How many times as fast InLine's file is as torch and as softmax's file, where it loses, and what failed."""
    out = [f"Files were run by onnxruntime {version}" for version in dict.fromkeys(r["onnxruntime"] for r in records)]
    for r in records:
        what = _where(r)
        eager, rival = ratio(r, "forward", "inline", "inline onnx"), ratio(r, "forward", "softmax onnx", "inline onnx")
        if not isnan(eager):
            out.append(f"{what}: in ONNX {shown(eager)} times as fast as in torch, {shown(rival)} times as softmax in ONNX")
    for form, label in FORMS.items():
        over = partial(ratio, kind="forward", name=form, other="inline onnx")
        if form != "inline onnx" and not all(isnan(over(r)) for r in records):
            lost = places(records, over, _where, lambda value: value < 1)
            out.append(f"{label} is faster than InLine, ONNX: {lost or 'nowhere'}")
    return out + [f"Failed: {form} of {r['model']} at {r['size']}: {why}" for r in records for form, why in r["errors"].items()]


def draw(records: Sequence[Record]) -> Figure:
    """Time of one picture against its side, a panel for each model."""
    styles = {
        "inline": (INLINE, "--o"),
        "inline onnx": (INLINE, "-o"),
        "int8 onnx": (TEXTBOOK, "-d"),
        "softmax": (SOFTMAX, "--s"),
        "softmax onnx": (SOFTMAX, "-s"),
        "rival": (GREY, ":^"),
    }
    models = list(dict.fromkeys(r["model"] for r in records))
    figure = Figure(figsize=(4.6 * max(2, len(models)), 3.8), layout="constrained")
    axes = figure.subplots(1, len(models), squeeze=False)[0]
    for axis, model in zip(axes, models, strict=True):
        found = sorted((r for r in records if r["model"] == model and r["batch"] == 1), key=lambda r: r["size"])
        sizes = [r["size"] for r in found]
        for form, (colour, style) in styles.items():
            times = [1e3 * seconds(r, "forward", form) for r in found]
            if not all(map(isnan, times)):
                axis.plot(sizes, times, style, color=colour, label=FORMS[form], markersize=5)
        logarithmic(axis, sizes)
        axis.set(xlabel="side of the picture, pixels", ylabel="ms", title=model)
        axis.legend(fontsize=8)
    return figure


def _where(record: Record) -> str:
    return f"{record['model']} at {record['size']}, batch {record['batch']}"
