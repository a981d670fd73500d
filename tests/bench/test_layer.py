"""The bench measures what it says: the same function, in turn, and reports from records alone."""

import json
import sys
import time
from pathlib import Path

import pytest
import torch

from inline_attention import InLineAttention
from inline_attention.bench.layer import LAYER_CASES, LayerCase, measure_layers
from inline_attention.bench.memory import peak_memory
from inline_attention.bench.report import COLUMNS, draw, growth, memory, over_the_better_form, ratio, rows, sentences
from inline_attention.bench.textbook import TextbookInLine
from inline_attention.bench.timing import LEAST, interleave

CPU = torch.device("cpu")
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@pytest.mark.parametrize("local", [False, True])
def test_textbook_is_the_same_function(local):
    layer = InLineAttention(64, 2, local=local)
    x = torch.randn(3, 30, 64)
    torch.testing.assert_close(TextbookInLine(layer)(x, (5, 6)), layer(x, (5, 6)), rtol=1e-5, atol=1e-5)


def test_contenders_take_turns():
    calls = []
    timings = interleave(
        {name: lambda name=name: (calls.append(name), time.sleep(0.011)) for name in ("a", "b")}, seconds=0.2, device=CPU
    )
    timed = calls[4:]  # after one call to warm up and one to size the rounds, each
    assert timed == ["a", "b"] * (len(timed) // 2)
    assert timings["a"].rounds >= 3
    assert 0.011 <= timings["a"].best <= timings["a"].median < 0.1


def test_peak_memory_sees_what_is_freed_again():
    def call():
        held = [torch.ones(2**20) for _ in range(8)]
        return sum(float(t[0]) for t in held)

    measured = peak_memory(call, CPU)
    assert (measured is not None) == (sys.platform == "linux")
    assert measured is None or 0.8 * 2**25 < measured < 1.5 * 2**25


def test_every_case_has_3000_tokens():
    assert all(case.batch * case.tokens >= 3000 for case in LAYER_CASES)
    assert {case.tokens for case in LAYER_CASES} >= {49, 784, 1024, 16_384}
    assert {case.dim for case in LAYER_CASES} == {64, 128, 192, 384, 512}


def test_records_become_a_table_sentences_and_a_picture(tmp_path):
    records = list(measure_layers([LayerCase(7, 64), LayerCase(14, 64)], seconds=0.01, device=CPU, seed=0))
    records = json.loads(json.dumps(records))
    assert records[0]["chosen"] == {"inline": "inline, folded", "inline global": "inline global, heads"}
    assert records[1]["chosen"] == {"inline": "inline, folded", "inline global": "inline global, folded"}
    assert len(rows(records)) == 2
    assert any("softmax is faster than InLineAttention at" in sentence for sentence in sentences(records))
    draw(records, tmp_path / "layer.png")
    assert (tmp_path / "layer.png").stat().st_size > 10_000


def made_up(tokens, batch, **seconds):
    times = {name: {"best": value, "median": value, "rounds": 3} for name, value in seconds.items()}
    return {
        "tokens": tokens,
        "dim": 64,
        "batch": batch,
        "chosen": {"inline": "inline, folded"},
        "forward": times,
        "memory": {"inline, folded": 3, "textbook": 4},
    }


def test_figures_are_what_they_are_called():
    small = made_up(1024, 2, **{"inline, folded": 2.0, "inline, heads": 1.6, "textbook": 3.0})
    large = made_up(16_384, 1, **{"inline, folded": 16.0, "inline, heads": 20.0, "textbook": 32.0})
    assert ratio(small, "forward", "textbook", "inline") == 1.5
    assert over_the_better_form(small, "forward", "inline") == 1.25
    assert over_the_better_form(large, "forward", "inline") == 1.0
    assert growth([small, large], "forward", "inline", 64) == pytest.approx(1.0)
    assert memory(small, "inline", "textbook") == 0.75


def test_the_stored_report_is_made_from_the_stored_records():
    stored = json.loads((RESULTS / "layer.json").read_text())
    page = (RESULTS / "layer.md").read_text()
    for row in rows(stored["records"]):
        assert f"| {' | '.join(row)} |" in page
    assert "\n".join(sentences(stored["records"])) in page
    assert len(stored["records"]) == len(LAYER_CASES)


def test_stored_rounds_are_fair():
    """All contenders of a case had the same number of rounds, and enough of them."""
    for record in json.loads((RESULTS / "layer.json").read_text())["records"]:
        for kind in ("forward", "step"):
            (rounds,) = {timing["rounds"] for timing in record[kind].values()}
            assert rounds >= LEAST


def test_the_readme_shows_stored_figures():
    """Every row of the README's table is a row of the stored one."""
    stored = [f"| {' | '.join(row)} |" for row in rows(json.loads((RESULTS / "layer.json").read_text())["records"])]
    readme = (RESULTS.parents[1] / "README.md").read_text().splitlines()
    start = next(number for number, line in enumerate(readme) if line.startswith(f"| {' | '.join(COLUMNS)} |"))
    shown = [line for line in readme[start + 2 :] if line.startswith("|")]
    assert len(shown) == 12
    assert set(shown) <= set(stored)
