"""From records to numbers, verdicts, a page and figures."""

import json
from dataclasses import asdict, replace

import pytest

from inline_attention.evidence.cell import Record
from inline_attention.evidence.claims import CLAIMS, INLINE, INLINE_LOCAL, LINEAR, SOFTMAX, SOFTMAX_LOCAL, Check, Side
from inline_attention.evidence.contender import Contender
from inline_attention.evidence.figures import draw
from inline_attention.evidence.report import page, summary
from inline_attention.evidence.results import Numbers, Results, counted, read_results

DATA = {"name": "made up", "train": 100, "val": 50, "classes": 4, "height": 8, "width": 8}


def record(contender, seed, top1, status="done", kind="train", **metrics):
    found = {"top1": top1, **metrics} if status != "failed" else {}
    key = f"{contender.label} {seed} {kind}"
    return Record(kind, asdict(contender), seed, status, found, 2.0, key, "r", "c", {"torch": "2"}, "why" * (status != "done"))


def results(*records, claims=("mixers",), seeds=3):
    return Results("glance", "small", DATA, seeds, list(claims), len(records), list(records))


def test_differences_are_paired():
    """Seeds that differ by ten points, contenders by one: taken seed by seed that is certain, otherwise it is nothing."""
    base = [50.0, 60.0, 70.0]
    found = Numbers.of(
        results(
            *(record(SOFTMAX, seed, value) for seed, value in enumerate(base)),
            *(record(INLINE, seed, value + 1 + 0.01 * seed) for seed, value in enumerate(base)),
        )
    )
    check = Check("", Side(INLINE), Side(SOFTMAX))
    difference = found.difference(check)
    assert difference.mean == pytest.approx(1.01)
    assert difference.half < 0.05
    assert found.judge(check) == "holds"
    assert found.judge(replace(check, beyond=2.0)) == "does not hold"
    assert found.mean(Side(INLINE)).half > 10


def test_only_seeds_that_both_have():
    found = Numbers.of(results(*(record(SOFTMAX, s, 50.0) for s in (0, 1, 2)), *(record(INLINE, s, 51.0) for s in (1, 2, 3))))
    difference = found.difference(Check("", Side(INLINE), Side(SOFTMAX)))
    assert (difference.count, difference.mean) == (2, 1.0)
    assert found.judge(Check("", Side(INLINE), Side(SOFTMAX))) == "cannot tell"
    assert found.difference(Check("", Side(INLINE), Side(LINEAR))) is None


def test_a_difference_of_differences():
    values = {INLINE: (5.0, 6.0, 7.0), SOFTMAX: (1.0, 1.0, 1.0), LINEAR: (2.0, 3.0, 3.0), SOFTMAX_LOCAL: (1.0, 1.0, 1.5)}
    found = Numbers.of(results(*(record(one, s, v) for one, all_ in values.items() for s, v in enumerate(all_))))
    check = Check("", Side(INLINE), Side(SOFTMAX), than=(Side(LINEAR), Side(SOFTMAX_LOCAL)))
    assert found.difference(check).mean == pytest.approx((4 - 1 + 5 - 2 + 6 - 1.5) / 3)


def test_failed_cells_count_for_nothing_and_diverged_ones_as_guesses():
    told = results(record(INLINE, 0, 80.0), record(INLINE, 1, 0.0, "failed"), record(INLINE, 2, 25.0, "diverged"))
    assert Numbers.of(told).values[Side(INLINE)] == {0: 80.0, 2: 25.0}
    text = page(told, {})
    assert "InLine, seed 1: failed. why" in text
    assert "InLine, seed 2: diverged. why" in text
    assert "of which 1 failed" in text


def test_speeds_are_over_softmax_of_the_same_race():
    race = {SOFTMAX.label: {"rate_8x": 2.0}, INLINE_LOCAL.label: {"rate_8x": 6.0}}
    found = Numbers.of(
        results(*(Record("race", None, s, "done", race, 1.0, f"{s}", "r", "c", {}) for s in range(3)), claims=["speed"])
    )
    assert found.values[Side(INLINE_LOCAL, "speed_8x")] == {0: 3.0, 1: 3.0, 2: 3.0}
    check = next(c for c in CLAIMS["speed"].checks if c.left.metric == "speed_8x" and c.right.contender == SOFTMAX)
    assert found.judge(check) == "holds"


