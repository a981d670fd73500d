"""One figure per claim, drawn from the numbers of the records."""

from collections.abc import Callable
from dataclasses import replace
from math import isnan

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..bench import report as bench_report
from ..bench.report import GREY
from .candidate import Candidate
from .claims import CLAIMS, FIVE, LENGTHS, RESOLUTIONS, SPEED_FACTORS, WIDTHS, Claim, Side, at_equal_compute
from .results import Numbers

COLORS = {"inline": bench_report.INLINE, "softmax": bench_report.SOFTMAX, "linear": bench_report.TEXTBOOK}


def draw(claim: Claim, numbers: Numbers) -> Figure | None:
    """The figure of a claim; None if nothing that it checks was measured."""
    if not any(side in numbers.values for check in claim.checks for side in (check.left, check.right)):
        return None
    special: dict[str, Callable[[Numbers], Figure]] = {
        "attention": _attention, "speed": _speed, "resolution": _resolution, "width": _width, "length": _length,
    }  # fmt: skip
    return special[claim.name](numbers) if claim.name in special else _accuracies(claim, numbers)


def _color(candidate: Candidate) -> str:
    return COLORS.get(candidate.mixer, GREY)


def _dots(axis: Axes, numbers: Numbers, claim: Claim, sides: list[Side]) -> None:
    """One line per candidate: every seed, the mean, its interval. Filled markers have the local residual."""
    measured = [side for side in sides if numbers.mean(side) is not None]
    for row, side in enumerate(reversed(measured)):
        found, color = numbers.mean(side), _color(side.candidate)
        assert found is not None
        axis.scatter(list(numbers.values[side].values()), [row] * found.count, s=12, color=color, alpha=0.4, linewidths=0)
        if not isnan(found.half):
            axis.plot([found.low, found.high], [row, row], color=color, linewidth=1.5)
        axis.scatter(found.mean, row, s=40, facecolor=color if side.candidate.local else "white", edgecolor=color, zorder=3)
    axis.set_yticks(range(len(measured)), [claim.name_of(side.candidate) for side in reversed(measured)])
    axis.grid(axis="x", alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def _accuracies(claim: Claim, numbers: Numbers) -> Figure:
    means = {side: numbers.mean(side) for side in claim.sides}
    ordered = sorted((side for side in means if means[side]), key=lambda side: -getattr(means[side], "mean", 0.0))
    figure = Figure(figsize=(7.5, 1.1 + 0.3 * len(ordered)), layout="constrained")
    axis = figure.subplots()
    _dots(axis, numbers, claim, ordered)
    axis.set(xlabel="top-1 %, mean and 95 % interval over seeds (filled: with the local residual)", title=claim.title)
    return figure


def _attention(numbers: Numbers) -> Figure:
    claim = CLAIMS["attention"]
    candidates = [one for one in claim.candidates if numbers.mean(Side(one, "confused")) is not None]
    figure = Figure(figsize=(11, 1.3 + 0.26 * len(candidates)), layout="constrained")
    axes = figure.subplots(1, 3)
    _dots(axes[0], numbers, claim, [Side(one, "confused") for one in candidates])
    axes[0].set(xlabel="confused pairs of queries, %")
    _dots(axes[1], numbers, claim, [Side(one, "near") for one in candidates])
    even = numbers.mean(Side(candidates[0], "even"))
    if even is not None:
        axes[1].axvline(even.mean, color=GREY, linestyle=":")
    axes[1].set(xlabel="weight on the 3 x 3 neighbourhood,\nfirst layer, % (dotted: even weights)", yticks=[])
    for row, one in enumerate(reversed(candidates)):
        found = [numbers.mean(Side(one, metric)) for metric in ("whole", "random", "own")]
        for estimate, marker in zip(found, "|ox", strict=True):
            if estimate is not None:
                axes[2].scatter(estimate.mean, row, marker=marker, color=_color(one), s=45)
    axes[2].set(xlabel="top-1 % with nothing masked (|), 9 random\ntokens (o) or the 3 x 3 neighbourhood (x)", yticks=[])
    axes[2].grid(axis="x", alpha=0.3)
    axes[2].spines[["top", "right"]].set_visible(False)
    return figure


def _speed(numbers: Numbers) -> Figure:
    candidates = CLAIMS["speed"].candidates
    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for number, one in enumerate(sorted(candidates, key=lambda one: getattr(numbers.mean(Side(one)), "mean", 0.0))):
        speeds = [numbers.mean(Side(one, f"speed_{factor}x")) for factor in SPEED_FACTORS]
        accuracy = numbers.mean(Side(one))
        line = "-" if one.local else "--"
        points = [(factor, speed.mean) for factor, speed in zip(SPEED_FACTORS, speeds, strict=True) if speed is not None]
        if points:
            left.plot(*zip(*points, strict=True), line, color=_color(one), marker="o", markersize=4, label=one.label)
        if accuracy is not None and speeds[-1] is not None:
            right.scatter(
                speeds[-1].mean, accuracy.mean, s=45, facecolor=_color(one) if one.local else "white", edgecolor=_color(one)
            )
            beside = (5, -9 if number % 2 else 4)  # alternate above and below, so that neighbours do not overlap
            place = (speeds[-1].mean, accuracy.mean)
            right.annotate(one.label, place, xytext=beside, textcoords="offset points", fontsize=8)
    left.set(xlabel="side of the image / side in training", ylabel="speed over softmax's", xscale="log", yscale="log")
    left.set_xticks(SPEED_FACTORS, [f"{factor}x" for factor in SPEED_FACTORS])
    left.set_xticks([], minor=True)
    left.legend(fontsize=7)
    right.set(xlabel=f"speed over softmax's at {SPEED_FACTORS[-1]}x the side", ylabel="top-1 % at 1x", xscale="log")
    for axis in (left, right):
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    return figure


def _lines(numbers: Numbers, series: dict[str, list[tuple[float, Candidate]]], xlabel: str) -> Figure:
    """Accuracy against one setting: one line per kind of attention."""
    figure = Figure(figsize=(6.5, 4), layout="constrained")
    axis = figure.subplots()
    for label, points in series.items():
        found = [(x, numbers.mean(Side(one)), one) for x, one in points]
        measured = [(x, estimate, one) for x, estimate, one in found if estimate is not None]
        if not measured:
            continue
        halves = [0.0 if isnan(estimate.half) else estimate.half for _, estimate, _ in measured]
        color, local = _color(measured[0][2]), measured[0][2].local
        axis.errorbar(
            [x for x, _, _ in measured], [estimate.mean for _, estimate, _ in measured], yerr=halves, color=color, label=label,
            linestyle="-" if local else "--", marker="o", markerfacecolor=color if local else "white", capsize=3,
        )  # fmt: skip
    ticks = sorted({x for points in series.values() for x, _ in points})
    axis.set(xscale="log", xlabel=xlabel, ylabel="top-1 %, mean and 95 % interval")
    axis.set_xticks(ticks, [f"{tick:g}x" for tick in ticks])
    axis.minorticks_off()
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=8)
    return figure


def _resolution(numbers: Numbers) -> Figure:
    series = {}
    for mixer in ("inline", "softmax"):
        for local in (True, False):
            points = [(finer, at_equal_compute(Candidate(mixer, local=local), finer)) for finer in RESOLUTIONS]
            series[Candidate(mixer, local=local).label] = points
    return _lines(numbers, series, "tokens along a side, as a multiple of the scale's, at equal compute")


def _width(numbers: Numbers) -> Figure:
    series = {one.label: [(width, replace(one, width=width)) for width in WIDTHS] for one in FIVE}
    return _lines(numbers, series, "channels, as a multiple of the scale's, at equal steps")


def _length(numbers: Numbers) -> Figure:
    series = {one.label: [(longer, replace(one, longer=longer)) for longer in LENGTHS] for one in FIVE}
    return _lines(numbers, series, "training steps, as a multiple of the scale's")
