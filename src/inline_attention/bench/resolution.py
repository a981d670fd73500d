"""`inline bench resolution`: one image at growing sizes, InLine against softmax and against the textbook form of InLine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import exp, inf, isnan, log, nan

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from .measure import Call, forward, measure_candidates
from .models import DEIT, TWIN, build_model, build_rival
from .report import GREY, INLINE, SOFTMAX, TEXTBOOK, extremes, failures, logarithmic, number
from .result import Record, peak, seconds, spread
from .textbook import as_textbook


@dataclass(frozen=True)
class ResolutionCase:
    """A forward pass of one square image, in fp32."""

    model: str
    rival: str
    """The softmax model: one of timm's, or TWIN."""
    size: int
    most: int
    """Side in pixels up to which softmax runs; larger images would take too long."""
    textbook: bool = False
    """Whether the textbook form is measured too."""


RESOLUTION_CASES = [
    *(ResolutionCase(*DEIT, size, most=1792, textbook=True) for size in (224, 448, 896, 1792, 3584)),
    *(ResolutionCase("inline_pvt_tiny", TWIN, size, most=896) for size in (448, 896, 1792, 3584)),
]
QUICK_RESOLUTION_CASES = [ResolutionCase(*DEIT, size, most=448, textbook=True) for size in (224, 448, 896)]


def measure_resolution(case: ResolutionCase, seconds: float, device: torch.device) -> Record:
    """Times and peak memory of "inline", "softmax" and "textbook"."""
    image = torch.randn(1, 3, case.size, case.size, device=device)
    builders: dict[str, Callable[[str, str, int], nn.Module]] = {"inline": build_model}
    if case.size <= case.most:
        builders["softmax"] = build_rival
    if case.textbook:
        builders["textbook"] = _build_textbook
    makers = {name: partial(_make, case, image, build) for name, build in builders.items()}
    return measure_candidates(makers, "forward", seconds=seconds, dtype=image.dtype, device=device)


def _build_textbook(model: str, rival: str, size: int) -> nn.Module:
    return as_textbook(build_model(model, rival, size))


def _make(case: ResolutionCase, image: Tensor, build: Callable[[str, str, int], nn.Module]) -> Call:
    return forward(build(case.model, case.rival, case.size).to(image.device).eval(), image)


BASE = 448
"""Side in pixels of the image that others are compared with: large enough to keep the processor busy."""

COLUMNS = ["model", "form", "size", "ms", "spread", "MB", "ns/pixel", "B/pixel", "time", "memory"]
LEGEND = (
    "A forward pass of one image: milliseconds of the best round (ms), the median round over the best one (spread) and peak "
    f"memory (MB); time and memory per pixel; and both over those of the same form at {BASE} pixels a side (time, memory). "
    "Forms: InLine; softmax through SDPA (timm's deit_tiny_patch16_224, and the same PVT with softmax attention); and "
    "textbook, InLine written directly from the paper's equations."
)

FORMS = ("inline", "softmax", "textbook")
Cost = Callable[[Record, str], float]


def time(record: Record, form: str) -> float:
    """Seconds per image."""
    return seconds(record, "forward", form)


def per_pixel(record: Record, cost: Cost, form: str) -> float:
    """The cost of one pixel."""
    pixels: int = record["size"] ** 2
    return cost(record, form) / pixels


def growth(record: Record, records: Sequence[Record], cost: Cost, form: str) -> float:
    """The cost per pixel over that at BASE."""
    base = [per_pixel(r, cost, form) for r in records if (r["model"], r["size"]) == (record["model"], BASE)]
    return per_pixel(record, cost, form) / base[0] if base else nan


def crossing(points: Sequence[tuple[int, float, float]]) -> float:
    """The size above which the first of two costs is the smaller one, interpolated linearly in log-log space.

    Args:
        points: (size, first cost, second cost), sizes ascending.

    Returns:
        0 if the first cost is smaller at all sizes, infinity if it is not at the last.
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
    """(size, cost of InLine, cost of another form) at the sizes where both were measured."""
    points = [(r["size"], cost(r, "inline"), cost(r, other)) for r in records if r["model"] == model]
    return sorted(point for point in points if not isnan(point[1] / point[2]))


def rows(records: Sequence[Record]) -> list[list[str]]:
    """The table: one row per case and form that ran."""
    return [
        [
            r["model"],
            form,
            f"{r['size']}",
            number(1e3 * time(r, form), 1),
            number(spread(r, "forward", form)),
            number(peak(r, form) / 1e6, 0),
            number(1e9 * per_pixel(r, time, form), 0),
            number(per_pixel(r, peak, form), 0),
            number(growth(r, records, time, form)),
            number(growth(r, records, peak, form)),
        ]
        for r in records
        for form in FORMS
        if not isnan(time(r, form))
    ]


def sentences(records: Sequence[Record]) -> list[str]:
    """The sizes at which InLine becomes cheaper, the greatest growth of the cost per pixel, and what failed."""
    out = []
    for model, rival in dict.fromkeys((r["model"], r["rival"]) for r in records):
        softmax = "its softmax twin" if rival == TWIN else rival
        for other, label in (("softmax", softmax), ("textbook", "its textbook form")):
            out += _crossing_sentence(f"{model} is faster than {label}", measured(records, model, time, other))
            out += _crossing_sentence(f"{model} needs less memory than {label}", measured(records, model, peak, other))
        larger = [r for r in records if r["model"] == model and r["size"] > BASE]
        for cost, word in ((time, "time"), (peak, "memory")):
            most = extremes(larger, partial(growth, records=records, cost=cost, form="inline"), lambda r: f"{r['size']}")[1]
            out.append(f"{model}, greatest {word} per pixel above {BASE} pixels a side over that at {BASE}: {most}")
    return out + failures(records)


def _crossing_sentence(claim: str, points: Sequence[tuple[int, float, float]]) -> list[str]:
    if not points:
        return []
    size = crossing(points)
    least, most = points[0][0], points[-1][0]
    if size == 0:
        return [f"{claim} at all sizes measured, {least} to {most} pixels a side"]
    if size == inf:
        return [f"{claim}: not within {least} to {most} pixels a side"]
    return [f"{claim} from {size:.0f} pixels a side on"]


def draw(records: Sequence[Record]) -> Figure:
    """Time and peak memory per image against its side, a row for each model; crossing points are marked."""
    styles = {
        "inline": ("InLine", INLINE, "-o"),
        "softmax": ("softmax (SDPA)", SOFTMAX, "--s"),
        "textbook": ("InLine, textbook", TEXTBOOK, ":^"),
    }
    costs: list[tuple[Cost, float, str]] = [(time, 1e3, "time per image, ms"), (peak, 1e-6, "peak memory, MB")]
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
            size = crossing(measured(mine, model, cost, "softmax"))
            if 0 < size < inf:
                axis.axvline(size, color=GREY, linewidth=1, linestyle=(0, (2, 2)))
                axis.annotate(
                    f" {size:.0f}", (size, 0), xycoords=("data", "axes fraction"), xytext=(0, 4),
                    textcoords="offset points", color=GREY, fontsize=9,
                )  # fmt: skip
            axis.set(xlabel="side of the image, pixels", ylabel=label, title=model)
            axis.legend(fontsize=9)
    return figure
