"""From records to numbers, verdicts, a page and figures."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from inline_attention.evidence.candidate import Candidate
from inline_attention.evidence.claims import CLAIMS, INLINE, INLINE_LOCAL, LINEAR, SOFTMAX, SOFTMAX_LOCAL, Check, Side
from inline_attention.evidence.figures import draw
from inline_attention.evidence.results import Numbers, Results, count_verdicts, read_results
from inline_attention.evidence.results_page import page, summary
from inline_attention.evidence.scale import SCALES
from inline_attention.evidence.trial import Record, load_record

STORED = Path(__file__).parents[1] / "stored" / "reproduce_0_1.json"

DATA = {"name": "made up", "train": 100, "val": 50, "classes": 4, "height": 8, "width": 8}


def record(candidate, seed, top1, status="done", kind="train", **metrics):
    found = {"top1": top1, **metrics} if status != "failed" else {}
    key = f"{candidate.label} {seed} {kind}"
    return Record(kind, asdict(candidate), seed, status, found, 2.0, key, "r", "c", {"torch": "2"}, "why" * (status != "done"))


def results(*records, claims=("mixers",), seeds=3):
    return Results("glance", "small", DATA, seeds, list(claims), len(records), list(records))


def test_differences_are_paired():
    """Seeds that differ by ten points, candidates by one: taken seed by seed that is certain, otherwise it is nothing."""
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
    assert found.verdict_of(check) == "holds"
    assert found.verdict_of(replace(check, beyond=2.0)) == "does not hold"
    assert found.mean(Side(INLINE)).half > 10


def test_differences_use_shared_seeds_only():
    found = Numbers.of(results(*(record(SOFTMAX, s, 50.0) for s in (0, 1, 2)), *(record(INLINE, s, 51.0) for s in (1, 2, 3))))
    difference = found.difference(Check("", Side(INLINE), Side(SOFTMAX)))
    assert (difference.count, difference.mean) == (2, 1.0)
    assert found.verdict_of(Check("", Side(INLINE), Side(SOFTMAX))) == "undecided"
    assert found.difference(Check("", Side(INLINE), Side(LINEAR))) is None


def test_a_difference_of_differences():
    values = {INLINE: (5.0, 6.0, 7.0), SOFTMAX: (1.0, 1.0, 1.0), LINEAR: (2.0, 3.0, 3.0), SOFTMAX_LOCAL: (1.0, 1.0, 1.5)}
    found = Numbers.of(results(*(record(one, s, v) for one, all_ in values.items() for s, v in enumerate(all_))))
    check = Check("", Side(INLINE), Side(SOFTMAX), than=(Side(LINEAR), Side(SOFTMAX_LOCAL)))
    assert found.difference(check).mean == pytest.approx((4 - 1 + 5 - 2 + 6 - 1.5) / 3)


def test_failed_trials_are_left_out_and_diverged_ones_count_as_guessing():
    made_up = results(record(INLINE, 0, 80.0), record(INLINE, 1, 0.0, "failed"), record(INLINE, 2, 25.0, "diverged"))
    assert Numbers.of(made_up).values[Side(INLINE)] == {0: 80.0, 2: 25.0}
    text = page(made_up, {})
    assert "InLine, seed 1: failed. why" in text
    assert "InLine, seed 2: diverged. why" in text
    assert "of which 1 failed" in text


def test_speeds_are_relative_to_softmax_in_the_same_trial():
    speeds = {SOFTMAX.label: {"rate_8x": 2.0}, INLINE_LOCAL.label: {"rate_8x": 6.0}}
    found = Numbers.of(
        results(*(Record("time", None, s, "done", speeds, 1.0, f"{s}", "r", "c", {}) for s in range(3)), claims=["speed"])
    )
    assert found.values[Side(INLINE_LOCAL, "speed_8x")] == {0: 3.0, 1: 3.0, 2: 3.0}
    check = next(c for c in CLAIMS["speed"].checks if c.left.metric == "speed_8x" and c.right.candidate == SOFTMAX)
    assert found.verdict_of(check) == "holds"


def test_learning_rates_that_would_change_a_result_are_reported():
    at = {0.5: (50.0, 49.0), 1.0: (52.0, 51.0), 2.0: (51.0, 55.0)}
    rows = [
        record(replace(one, rate=rate), 0, values[place])
        for rate, values in at.items()
        for place, one in enumerate((INLINE_LOCAL, SOFTMAX))
    ]
    made_up = results(*rows)
    check = next(c for c in CLAIMS["mixers"].checks if c.statement == "InLine + local beats softmax")
    assert Numbers.of(made_up).at_best_rates(check) == -3.0
    text = page(made_up, {})
    assert "Better by more than a point at another learning rate: softmax (2x, +4.0)." in text
    assert "InLine + local beats softmax (+1.00 to -3.00)" in text
    assert "| softmax | 49.00 | 51.00 | 55.00 | 2x, end of the range |" in text


def test_results_are_equal_after_writing_and_reading(tmp_path):
    made_up = results(record(INLINE, 0, 80.0, steps=5), record(SOFTMAX, 0, 70.0))
    file = tmp_path / "results.json"
    file.write_text(made_up.to_json())
    assert read_results(file) == made_up
    assert len(json.loads(made_up.to_json())["environments"]) == 1
    for broken in (made_up.to_json()[:-20], "{}", "[1]", made_up.to_json().replace('"mixers"', '"no such claim"')):
        file.write_text(broken)
        with pytest.raises(ValueError, match=r"is no results\.json"):
            read_results(file)
    with pytest.raises(ValueError, match=r"cannot read .*: No such file"):
        read_results(tmp_path / "none.json")


def test_the_file_of_version_0_1_is_read():
    """Three records of a file that 0.1.0 wrote: kinds of trials, fields, a claim and the description had other words."""
    found = read_results(STORED)
    assert [record.kind for record in found.records] == ["train", "analyze", "time"]
    assert Candidate(**found.records[0].candidate) == INLINE
    assert found.claims == list(CLAIMS)
    assert (found.planned, found.description) == (246, SCALES["laptop"].description)
    numbers = Numbers.of(found)
    assert numbers.mean(Side(INLINE)).mean == 74.19000267982483
    assert numbers.values[Side(LINEAR, "near")] == {0: 13.82836364209652}
    assert numbers.values[Side(INLINE_LOCAL, "speed_8x")]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("data",), None),
        (("data", "train"), "many"),
        (("seeds",), [3]),
        (("scale",), {}),
        (("records", 0, "seconds"), "long"),
        (("records", 0, "code"), []),
        (("records", 0, "candidate", "family"), "none"),
        (("records", 0, "candidate", "mixer"), 3),
    ],
)
def test_values_of_other_types_are_refused(place, value, tmp_path):
    table = json.loads(results(record(SOFTMAX, 0, 50.0, "failed")).to_json())
    *outer, last = place
    part = table
    for key in outer:
        part = part[key]
    part[last] = value
    path = tmp_path / "results.json"
    path.write_text(json.dumps(table))
    with pytest.raises(ValueError, match=r"results\.json is no results\.json of `inline reproduce`, or of another version"):
        read_results(path)


def test_a_file_nested_too_deep_is_refused(tmp_path):
    (tmp_path / "results.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"is no results\.json"):
        read_results(tmp_path / "results.json")


def test_the_record_files_of_version_0_1_are_read(tmp_path):
    """Those of an --out folder: one file per trial."""
    stored = json.loads(STORED.read_text())
    for row, present in zip(stored["records"], read_results(STORED).records, strict=True):
        row["environment"] = stored["environments"][row["environment"]]
        (tmp_path / f"{row['key']}.json").write_text(json.dumps(row))
        assert load_record(tmp_path, row["key"]) == present


def test_verdicts_counted_in_words():
    assert count_verdicts(["holds", "undecided", "holds"]) == "2 hold, 1 undecided"
    assert count_verdicts(["does not hold", "holds"]) == "1 holds, 1 does not"
    assert count_verdicts([]) == "-"


def everything():
    """Records of all that any claim asks for."""
    rows = []
    for claim in CLAIMS.values():
        for number, candidate in enumerate(claim.candidates):
            extra = {"steps": 10, "parameters": 1000, "multiply_adds": 10**6}
            rows += [record(candidate, seed, 50.0 + number + 0.1 * seed, **extra) for seed in range(3)]
    for number, one in enumerate(CLAIMS["attention"].candidates):
        seen = {"confused": number, "near": 20.0, "even": 10.0, "own": 40.0, "random": 45.0, "whole": 50.0}
        rows += [replace(record(one, s, 0.0, kind="analyze"), metrics=seen) for s in range(3)]
    rates = {f"rate_{factor}x": 10.0 / factor for factor in (1, 2, 4, 8)}
    speeds = {one.label: rates for one in CLAIMS["speed"].candidates}
    rows += [Record("time", None, s, "done", speeds, 1.0, f"timing {s}", "r", "c", {}) for s in range(3)]
    return results(*rows, claims=list(CLAIMS))


def test_a_page_has_every_claim_check_and_candidate():
    made_up = everything()
    text = page(made_up, {"mixers": "images/a.png"})
    assert "![Eight kinds of attention in one DeiT](images/a.png)" in text
    for claim in CLAIMS.values():
        assert f"## {claim.title}" in text
        assert all(check.statement in text for check in claim.checks)
        assert all(f"| {one.label} |" in text for one in claim.candidates)
    assert [row[0] for row in summary(made_up)] == [claim.title for claim in CLAIMS.values()]
    assert "| 72.2 |" in text, "what the paper reports"
    assert text.count("nan") == 0


@pytest.mark.parametrize("name", CLAIMS)
def test_every_claim_has_a_figure(name):
    figure = draw(CLAIMS[name], Numbers.of(everything()))
    assert figure.axes
    assert all(axis.get_xlabel() for axis in figure.axes)
    figure.draw_without_rendering()
    assert draw(CLAIMS[name], Numbers.of(results())) is None


def test_no_figure_before_models_are_analysed():
    """A run that was stopped before it analysed or timed them."""
    trained = Numbers.of(results(*(record(one, 0, 50.0) for one in CLAIMS["attention"].candidates)))
    assert draw(CLAIMS["attention"], trained) is None
    assert draw(CLAIMS["speed"], trained) is None


def test_a_figure_of_one_seed():
    rows = [record(Candidate(mixer), 0, 50.0) for mixer in ("inline", "softmax")]
    draw(CLAIMS["mixers"], Numbers.of(results(*rows))).draw_without_rendering()
