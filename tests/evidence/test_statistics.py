"""Intervals and verdicts against numbers that are known."""

from math import isnan, nan

import pytest

from inline_attention.evidence.statistics import Estimate, estimate, together, verdict


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
        (-0.1, 2.0, 0.0, "cannot tell"),
        (-2.0, -0.1, 0.0, "does not hold"),
        (-0.9, 0.5, -1.0, "holds"),
        (-1.1, 0.5, -1.0, "cannot tell"),
        (1.0, 9.0, 10.0, "does not hold"),
    ],
)
def test_a_verdict_takes_the_whole_interval(low, high, beyond, expected):
    middle, half = (low + high) / 2, (high - low) / 2
    assert verdict(Estimate(middle, half, 3), beyond) == expected
    assert verdict(Estimate(middle, half, 2), beyond) == "cannot tell"


def test_without_numbers_nothing_is_said():
    assert verdict(None, 0.0) == "cannot tell"
    assert verdict(Estimate(5.0, nan, 3), 0.0) == "cannot tell"


def test_a_claim_is_as_good_as_its_worst_check():
    assert together(["holds", "holds"]) == "holds"
    assert together(["holds", "cannot tell"]) == "cannot tell"
    assert together(["cannot tell", "does not hold", "holds"]) == "does not hold"
    assert together([]) == "cannot tell"