def test_rates_that_would_turn_a_difference_are_told():
    at = {0.5: (50.0, 49.0), 1.0: (52.0, 51.0), 2.0: (51.0, 55.0)}
    rows = [
        record(replace(one, rate=rate), 0, values[place])
        for rate, values in at.items()
        for place, one in enumerate((INLINE_LOCAL, SOFTMAX))
    ]
    told = results(*rows)
    check = next(c for c in CLAIMS["mixers"].checks if c.says == "InLine + local beats softmax")
    assert Numbers.of(told).at_best_rates(check) == -3.0
    text = page(told, {})
    assert "More than a point better at another rate: softmax (2x, +4.0)." in text
    assert "InLine + local beats softmax (+1.00 to -3.00)" in text
    assert "| softmax | 49.00 | 51.00 | 55.00 | 2x, the edge |" in text


def test_a_file_and_back(tmp_path):
    told = results(record(INLINE, 0, 80.0, steps=5), record(SOFTMAX, 0, 70.0))
    file = tmp_path / "results.json"
    file.write_text(told.to_json())
    assert read_results(file) == told
    assert len(json.loads(told.to_json())["environments"]) == 1
    for broken in (told.to_json()[:-20], "{}", "[1]", told.to_json().replace('"mixers"', '"no such claim"')):
        file.write_text(broken)
        with pytest.raises(ValueError, match=r"is no results\.json"):
            read_results(file)
    with pytest.raises(ValueError, match=r"cannot read .*: No such file"):
        read_results(tmp_path / "none.json")


def test_counting_in_words():
    assert counted(["holds", "cannot tell", "holds"]) == "2 hold, 1 cannot be told"
    assert counted(["does not hold", "holds"]) == "1 holds, 1 does not"
    assert counted([]) == "-"


def everything():
    """Records of all that any claim asks for."""
    rows = []
    for claim in CLAIMS.values():
        for number, contender in enumerate(claim.contenders):
            extra = {"steps": 10, "parameters": 1000, "multiply_adds": 10**6}
            rows += [record(contender, seed, 50.0 + number + 0.1 * seed, **extra) for seed in range(3)]
    for number, one in enumerate(CLAIMS["seeing"].contenders):
        seen = {"confused": number, "near": 20.0, "even": 10.0, "own": 40.0, "random": 45.0, "whole": 50.0}
        rows += [replace(record(one, s, 0.0, kind="look"), metrics=seen) for s in range(3)]
    rates = {f"rate_{factor}x": 10.0 / factor for factor in (1, 2, 4, 8)}
    race = {one.label: rates for one in CLAIMS["speed"].contenders}
    rows += [Record("race", None, s, "done", race, 1.0, f"race {s}", "r", "c", {}) for s in range(3)]
    return results(*rows, claims=list(CLAIMS))


def test_a_page_has_every_claim_check_and_contender():
    told = everything()
    text = page(told, {"mixers": "images/a.png"})
    assert "![Eight attentions on one DeiT](images/a.png)" in text
    for claim in CLAIMS.values():
        assert f"## {claim.title}" in text
        assert all(check.says in text for check in claim.checks)
        assert all(f"| {one.label} |" in text for one in claim.contenders)
    assert [row[0] for row in summary(told)] == [claim.title for claim in CLAIMS.values()]
    assert "| 72.2 |" in text, "what the paper reports"
    assert text.count("nan") == 0


@pytest.mark.parametrize("name", CLAIMS)
def test_every_claim_has_a_figure(name):
    figure = draw(CLAIMS[name], Numbers.of(everything()))
    assert figure.axes
    assert all(axis.get_xlabel() for axis in figure.axes)
    figure.draw_without_rendering()
    assert draw(CLAIMS[name], Numbers.of(results())) is None


def test_models_that_were_not_looked_at_yet_make_no_figure():
    """A run that was stopped before it looked at them, or timed them."""
    trained = Numbers.of(results(*(record(one, 0, 50.0) for one in CLAIMS["seeing"].contenders)))
    assert draw(CLAIMS["seeing"], trained) is None
    assert draw(CLAIMS["speed"], trained) is None


def test_a_figure_of_one_seed():
    rows = [record(Contender(mixer), 0, 50.0) for mixer in ("inline", "softmax")]
    draw(CLAIMS["mixers"], Numbers.of(results(*rows))).draw_without_rendering()
