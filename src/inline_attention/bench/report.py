"""What the reports of all benches share: formatted numbers, extremes, Markdown tables, colours and logarithmic axes."""

from collections.abc import Callable, Sequence
from math import isnan

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter

from .result import Record

Value = Callable[[Record], float]
Describe = Callable[[Record], str]
"""The case of a record in a few words."""

INLINE, SOFTMAX, TEXTBOOK, GREY = "#0072b2", "#d55e00", "#009e73", "#6e6e6e"
"""Okabe and Ito's colours, which colour-blind readers can distinguish."""


def number(value: float, digits: int = 2) -> str:
    """A number of a table; a dash for what was not measured."""
    return "-" if isnan(value) else f"{value:.{digits}f}"


def extremes(records: Sequence[Record], value: Value, describe: Describe) -> tuple[str, str]:
    """The least and the greatest measured value, each with its case."""
    ordered = sorted((r for r in records if not isnan(value(r))), key=value)
    if not ordered:
        return "not measured", "not measured"
    least, greatest = (f"{value(r):.2f} ({describe(r)})" for r in (ordered[0], ordered[-1]))
    return least, greatest


def cases_where(records: Sequence[Record], value: Value, describe: Describe, condition: Callable[[float], bool]) -> str:
    """The cases whose value meets the condition, each with its value; empty if none does."""
    return "; ".join(f"{describe(r)} ({value(r):.2f})" for r in records if condition(value(r)))


def failures(records: Sequence[Record]) -> list[str]:
    """A line for each candidate that failed."""
    return [f"Failed: {name} of {r['model']} at {r['size']}: {why}" for r in records for name, why in r["errors"].items()]


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table, aligned to the right."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (columns, ["---:"] * len(columns), *rows))


def logarithmic(axis: Axes, ticks: Sequence[int]) -> None:
    """Make both axes logarithmic: the x axis with these ticks, the y axis with plain numbers."""
    axis.set(xscale="log", yscale="log")
    axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.tick_params(which="minor", length=0)
    axis.grid(alpha=0.3)
