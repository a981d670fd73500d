"""Crossing points and growth of made-up power laws, and a small bench with all candidates."""

from dataclasses import asdict
from math import inf, sqrt

import pytest
import torch

from inline_attention.bench.resolution import (
    RESOLUTION_CASES,
    ResolutionCase,
    crossing,
    draw,
    growth,
    rows,
    sentences,
    time,
)
from inline_attention.bench.result import peak
from inline_attention.bench.suite import BENCHES

SIZES = (224, 448, 896, 1792)


def made_up(size, **candidates):
    """Seconds and bytes of each."""
    return {
        **asdict(ResolutionCase("a", "timms", size, most=1792, textbook=True)),
        "forward": {name: {"best": cost[0], "median": 2 * cost[0], "rounds": 5} for name, cost in candidates.items()},
        "memory": {name: cost[1] for name, cost in candidates.items()},
        "errors": {},
    }


POWERS = [
    made_up(size, inline=(1e-6 * size**2, 50 * size**2), softmax=(1e-11 * size**4, 40 * size**2), textbook=(size, 10 * size**3))
    for size in SIZES
]


def test_the_crossing_point_of_power_laws():
    points = [(size, 3.0 * size**2, 1e-5 * size**4) for size in SIZES]
    assert crossing(points) == pytest.approx(sqrt(3e5))
    assert 448 < crossing(points) < 896
    assert crossing([(size, size**2, 2 * size**2) for size in SIZES]) == 0
    assert crossing([(size, size**2, size**2 / 2) for size in SIZES]) == inf
    assert crossing([(1, 1, 2), (2, 2, 1), (4, 1, 2)]) == pytest.approx(sqrt(8)), "only the last crossing lasts"


def test_sentences_about_crossing_points_and_growth():
    skipped = made_up(3584, inline=(1.1e-6 * 3584**2, 45 * 3584**2))
    said = sentences([*POWERS, skipped, made_up(448, inline=(1, 1)) | {"model": "b", "rival": "twin"}])
    assert said == [
        "a is faster than timms from 316 pixels a side on",
        "a needs less memory than timms: not within 224 to 1792 pixels a side",
        "a is faster than its textbook form at all sizes measured, 224 to 1792 pixels a side",
        "a needs less memory than its textbook form at all sizes measured, 224 to 1792 pixels a side",
        "a, greatest time per pixel above 448 pixels a side over that at 448: 1.10 (3584)",
        "a, greatest memory per pixel above 448 pixels a side over that at 448: 1.00 (1792)",
        "b, greatest time per pixel above 448 pixels a side over that at 448: not measured",
        "b, greatest memory per pixel above 448 pixels a side over that at 448: not measured",
    ]


def test_growth_of_the_cost_per_pixel():
    assert growth(POWERS[2], POWERS, time, "inline") == pytest.approx(1)
    assert growth(POWERS[2], POWERS, time, "softmax") == pytest.approx(4)
    assert growth(POWERS[0], POWERS, peak, "textbook") == pytest.approx(0.5)
    assert rows(POWERS)[7] == ["a", "softmax", "896", "6445.1", "2.00", "32", "8028", "40", "4.00", "1.00"]


def test_a_small_bench_runs_the_chosen_forms(tmp_path):
    cases = [ResolutionCase("inline_deit_nano", "vit_tiny_patch16_224", size, most=32, textbook=True) for size in (32, 64)]
    cases += [ResolutionCase("inline_pvt_nano", "twin", 32, most=32)]
    records = list(BENCHES["resolution"].run(cases, seconds=0.01, device=torch.device("cpu"), seed=0))
    assert [set(r["forward"]) - {"product"} for r in records] == [
        {"inline", "softmax", "textbook"},
        {"inline", "textbook"},
        {"inline", "softmax"},
    ]
    assert not any(r["errors"] for r in records)
    assert len(rows(records)) == 7
    draw([*records, *POWERS]).savefig(tmp_path / "resolution.png")
    assert (tmp_path / "resolution.png").stat().st_size > 10_000


def test_softmax_is_skipped_only_where_it_takes_too_long():
    assert {(c.model, c.size) for c in RESOLUTION_CASES if c.size > c.most} == {
        ("inline_deit_tiny", 3584),
        ("inline_pvt_tiny", 1792),
        ("inline_pvt_tiny", 3584),
    }
