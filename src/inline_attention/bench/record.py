"""What was measured of one case, and the ratios that reports are made of.

A record has the case's fields; under its KINDS the `Timing` of each contender; under "memory" the peak bytes of
each; and under "errors" one line for each contender that failed. What was not measured is NaN.
"""

from math import nan
from typing import Any

Record = dict[str, Any]
KINDS = ("forward", "step", "stream", "once")


def seconds(record: Record, kind: str, name: str) -> float:
    """The best round. A layer's "inline" stands for the form that it chooses."""
    return _timing(record, kind, name, "best")


def spread(record: Record, kind: str, name: str) -> float:
    """The median round over the best one: how restless the machine was."""
    return _timing(record, kind, name, "median") / seconds(record, kind, name)


def ratio(record: Record, kind: str, name: str, other: str) -> float:
    """How many times as long `name` takes as `other`."""
    return seconds(record, kind, name) / seconds(record, kind, other)


def peak(record: Record, name: str) -> float:
    """Bytes at the height of a call."""
    held: int | None = record["memory"].get(_chosen(record, name))
    return float(held) if held else nan


def memory(record: Record, name: str, other: str) -> float:
    """Peak memory of `name` over that of `other`."""
    return peak(record, name) / peak(record, other)


def _timing(record: Record, kind: str, name: str, what: str) -> float:
    value: float = record.get(kind, {}).get(_chosen(record, name), {}).get(what, nan)
    return value


def _chosen(record: Record, name: str) -> str:
    form: str = record.get("chosen", {}).get(name, name)
    return form
