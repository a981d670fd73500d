"""What a run of cells leaves: a file of records, and the numbers and verdicts that follow from them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from .cell import Record
from .claims import CLAIMS, RATES, SOFTMAX, Check, Claim, Side
from .contender import Contender
from .statistics import Estimate, Verdict, estimate, together, verdict


@dataclass(frozen=True)
class Results:
    """The contents of results.json."""

    scale: str
    says: str
    """How large models and runs are."""
    data: Mapping[str, Any]
    """What the pictures are called, and how many there are."""
    seeds: int
    claims: list[str]
    wanted: int
    """Cells of these claims, run or not."""
    records: list[Record]

    def to_json(self) -> str:
        """The file; machines are listed once, and records point at them."""
        environments: list[Mapping[str, Any]] = []
        rows = []
        for record in self.records:
            if record.environment not in environments:
                environments.append(record.environment)
            rows.append({**asdict(record), "environment": environments.index(record.environment)})
        head = asdict(replace(self, records=[])) | {"environments": environments}
        del head["records"]
        lines = ",\n".join(json.dumps(row) for row in rows)  # a line each, so that changes can be read
        return f'{json.dumps(head, indent=1).removesuffix("}").rstrip()},\n "records": [\n{lines}\n]\n}}\n'

    @property
    def chosen(self) -> list[Claim]:
        """The claims."""
        return [CLAIMS[name] for name in self.claims]


def read_results(path: Path) -> Results:
    """Read a file; ValueError if it is none."""
    try:
        found = json.loads(path.read_text())
        environments = found.pop("environments")
        records = [Record(**{**row, "environment": environments[row["environment"]]}) for row in found.pop("records")]
        results = Results(**found, records=records)
        _ = results.chosen, Numbers.of(results)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise ValueError(f"{path} is no results.json of `inline reproduce`, or of another version") from error
    return results


@dataclass(frozen=True)
class Numbers:
    """By contender and metric, one number a seed."""

    values: Mapping[Side, Mapping[int, float]]
    details: Mapping[Contender, Mapping[str, Any]] = field(default_factory=dict)
    """All metrics of a contender's training with the first seed."""

    @classmethod
    def of(cls, results: Results) -> "Numbers":
        """From the records of cells that are done, or diverged: those count as guessing."""
        values: dict[Side, dict[int, float]] = {}
        details: dict[Contender, Mapping[str, Any]] = {}
        for record in results.records:
            if record.status == "failed":
                continue
            if record.contender is None:
                _add_race(values, record)
                continue
            contender = Contender(**record.contender)
            if record.kind == "train":
                details.setdefault(contender, record.metrics)
            for metric, value in record.metrics.items():
                values.setdefault(Side(contender, metric), {})[record.seed] = float(value)
        return cls(values, details)

    def mean(self, side: Side) -> Estimate | None:
        """Over seeds, if there are any."""
        found = self.values.get(side)
        return estimate(list(found.values())) if found else None

    def difference(self, check: Check) -> Estimate | None:
        """Of both sides, over the seeds that all of them have."""
        sides = (check.left, check.right, *(check.than or ()))
        found = [self.values.get(side, {}) for side in sides]
        seeds = sorted(set.intersection(*(set(one) for one in found)))
        if not seeds:
            return None
        signs = (1, -1, -1, 1)[: len(sides)]
        return estimate([sum(sign * one[seed] for sign, one in zip(signs, found, strict=True)) for seed in seeds])

    def judge(self, check: Check) -> Verdict:
        """By the interval of the difference."""
        return verdict(self.difference(check), check.beyond)

    def judge_claim(self, claim: Claim) -> Verdict | None:
        """All checks of the paper's together; None of a claim that is all ours."""
        found = [self.judge(check) for check in claim.checks if not check.ours]
        return together(found) if found else None

    def rates(self, contender: Contender) -> dict[float, float]:
        """Accuracy with seed 0, by learning rate over the common one, as far as it was checked."""
        asked = {rate: Side(replace(contender, rate=rate)) for rate in sorted((*RATES, 1.0))}
        return {rate: self.values[side][0] for rate, side in asked.items() if 0 in self.values.get(side, {})}

    def at_best_rates(self, check: Check) -> float | None:
        """The difference with seed 0, when each side has the best of its rates; None where they were not all checked."""
        found = [self.rates(side.contender) for side in (check.left, check.right)]
        if check.than is not None or any(len(rates) <= len(RATES) for rates in found):
            return None
        return max(found[0].values()) - max(found[1].values())


def _add_race(values: dict[Side, dict[int, float]], record: Record) -> None:
    """Speeds over that of softmax in the same race."""
    by_label = {one.label: one for one in CLAIMS["speed"].contenders}
    softmax = record.metrics[SOFTMAX.label]
    for label, rates in record.metrics.items():
        for metric, rate in rates.items():
            side = Side(by_label[label], metric.replace("rate", "speed"))
            values.setdefault(side, {})[record.seed] = rate / softmax[metric]


def counted(verdicts: Sequence[Verdict]) -> str:
    """In words: how many hold, do not, or cannot be told; a dash for none."""
    words = {"holds": ("holds", "hold"), "does not hold": ("does not", "do not"), "cannot tell": ("cannot be told",) * 2}
    counts = {one: verdicts.count(one) for one in words if one in verdicts}
    return ", ".join(f"{count} {words[one][count > 1]}" for one, count in counts.items()) or "-"
