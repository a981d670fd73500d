"""Intervals and verdicts against known values."""

from math import isnan, nan

import pytest

from inline_attention.evidence.statistics import Estimate, combine, estimate, verdict


def test_students_interval():
    """Three values: t(0.975, 2) = 4.302653, so the half width is 4.302653 * 1 / sqrt(3)."""
    found = estimate([1.0, 2.0, 3.0])
    assert (found.mean, found.count) == (2.0, 3)
    assert found.half == pytest.approx(4.302653 / 3**0.5, rel=1e-6)
    assert (found.low, found.high) == (found.mean - found.half, found.mean + found.half)
    assert estimate([5.0, 5.0, 5.0, 5.0]).half == 0
    assert isnan(estimate([5.0]).half)
    with pytest.raises(ValueError, match="no value"):
        estimate([])


@pytest.mark.parametrize(
    ("low", "high", "beyond", "expected"),
    [
        (0.1, 2.0, 0.0, "holds"),
        (-0.1, 2.0, 0.0, "undecided"),
        (-2.0, -0.1, 0.0, "does not hold"),
        (-0.9, 0.5, -1.0, "holds"),
        (-1.1, 0.5, -1.0, "undecided"),
        (1.0, 9.0, 10.0, "does not hold"),
    ],
)
def test_a_verdict_takes_the_whole_interval(low, high, beyond, expected):
    middle, half = (low + high) / 2, (high - low) / 2
    assert verdict(Estimate(middle, half, 3), beyond) == expected
    assert verdict(Estimate(middle, half, 2), beyond) == "undecided"


def test_no_verdict_without_numbers():
    assert verdict(None, 0.0) == "undecided"
    assert verdict(Estimate(5.0, nan, 3), 0.0) == "undecided"


def test_the_verdict_of_a_claim_is_that_of_its_worst_check():
    assert combine(["holds", "holds"]) == "holds"
    assert combine(["holds", "undecided"]) == "undecided"
    assert combine(["undecided", "does not hold", "holds"]) == "does not hold"
    assert combine([]) == "undecided"
