"""`inline bench compare`: what got slower or faster between two results of one bench.

Times are compared in units of the matrix products that were timed in the same case, so that a slower or busier machine does
not look like slower code.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from .result import KINDS, Result, from_json
from .suite import BENCHES

COLUMNS = ["case", "kind", "candidate", "ms before", "ms after", "time", "in products"]
LEGEND = (
    "Milliseconds of the best rounds; the time after over the time before (time); and the same ratio with times in units of "
    "the matrix products timed in the same case (in products), which decides what counts as slower or faster. Calls that were "
    "timed only once, such as a streamed image, are left out."
)

Key = tuple[str, str, str]
"""Case, kind, candidate."""


@dataclass(frozen=True)
class Change:
    """The times of one candidate of one case in both results."""

    case: str
    kind: str
    candidate: str
    before: float
    """Seconds."""
    after: float
    in_products: float
    """The time after over the time before, both in units of the products of their case."""


@dataclass(frozen=True)
class Comparison:
    """The differences between two results of one bench."""

    tolerance: float
    slower: list[Change]
    """The worst first."""
    faster: list[Change]
    unchanged: int
    """How many candidates are within the tolerance."""
    only_before: list[str]
    only_after: list[str]
    machines: dict[str, list[Any]]
    """Fields of the machine that differ: [before, after]."""


def read(path: Path) -> Result:
    """Read a result file; ValueError if it is not one."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    try:
        result = from_json(path.read_text())
        if result.bench not in BENCHES:
            raise ValueError(f"there is no bench {result.bench!r}")
        compare(result, result, 0.0)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"{path} is no result of `inline bench` that this version can read") from error
    return result


def compare(before: Result, after: Result, tolerance: float) -> Comparison:
    """Compare the candidates that both results have."""
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
    names = dict.fromkeys([*before.machine, *after.machine])
    pairs = {name: [before.machine.get(name), after.machine.get(name)] for name in names}
    return Comparison(
        tolerance=tolerance,
        slower=slower,
        faster=faster[::-1],
        unchanged=len(changes) - len(slower) - len(faster),
        only_before=_only(old, new),
        only_after=_only(new, old),
        machines={name: pair for name, pair in pairs.items() if pair[0] != pair[1]},
    )


def _only(mine: Collection[Key], others: Collection[Key]) -> list[str]:
    """Cases that the other result lacks; and single candidates, where it has the case."""
    shared = {key[0] for key in others}
    missing = [key for key in mine if key not in others]
    return list(dict.fromkeys(", ".join(key) if key[0] in shared else key[0] for key in missing))


def _times(result: Result) -> Iterator[tuple[Key, tuple[float, float]]]:
    """(case, kind, candidate) -> seconds of the candidate, and of the matrix products of its case."""
    bench = BENCHES[result.bench]
    for record in result.records:
        case = ", ".join(f"{field.name} {record[field.name]}" for field in fields(bench.case))
        kinds = [kind for kind in KINDS if kind in record]
        products = [record[kind][bench.yardstick]["best"] for kind in kinds if bench.yardstick in record[kind]]
        for kind in kinds:
            for candidate, timing in record[kind].items():
                if candidate != bench.yardstick and timing.get("rounds") != 1:  # a single pass is too noisy
                    yield (case, kind, candidate), (timing["best"], products[0])


def rows(comparison: Comparison) -> list[list[str]]:
    """The table of what changed, slower first."""
    return [
        [
            change.case,
            change.kind,
            change.candidate,
            f"{1e3 * change.before:.2f}",
            f"{1e3 * change.after:.2f}",
            f"{change.after / change.before:.2f}",
            f"{change.in_products:.2f}",
        ]
        for change in (*comparison.slower, *comparison.faster)
    ]


def sentences(comparison: Comparison) -> list[str]:
    """How many changed, what only one result has, and whether the machines differ."""
    out = [
        f"{len(comparison.slower)} slower, {len(comparison.faster)} faster, "
        f"{comparison.unchanged} within {100 * comparison.tolerance:g} %"
    ]
    for word, only in (("before", comparison.only_before), ("after", comparison.only_after)):
        out += [f"Only in the result {word}: {text}" for text in only]
    different = [f"{name} {old} and {new}" for name, (old, new) in comparison.machines.items()]
    return [
        *out,
        f"The machines differ: {'; '.join(different)}" if different else "Both were measured on the same machine and versions",
    ]
