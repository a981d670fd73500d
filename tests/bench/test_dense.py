"""Ratios of made-up records, and a small bench with all candidates."""

from dataclasses import asdict

import pytest
import torch

from inline_attention.bench.dense import DENSE_CASES, FORMS, DenseCase, _build, draw, measure_dense, rows, sentences, time
from inline_attention.dense.pyramid import backbone_of

CASE = DenseCase("inline_pvt_nano", "semantic_fpn", 64, most=64, written=64)


def made_up(size, **candidates):
    """Seconds and bytes of each; softmax was timed once."""
    timings = {name: {"best": cost[0], "median": 2 * cost[0], "rounds": 5} for name, cost in candidates.items()}
    once = {"softmax": timings.pop("softmax")}
    memory = {name: cost[1] for name, cost in candidates.items()}
    return {**asdict(DenseCase("a", "h", size, 1, 1)), "forward": timings, "once": once, "memory": memory, "errors": {}}


def test_ratios_by_hand():
    record = made_up(2048, inline=(3.0, 2e9), softmax=(60.0, 4e9), reduced=(2.0, 1e9))
    assert time(record, "softmax") == 60
    assert [row[3:] for row in rows([record])] == [
        ["InLine", "3.00", "2.00", "2000", "1.00", "1.00"],
        ["softmax, SDPA", "60.00", "-", "4000", "20.00", "2.00"],
        ["softmax, reduced keys", "2.00", "2.00", "1000", "0.67", "0.50"],
    ]
    assert sentences([record]) == [
        "a with h at 2048 x 2048: 0.05 of the time and 0.50 of the memory of softmax, SDPA",
        "a with h at 2048 x 2048: 1.50 of the time and 2.00 of the memory of softmax, reduced keys",
    ]
    assert len(draw([record]).axes) == 2


def test_the_mixer_of_each_form():
    kinds = {form: backbone_of(_build(CASE, form)).stages[0].blocks[0].mixer for form in FORMS}
    assert {form: type(mixer).__name__ for form, mixer in kinds.items()} == {
        "inline": "InLineAttention",
        "reduced": "SoftmaxAttention",
        "softmax": "SoftmaxAttention",
    }
    assert sum(p.numel() for p in kinds["reduced"].parameters()) > sum(p.numel() for p in kinds["softmax"].parameters())


@pytest.mark.parametrize("most", [64, 32])
def test_a_small_case_has_all_candidates(most):
    case = DenseCase("inline_pvt_nano", "semantic_fpn", 64, most=most, written=64)
    record = measure_dense(case, 0.01, torch.device("cpu"))
    assert record["errors"] == {}
    assert set(record["memory"]) == {"inline", "reduced", "softmax", "written"}
    assert ("softmax" in record["forward"]) == (most == 64)
    assert time(record, "softmax") > 0


def test_the_documented_size_is_among_the_cases():
    assert any(case.size == 2048 and case.model == "inline_pvt_tiny" for case in DENSE_CASES)
