"""results.json: the records of all trials, and the numbers and verdicts computed from them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ..lite.json_file import read_object
from .candidate import Candidate
from .claims import ALL_CLAIMS, CLAIMS, OLD_CLAIMS, RATES, SOFTMAX, Check, Claim, Side
from .statistics import Estimate, Verdict, combine, estimate, verdict
from .trial import Record, parse_record


@dataclass(frozen=True)
class Results:
    """The contents of results.json."""

    scale: str
    description: str
    """Models and steps of the scale, in words."""
    data: Mapping[str, Any]
    """Name of the dataset, its sizes and the image size."""
    seeds: int
    claims: list[str]
    planned: int
    """Number of trials of these claims, run or not."""
    records: list[Record]

    def to_json(self) -> str:
        """The text of the file; machines are listed once, and records refer to them by index."""
        environments: list[Mapping[str, Any]] = []
        rows = []
        for record in self.records:
            if record.environment not in environments:
                environments.append(record.environment)
            rows.append({**asdict(record), "environment": environments.index(record.environment)})
        head = asdict(replace(self, records=[])) | {"environments": environments}
        del head["records"]
        lines = ",\n".join(json.dumps(row) for row in rows)  # one line per record keeps diffs readable
        return f'{json.dumps(head, indent=1).removesuffix("}").rstrip()},\n "records": [\n{lines}\n]\n}}\n'

    @property
    def chosen(self) -> list[Claim]:
        """The claims themselves."""
        return [ALL_CLAIMS[name] for name in self.claims]


OLD_FIELDS = {"says": "description", "wanted": "planned"}
"""Fields as version 0.1.0 wrote them -> their names now."""
OLD_DESCRIPTION = ("pictures a cell", "images a trial")
"""Words of 0.1.0's descriptions of scales, and the same ones now."""


def read_results(path: Path) -> Results:
    """Read a results.json, also of an earlier version; ValueError if it is not one."""
    try:
        found = {OLD_FIELDS.get(name, name): value for name, value in read_object(path).items()}
        environments = found.pop("environments")
        records = [parse_record({**row, "environment": environments[row["environment"]]}) for row in found.pop("records")]
        found["claims"] = [OLD_CLAIMS.get(name, name) for name in found["claims"]]
        found["description"] = found["description"].replace(*OLD_DESCRIPTION)
        results = Results(**found, records=records)
        candidates = [Candidate(**record.candidate) for record in records if record.candidate is not None]
        for part in (results, DataFacts(**results.data), *records, *candidates):
            _check_types(part)
        _ = results.chosen, Numbers.of(results), [candidate.label for candidate in candidates]
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"{path} is no results.json of `inline reproduce`, or of another version") from error
    return results


@dataclass(frozen=True)
class DataFacts:
    """What `Results.data` holds."""

    name: str
    train: int
    val: int
    classes: int
    height: int
    width: int
    split: str = ""
    """Which images models are scored on; records of earlier versions do not say it."""


def _check_types(part: Any) -> None:
    """Raise TypeError if a field of a dataclass is not of its declared type."""
    for name, kind in get_type_hints(type(part)).items():
        if not _fits(getattr(part, name), kind):
            raise TypeError(f"{name} must be {kind}")


def _fits(value: Any, kind: Any) -> bool:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return value in inner
    if origin is UnionType:
        return any(_fits(value, one) for one in inner)
    if origin is list:
        return isinstance(value, list) and all(_fits(item, inner[0]) for item in value)
    if kind is float:
        return type(value) in (int, float)
    return isinstance(value, origin or kind) and (kind is bool or not isinstance(value, bool))


@dataclass(frozen=True)
class Numbers:
    """One number per candidate, metric and seed."""

    values: Mapping[Side, Mapping[int, float]]
    details: Mapping[Candidate, Mapping[str, Any]] = field(default_factory=dict)
    """All metrics of a candidate's training trial of its first seed."""

    @classmethod
    def of(cls, results: Results) -> "Numbers":
        """From the records of all trials that did not fail; a diverged training counts with the accuracy of guessing."""
        values: dict[Side, dict[int, float]] = {}
        details: dict[Candidate, Mapping[str, Any]] = {}
        for record in results.records:
            if record.status == "failed":
                continue
            if record.candidate is None:
                _add_speeds(values, record)
                continue
            candidate = Candidate(**record.candidate)
            if record.kind == "train":
                details.setdefault(candidate, record.metrics)
            for metric, value in record.metrics.items():
                values.setdefault(Side(candidate, metric), {})[record.seed] = float(value)
        return cls(values, details)

    def mean(self, side: Side) -> Estimate | None:
        """The mean over seeds; None if there are none."""
        found = self.values.get(side)
        return estimate(list(found.values())) if found else None

    def difference(self, check: Check) -> Estimate | None:
        """The difference that a check is about, over the seeds that all its sides have; None if there are none."""
        sides = (check.left, check.right, *(check.than or ()))
        found = [self.values.get(side, {}) for side in sides]
        seeds = sorted(set.intersection(*(set(one) for one in found)))
        if not seeds:
            return None
        signs = (1, -1, -1, 1)[: len(sides)]
        return estimate([sum(sign * one[seed] for sign, one in zip(signs, found, strict=True)) for seed in seeds])

    def verdict_of(self, check: Check) -> Verdict:
        """The verdict of a check, by the interval of its difference."""
        return verdict(self.difference(check), check.beyond)

    def claim_verdict(self, claim: Claim) -> Verdict | None:
        """The verdict of all checks from the paper; None if the claim has only additional checks."""
        found = [self.verdict_of(check) for check in claim.checks if not check.ours]
        return combine(found) if found else None

    def rates(self, candidate: Candidate) -> dict[float, float]:
        """Multiple of the common learning rate -> accuracy with seed 0, as far as measured."""
        sides = {rate: Side(replace(candidate, rate=rate)) for rate in sorted((*RATES, 1.0))}
        return {rate: self.values[side][0] for rate, side in sides.items() if 0 in self.values.get(side, {})}

    def at_best_rates(self, check: Check) -> float | None:
        """The difference with seed 0 at the best learning rate of each side; None where a rate was not measured."""
        found = [self.rates(side.candidate) for side in (check.left, check.right)]
        if check.than is not None or any(len(rates) <= len(RATES) for rates in found):
            return None
        return max(found[0].values()) - max(found[1].values())


def _add_speeds(values: dict[Side, dict[int, float]], record: Record) -> None:
    """Add the speeds of a timing trial, relative to softmax in the same trial."""
    by_label = {one.label: one for one in CLAIMS["speed"].candidates}
    softmax = record.metrics[SOFTMAX.label]
    for label, rates in record.metrics.items():
        for metric, rate in rates.items():
            side = Side(by_label[label], metric.replace("rate", "speed"))
            values.setdefault(side, {})[record.seed] = rate / softmax[metric]


def count_verdicts(verdicts: Sequence[Verdict]) -> str:
    """How many of each verdict, in words; a dash for none."""
    words = {"holds": ("holds", "hold"), "does not hold": ("does not", "do not"), "undecided": ("undecided",) * 2}
    counts = {one: verdicts.count(one) for one in words if one in verdicts}
    return ", ".join(f"{count} {words[one][count > 1]}" for one, count in counts.items()) or "-"
