"""Means, differences and what they allow to say. Seeds are shared, so differences are taken seed by seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev
from typing import Literal

from scipy.stats import t

Verdict = Literal["holds", "does not hold", "cannot tell"]
LEVEL = 0.95
FEWEST = 3
"""Seeds below which nothing is said."""


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, and how far its interval reaches to either side: Student's t, at 95 %."""

    mean: float
    half: float
    """Not a number for a single seed."""
    count: int

    @property
    def low(self) -> float:
        """The lower end."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """The upper end."""
        return self.mean + self.half


def estimate(values: Sequence[float]) -> Estimate:
    """Of one value for each seed."""
    if not values:
        raise ValueError("there is no value to take the mean of")
    half = float("nan")
    if len(values) > 1:
        half = float(t.ppf((1 + LEVEL) / 2, len(values) - 1)) * stdev(values) / sqrt(len(values))
    return Estimate(fmean(values), half, len(values))


def verdict(difference: Estimate | None, beyond: float) -> Verdict:
    """Whether a difference is above a bound: by its whole interval, of three seeds or more."""
    if difference is None or difference.count < FEWEST:
        return "cannot tell"
    if difference.low > beyond:
        return "holds"
    return "does not hold" if difference.high < beyond else "cannot tell"


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """Of a claim with several checks: it holds if all do, and does not if one does not."""
    if "does not hold" in verdicts:
        return "does not hold"
    return "cannot tell" if "cannot tell" in verdicts or not verdicts else "holds"
