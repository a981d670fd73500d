"""What the records of `inline bench resolution` say: a table, the crossing points, the growth, a picture."""

from collections.abc import Callable, Sequence
from functools import partial
from math import exp, inf, isnan, log, nan

from matplotlib.figure import Figure

from .drawing import GREY, INLINE, SOFTMAX, TEXTBOOK, logarithmic
from .models import TWIN
from .record import Record, peak, seconds, spread
from .wording import ends, shown

BASE = 448
"""Pixels a side of the picture that others are compared with: large enough for the machine to be busy."""

COLUMNS = ["model", "form", "size", "ms", "spread", "MB", "ns/pixel", "B/pixel", "time", "memory"]
LEGEND = (
    "A forward pass of one picture: milliseconds of the best round, the median round over it (spread), peak memory; both for a "
    f"pixel; and the time and the memory of a pixel over those of the same form at {BASE} pixels a side. Forms: InLine, softmax"
    " (timm's deit_tiny_patch16_224, and PVT's softmax twin, through SDPA), and InLine as one would write it from the paper."
)

FORMS = ("inline", "softmax", "textbook")
Cost = Callable[[Record, str], float]


def time(record: Record, form: str) -> float:
    """Seconds of a picture."""
    return seconds(record, "forward", form)


def per_pixel(record: Record, cost: Cost, form: str) -> float:
    """What a pixel costs."""
    pixels: int = record["size"] ** 2
    return cost(record, form) / pixels


def growth(record: Record, records: Sequence[Record], cost: Cost, form: str) -> float:
    """What a pixel costs over what it costs at BASE."""
    base = [per_pixel(r, cost, form) for r in records if (r["model"], r["size"]) == (record["model"], BASE)]
    return per_pixel(record, cost, form) / base[0] if base else nan


def crossing(points: Sequence[tuple[int, float, float]]) -> float:
    """The size from which on the first of two costs is the lesser one, by straight log-log lines between measured sizes.

    Args:
        points: sizes, rising, and both costs at each.

    Returns:
        0 if it is the lesser one at all sizes, infinity if it is not at the last.
    """
    gains = [(log(size), log(theirs / mine)) for size, mine, theirs in points]
    lost = [number for number, (_, gain) in enumerate(gains) if gain <= 0]
    if not lost:
        return 0.0
    if lost[-1] == len(gains) - 1:
        return inf
    (start, before), (end, after) = gains[lost[-1] : lost[-1] + 2]
    return exp(start + (end - start) * -before / (after - before))


def measured(records: Sequence[Record], model: str, cost: Cost, other: str) -> list[tuple[int, float, float]]:
    """Sizes, the model's costs and those of another form, where there are both."""
    points = [(r["size"], cost(r, "inline"), cost(r, other)) for r in records if r["model"] == model]
    return sorted(point for point in points if not isnan(point[1] / point[2]))


def rows(records: Sequence[Record]) -> list[list[str]]:
    """The table, a row for each form of a case that ran."""
    return [
        [
            r["model"],
            form,
            f"{r['size']}",
            shown(1e3 * time(r, form), 1),
            shown(spread(r, "forward", form)),
            shown(peak(r, form) / 1e6, 0),
            shown(1e9 * per_pixel(r, time, form), 0),
            shown(per_pixel(r, peak, form), 0),
            shown(growth(r, records, time, form)),
            shown(growth(r, records, peak, form)),
        ]
        for r in records
        for form in FORMS
        if not isnan(time(r, form))
    ]


def sentences(records: Sequence[Record]) -> list[str]:
    """Crossing points, the greatest growth, and what failed."""
    out = []
    for model, rival in dict.fromkeys((r["model"], r["rival"]) for r in records):
        softmax = "its softmax twin" if rival == TWIN else rival
        for other, label in (("softmax", softmax), ("textbook", "its textbook form")):
            out += _crossing_sentence(f"{model} is faster than {label}", measured(records, model, time, other))
            out += _crossing_sentence(f"{model} needs less memory than {label}", measured(records, model, peak, other))
        larger = [r for r in records if r["model"] == model and r["size"] > BASE]
        for cost, word in ((time, "time"), (peak, "memory")):
            most = ends(larger, partial(growth, records=records, cost=cost, form="inline"), lambda r: f"{r['size']}")[1]
            out.append(f"{model}, greatest {word} of a pixel beyond {BASE} pixels a side, over that at {BASE}: {most}")
    return out + [f"Failed: {form} of {r['model']} at {r['size']}: {why}" for r in records for form, why in r["errors"].items()]


def _crossing_sentence(claim: str, points: Sequence[tuple[int, float, float]]) -> list[str]:
    if not points:
        return []
    place = crossing(points)
    least, most = points[0][0], points[-1][0]
    if place == 0:
        return [f"{claim} at all sizes measured, {least} to {most} pixels a side"]
    if place == inf:
        return [f"{claim}: not within {least} to {most} pixels a side"]
    return [f"{claim} from {place:.0f} pixels a side on"]


def draw(records: Sequence[Record]) -> Figure:
    """Time and peak memory of a picture against its side, a row for each model; the crossing points are marked."""
    styles = {
        "inline": ("InLine", INLINE, "-o"),
        "softmax": ("softmax (SDPA)", SOFTMAX, "--s"),
        "textbook": ("InLine, textbook", TEXTBOOK, ":^"),
    }
    costs: list[tuple[Cost, float, str]] = [(time, 1e3, "time of a picture, ms"), (peak, 1e-6, "peak memory, MB")]
    models = list(dict.fromkeys(r["model"] for r in records))
    figure = Figure(figsize=(9, 3.6 * len(models)), layout="constrained")
    axes = figure.subplots(len(models), 2, squeeze=False)
    for row, model in enumerate(models):
        mine = sorted((r for r in records if r["model"] == model), key=lambda r: r["size"])
        for axis, (cost, unit, label) in zip(axes[row], costs, strict=True):
            for form, (text, colour, style) in styles.items():
                values = [unit * cost(r, form) for r in mine]
                if not all(map(isnan, values)):
                    axis.plot([r["size"] for r in mine], values, style, color=colour, label=text, markersize=5)
            logarithmic(axis, [r["size"] for r in mine])
            place = crossing(measured(mine, model, cost, "softmax"))
            if 0 < place < inf:
                axis.axvline(place, color=GREY, linewidth=1, linestyle=(0, (2, 2)))
                axis.annotate(
                    f" {place:.0f}", (place, 0), xycoords=("data", "axes fraction"), xytext=(0, 4),
                    textcoords="offset points", color=GREY, fontsize=9,
                )  # fmt: skip
            axis.set(xlabel="side of the picture, pixels", ylabel=label, title=model)
            axis.legend(fontsize=9)
    return figure
