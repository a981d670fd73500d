"""Means over seeds, their confidence intervals, and verdicts. Differences are paired: all candidates share the seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev
from typing import Literal

from scipy.stats import t

Verdict = Literal["holds", "does not hold", "undecided"]
LEVEL = 0.95
MIN_SEEDS = 3
"""With fewer seeds there is no verdict."""


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its 95 % confidence interval (Student's t)."""

    mean: float
    half: float
    """Half the width of the interval; NaN for a single seed."""
    count: int

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.mean + self.half


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and interval of one value per seed."""
    if not values:
        raise ValueError("there is no value to take the mean of")
    half = float("nan")
    if len(values) > 1:
        half = float(t.ppf((1 + LEVEL) / 2, len(values) - 1)) * stdev(values) / sqrt(len(values))
    return Estimate(fmean(values), half, len(values))


def verdict(difference: Estimate | None, beyond: float) -> Verdict:
    """Whether a difference exceeds a bound: decided only if the whole interval lies on one side, and by MIN_SEEDS or more."""
    if difference is None or difference.count < MIN_SEEDS:
        return "undecided"
    if difference.low > beyond:
        return "holds"
    return "does not hold" if difference.high < beyond else "undecided"


def combine(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict of a claim: it holds if all its checks hold, and does not hold if one of them does not."""
    if "does not hold" in verdicts:
        return "does not hold"
    return "undecided" if "undecided" in verdicts or not verdicts else "holds"
