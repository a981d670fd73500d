"""benchmarks/results/reproduce.json: whole for its claims, and what the docs show is made from it."""

from dataclasses import replace
from pathlib import Path

import pytest

from inline_attention.evidence.claims import (
    CLAIMS,
    INLINE,
    INLINE_LOCAL,
    LENGTHS,
    LINEAR,
    RATES,
    RESOLUTIONS,
    SOFTMAX,
    SOFTMAX_LOCAL,
    Side,
    at_equal_compute,
    trained,
)  # fmt: skip
from inline_attention.evidence.figures import draw
from inline_attention.evidence.results import Numbers, read_results
from inline_attention.evidence.results_page import SUMMARY, page, summary, table
from inline_attention.evidence.scale import SCALES
from inline_attention.evidence.statistics import MIN_SEEDS

ROOT = Path(__file__).parents[2]
RESULTS = read_results(ROOT / "benchmarks" / "results" / "reproduce.json")
NUMBERS = Numbers.of(RESULTS)


def image_of(name):
    return f"images/results_{name}.png"


def test_the_page_is_made_from_the_records():
    """After a change of claims or of the report: `make results`."""
    images = {claim.name: image_of(claim.name) for claim in RESULTS.chosen}
    assert (ROOT / "docs" / "results.md").read_text() == page(RESULTS, images)


@pytest.mark.parametrize("name", RESULTS.claims)
def test_every_claim_has_a_figure(name):
    assert draw(CLAIMS[name], NUMBERS) is not None
    assert (ROOT / "docs" / image_of(name)).stat().st_size > 5000


def test_the_summary_in_the_docs_is_made_from_the_records():
    assert "\n".join(table(SUMMARY, summary(RESULTS))) in (ROOT / "docs" / "reproduce.md").read_text()


def test_all_claims_were_measured_completely_with_shared_seeds():
    assert RESULTS.claims == list(CLAIMS)
    assert RESULTS.description == SCALES[RESULTS.scale].description, "docs/reproduce.md says how to go on with it"
    assert len({record.key for record in RESULTS.records}) == RESULTS.planned
    assert RESULTS.seeds >= MIN_SEEDS
    seeds = set(range(RESULTS.seeds))
    for claim in RESULTS.chosen:
        for side in claim.sides:
            assert set(NUMBERS.values[side]) == seeds, f"{claim.name}: {side}"
    for candidate in trained(RESULTS.chosen):
        assert set(NUMBERS.values[Side(candidate)]) == ({0} if candidate.rate in RATES else seeds), candidate.label


def test_sentences_in_the_docs_have_the_measured_numbers():
    def mean(candidate, metric="top1"):
        return NUMBERS.mean(Side(candidate, metric)).mean

    def pair(left, right):
        return f"{mean(left):.1f} and {mean(right):.1f}"

    def longer(*candidates):
        return pair(*(replace(one, longer=LENGTHS[-1]) for one in candidates))

    page = " ".join((ROOT / "docs" / "reproduce.md").read_text().split())
    fine = [at_equal_compute(one, RESOLUTIONS[-1]) for one in (INLINE_LOCAL, SOFTMAX_LOCAL)]
    for said in (
        f"({mean(replace(LINEAR, kernel='identity')):.1f} % against {mean(INLINE):.1f} %)",
        f"InLine ({mean(INLINE_LOCAL) - mean(INLINE):+.1f} points) and softmax ({mean(SOFTMAX_LOCAL) - mean(SOFTMAX):+.1f})",
        f"({pair(INLINE_LOCAL, SOFTMAX_LOCAL)} %; after four times the steps {longer(INLINE_LOCAL, SOFTMAX_LOCAL)})",
        f"({pair(INLINE, SOFTMAX)} %; after four times the steps {longer(INLINE, SOFTMAX)})",
        f"({pair(*fine)} %)",
        f"{mean(INLINE_LOCAL, 'speed_8x'):.1f} times as fast as softmax",
    ):
        assert said in page, said


def test_records_can_be_compared_with_a_later_run():
    """Versions, machine, seconds, the recipe's hash; one recipe for all seeds of a candidate."""
    hashes = {}
    for record in RESULTS.records:
        assert record.status in ("done", "diverged")
        assert record.seconds > 0
        assert {"torch", "timm"} <= set(record.environment)
        hashes.setdefault((record.kind, str(record.candidate)), set()).add(record.recipe_hash)
        assert record.code
    assert all(len(found) == 1 for found in hashes.values())
    for kind in ("train", "analyze", "time"):
        assert len({record.code for record in RESULTS.records if record.kind == kind}) == 1


def test_the_table_of_confused_queries_has_the_stored_numbers():
    """Of docs/analysis.md, by the records of `inline reproduce newer`."""
    found = read_results(ROOT / "benchmarks" / "results" / "newer.json")
    metrics: dict[str, dict[str, float]] = {}
    for record in found.records:
        metrics.setdefault(record.candidate["mixer"], {}).update(record.metrics)
    text = (ROOT / "docs" / "analysis.md").read_text().partition("## Which of the sixteen confuse queries")[2]
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    stated = {row[0].strip("`"): tuple(row[2:]) for row in cells if len(row) == 4}
    assert stated == {name: (f"{one['confused']:.2f}", f"{one['top1']:.1f}") for name, one in metrics.items()}
