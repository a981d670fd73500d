"""benchmarks/results/ and docs/speed.md: pages are made from records, all cases are there, docs/speed.md has stored figures.

After a change of cases or reports these fail until `make bench` was run again.
"""

from dataclasses import fields
from pathlib import Path

import pytest

from inline_attention.bench.measure import MIN_ROUNDS
from inline_attention.bench.result import KINDS, from_json
from inline_attention.bench.suite import BENCHES

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
MEASURED = [name for name in BENCHES if (RESULTS / f"{name}.json").is_file()]
"""Those with a stored result: the others take an hour of a quiet machine, and none was there yet."""


def test_what_is_not_measured_yet():
    assert sorted(set(BENCHES) - set(MEASURED)) == ["bags", "mixers", "stream_segment", "stream_train"]


def stored(name):
    return from_json((RESULTS / f"{name}.json").read_text())


@pytest.mark.parametrize("name", MEASURED)
def test_the_page_is_made_from_the_records(name):
    assert (RESULTS / f"{name}.md").read_text() == BENCHES[name].page(stored(name))


@pytest.mark.parametrize("name", MEASURED)
def test_all_cases_were_measured_with_equal_rounds(name):
    """All candidates of a case had the same number of rounds, and enough of them."""
    bench, result = BENCHES[name], stored(name)
    assert result.complete
    assert [bench.case(**{f.name: r[f.name] for f in fields(bench.case)}) for r in result.records] == list(bench.cases)
    for record in result.records:
        for kind in set(KINDS) & set(record):
            (rounds,) = {timing["rounds"] for timing in record[kind].values()}
            assert rounds >= (1 if kind in ("stream", "once") else MIN_ROUNDS)  # a large image is taken once


@pytest.mark.parametrize("name", ["layer", "models"])
def test_every_row_of_the_tables_in_the_docs_is_a_stored_one(name):
    report = BENCHES[name].report
    rows = {f"| {' | '.join(row)} |" for row in report.rows(stored(name).records)}
    lines = (ROOT / "docs" / "speed.md").read_text().splitlines()
    start = lines.index(f"| {' | '.join(report.COLUMNS)} |") + 2
    end = next(number for number in range(start, len(lines)) if not lines[number].startswith("|"))
    assert end - start >= 8
    assert set(lines[start:end]) <= rows


def test_the_docs_have_the_size_from_which_deit_is_faster():
    said = [
        s
        for s in BENCHES["resolution"].report.sentences(stored("resolution").records)
        if s.startswith("inline_deit_tiny is faster")
    ]
    assert len(said) == 2
    assert said[0] in (ROOT / "docs" / "speed.md").read_text()
