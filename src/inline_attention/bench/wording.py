"""Figures in words: the least and the greatest, and where something holds."""

from collections.abc import Callable, Sequence
from math import isnan

from .record import Record

Value = Callable[[Record], float]
Where = Callable[[Record], str]


def shown(value: float, digits: int = 2) -> str:
    """A cell of a table; a dash for what was not measured."""
    return "-" if isnan(value) else f"{value:.{digits}f}"


def ends(records: Sequence[Record], value: Value, where: Where) -> tuple[str, str]:
    """The least and the greatest value that was measured, and where."""
    ordered = sorted((r for r in records if not isnan(value(r))), key=value)
    if not ordered:
        return "not measured", "not measured"
    least, greatest = (f"{value(r):.2f} ({where(r)})" for r in (ordered[0], ordered[-1]))
    return least, greatest


def places(records: Sequence[Record], value: Value, where: Where, chosen: Callable[[float], bool]) -> str:
    """Where the value is a chosen one, and which it is; nothing if nowhere."""
    return "; ".join(f"{where(r)} ({value(r):.2f})" for r in records if chosen(value(r)))


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table, figures to the right."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (columns, ["---:"] * len(columns), *rows))
