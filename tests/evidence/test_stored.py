"""benchmarks/results/reproduce.json: whole for its claims, and what docs and README show is made from it."""

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
from inline_attention.evidence.report import SUMMARY, page, summary, table
from inline_attention.evidence.results import Numbers, read_results
from inline_attention.evidence.scale import SCALES
from inline_attention.evidence.statistics import FEWEST

ROOT = Path(__file__).parents[2]
RESULTS = read_results(ROOT / "benchmarks" / "results" / "reproduce.json")
NUMBERS = Numbers.of(RESULTS)


def picture_of(name):
    return f"images/results_{name}.png"


def test_the_page_is_made_from_the_records():
    """After a change of claims or of the report: `make results`."""
    pictures = {claim.name: picture_of(claim.name) for claim in RESULTS.chosen}
    assert (ROOT / "docs" / "results.md").read_text() == page(RESULTS, pictures)


@pytest.mark.parametrize("name", RESULTS.claims)
def test_every_claim_has_a_figure(name):
    assert draw(CLAIMS[name], NUMBERS) is not None
    assert (ROOT / "docs" / picture_of(name)).stat().st_size > 5000


def test_the_readme_has_the_short_form():
    assert "\n".join(table(SUMMARY, summary(RESULTS))) in (ROOT / "README.md").read_text()


def test_its_claims_were_measured_whole_with_shared_seeds():
    assert RESULTS.claims == list(CLAIMS)
    assert RESULTS.says == SCALES[RESULTS.scale].says, "docs/reproduce.md says how to go on with it"
    assert len({record.key for record in RESULTS.records}) == RESULTS.wanted
    assert RESULTS.seeds >= FEWEST
    seeds = set(range(RESULTS.seeds))
    for claim in RESULTS.chosen:
        for side in claim.sides:
            assert set(NUMBERS.values[side]) == seeds, f"{claim.name}: {side}"
    for contender in trained(RESULTS.chosen):
        assert set(NUMBERS.values[Side(contender)]) == ({0} if contender.rate in RATES else seeds), contender.label


def test_the_readme_says_what_was_measured():
    def mean(contender, metric="top1"):
        return NUMBERS.mean(Side(contender, metric)).mean

    def pair(left, right):
        return f"{mean(left):.1f} and {mean(right):.1f}"

    def longer(*contenders):
        return pair(*(replace(one, longer=LENGTHS[-1]) for one in contenders))

    readme = " ".join((ROOT / "README.md").read_text().split())
    fine = [at_equal_compute(one, RESOLUTIONS[-1]) for one in (INLINE_LOCAL, SOFTMAX_LOCAL)]
    for said in (
        f"({mean(replace(LINEAR, kernel='identity')):.1f} % against {mean(INLINE):.1f} %)",
        f"InLine ({mean(INLINE_LOCAL) - mean(INLINE):+.1f} points) and softmax ({mean(SOFTMAX_LOCAL) - mean(SOFTMAX):+.1f})",
        f"({pair(INLINE_LOCAL, SOFTMAX_LOCAL)} %; after four times the steps {longer(INLINE_LOCAL, SOFTMAX_LOCAL)})",
        f"({pair(INLINE, SOFTMAX)} %; after four times the steps {longer(INLINE, SOFTMAX)})",
        f"({pair(*fine)} %)",
        f"{mean(INLINE_LOCAL, 'speed_8x'):.1f} times as fast as softmax",
    ):
        assert said in readme, said


def test_records_can_be_compared_with_a_later_run():
    """Versions, machine, seconds, the recipe's hash; one recipe for all seeds of a contender."""
    hashes = {}
    for record in RESULTS.records:
        assert record.status in ("done", "diverged")
        assert record.seconds > 0
        assert {"torch", "timm"} <= set(record.environment)
        hashes.setdefault((record.kind, str(record.contender)), set()).add(record.recipe_hash)
        assert record.code
    assert all(len(found) == 1 for found in hashes.values())
    for kind in ("train", "look", "race"):
        assert len({record.code for record in RESULTS.records if record.kind == kind}) == 1
