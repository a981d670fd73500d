"""The bench of the layer, and its report from records alone."""

import json

import pytest
import torch

from inline_attention.bench.layer import LAYER_CASES, LayerCase, draw, growth, over_the_better_form, rows, sentences
from inline_attention.bench.result import memory_ratio, ratio
from inline_attention.bench.suite import BENCHES


def test_every_case_has_3000_tokens():
    assert all(case.batch * case.tokens >= 3000 for case in LAYER_CASES)
    assert {case.tokens for case in LAYER_CASES} >= {49, 784, 1024, 16_384}
    assert {case.dim for case in LAYER_CASES} == {64, 128, 192, 384, 512}


def test_a_small_bench_and_its_report(tmp_path):
    cases = [LayerCase(7, 64), LayerCase(14, 64)]
    records = list(BENCHES["layer"].run(cases, seconds=0.01, device=torch.device("cpu"), seed=0))
    records = json.loads(json.dumps(records))
    assert records[0]["chosen"] == {"inline": "inline, folded", "inline global": "inline global, heads"}
    assert records[1]["chosen"] == {"inline": "inline, folded", "inline global": "inline global, folded"}
    assert len(rows(records)) == 2
    assert any("softmax is faster than InLineAttention at" in sentence for sentence in sentences(records))
    draw(records).savefig(tmp_path / "layer.png")
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


def test_numbers_by_hand():
    small = made_up(1024, 2, **{"inline, folded": 2.0, "inline, heads": 1.6, "textbook": 3.0})
    large = made_up(16_384, 1, **{"inline, folded": 16.0, "inline, heads": 20.0, "textbook": 32.0})
    assert ratio(small, "forward", "textbook", "inline") == 1.5
    assert over_the_better_form(small, "forward", "inline") == 1.25
    assert over_the_better_form(large, "forward", "inline") == 1.0
    assert growth([small, large], "forward", "inline", 64) == pytest.approx(1.0)
    assert memory_ratio(small, "inline", "textbook") == 0.75
