"""What got slower between two results of one bench.

Machines are noisy, and differ: so times are compared in units of the matrix products that were timed beside them in the same
case, and a slower machine does not look like slower code.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from .record import KINDS
from .result import Result, from_json
from .suite import BENCHES

COLUMNS = ["case", "kind", "contender", "ms before", "ms after", "time", "in products"]
LEGEND = (
    "Milliseconds, best rounds; the time after over the time before; and the same of times in units of the matrix products "
    "timed in the same case, by which slower and faster are told. What ran only once, such as a picture in bands, is left out."
)

Key = tuple[str, str, str]
"""Case, kind, contender."""


@dataclass(frozen=True)
class Change:
    """One contender of one case in both results."""

    case: str
    kind: str
    contender: str
    before: float
    """Seconds."""
    after: float
    in_products: float
    """How many times as long it takes, in units of the products of its case."""


@dataclass(frozen=True)
class Comparison:
    """Two results of one bench."""

    tolerance: float
    slower: list[Change]
    """The worst first."""
    faster: list[Change]
    unchanged: int
    """Contenders of cases within the tolerance."""
    only_before: list[str]
    only_after: list[str]
    machines: dict[str, list[Any]]
    """What differs between the machines: before and after."""


def read(path: Path) -> Result:
    """The result in a file."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    try:
        result = from_json(path.read_text())
        if result.bench not in BENCHES:
            raise ValueError(f"there is no bench {result.bench!r}")
        dict(_times(result))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"{path} is no result of `inline bench` that this version can read") from error
    return result


def compare(before: Result, after: Result, tolerance: float) -> Comparison:
    """All contenders of all cases that both have."""
    if before.bench != after.bench:
        raise ValueError(f"the results are of two benches: {before.bench!r} and {after.bench!r}")
    old, new = dict(_times(before)), dict(_times(after))
    changes = [
        Change(*key, old[key][0], new[key][0], (new[key][0] / new[key][1]) / (old[key][0] / old[key][1]))
        for key in old
        if key in new
    ]
    changes.sort(key=lambda change: -change.in_products)
    slower = [change for change in changes if change.in_products > 1 + tolerance]
    faster = [change for change in changes if 1 / change.in_products > 1 + tolerance]
    parts = dict.fromkeys([*before.machine, *after.machine])
    pairs = {part: [before.machine.get(part), after.machine.get(part)] for part in parts}
    return Comparison(
        tolerance=tolerance,
        slower=slower,
        faster=faster[::-1],
        unchanged=len(changes) - len(slower) - len(faster),
        only_before=_only(old, new),
        only_after=_only(new, old),
        machines={part: pair for part, pair in pairs.items() if pair[0] != pair[1]},
    )


def _only(mine: Collection[Key], others: Collection[Key]) -> list[str]:
    """Cases that only one result has; and contenders, where it has only some of a case's."""
    known = {key[0] for key in others}
    missing = [key for key in mine if key not in others]
    return list(dict.fromkeys(", ".join(key) if key[0] in known else key[0] for key in missing))


def _times(result: Result) -> Iterator[tuple[Key, tuple[float, float]]]:
    """Seconds of each contender of each case, and of the case's own products."""
    bench = BENCHES[result.bench]
    for record in result.records:
        case = ", ".join(f"{field.name} {record[field.name]}" for field in fields(bench.case))
        kinds = [kind for kind in KINDS if kind in record]
        products = [record[kind][bench.yardstick]["best"] for kind in kinds if bench.yardstick in record[kind]]
        for kind in kinds:
            for contender, timing in record[kind].items():
                if contender != bench.yardstick and timing.get("rounds") != 1:  # one pass says little
                    yield (case, kind, contender), (timing["best"], products[0])


def rows(comparison: Comparison) -> list[list[str]]:
    """What changed, slower first."""
    return [
        [
            change.case,
            change.kind,
            change.contender,
            f"{1e3 * change.before:.2f}",
            f"{1e3 * change.after:.2f}",
            f"{change.after / change.before:.2f}",
            f"{change.in_products:.2f}",
        ]
        for change in (*comparison.slower, *comparison.faster)
    ]


def sentences(comparison: Comparison) -> list[str]:
    """How many changed, what only one of the two has, and whether the machines differ."""
    out = [
        f"{len(comparison.slower)} slower, {len(comparison.faster)} faster, "
        f"{comparison.unchanged} within {100 * comparison.tolerance:g} %"
    ]
    for word, only in (("before", comparison.only_before), ("after", comparison.only_after)):
        out += [f"Only in the result {word}: {text}" for text in only]
    parts = [f"{part} {old} and {new}" for part, (old, new) in comparison.machines.items()]
    return [
        *out,
        f"The machines differ: {'; '.join(parts)}" if parts else "Both were measured on the same machine and versions",
    ]
