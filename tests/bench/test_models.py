"""The models' bench: what its figures mean, and that the README shows those that were stored."""

import json
from pathlib import Path

import pytest

from inline_attention.bench.models import COLUMNS, MODEL_CASES, memory, rows, sentences, speed

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"

RECORD = {
    "inline": "a",
    "rival": "b",
    "size": 224,
    "batch": 2,
    "step": True,
    "forward": {"a": {"best": 0.01}, "b": {"best": 0.02}},
    "training": {"a": {"best": 0.04}, "b": {"best": 0.03}},
    "memory": {"a": 300, "b": 200},
}


def test_ratios_are_the_right_way_round():
    assert speed(RECORD, "forward") == 2
    assert speed(RECORD, "training") == pytest.approx(0.75)
    assert memory(RECORD) == 1.5
    assert rows([RECORD]) == [["a", "224", "2", "10.0", "2.00", "40.0", "0.75", "1.50"]]
    assert sentences([RECORD]) == [
        "Forward, the rival is faster than none",
        "Training step, the rival is faster than a at 224, batch 2: 0.75",
        "Training step, the rival needs less memory than a at 224, batch 2: 1.50",
    ]


def test_the_readme_shows_what_was_stored():
    records = json.loads((RESULTS / "models.json").read_text())["records"]
    assert [(r["inline"], r["size"], r["batch"]) for r in records] == [(c.inline, c.size, c.batch) for c in MODEL_CASES]
    table = [COLUMNS, ["---:"] * len(COLUMNS), *rows(records)]
    assert "\n".join(f"| {' | '.join(row)} |" for row in table) in (RESULTS.parents[1] / "README.md").read_text()
