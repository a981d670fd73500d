"""The made bags of `inline bench bags`, the models that it compares, and its report."""

import pytest
import torch

from inline_attention.bench.bags import MODELS, BagCase, draw, gigabytes, measure_bags, rows, sentences, step_seconds
from inline_attention.bench.made_bags import CHANNELS, STRENGTH, GatedAttention, Pooled, _kinds, made_bag


@pytest.mark.parametrize("tiles", [60, 1000])
def test_the_label_says_which_kind_lies_further_left(tiles):
    labels = []
    for seed in range(20):
        maps, mask, label = made_bag(tiles, seed)
        assert maps.shape == (1, CHANNELS, *mask.shape[1:])
        assert int(mask.sum()) == tiles
        assert not maps.permute(0, 2, 3, 1)[~mask].any()
        projected = torch.einsum("kc,chw->khw", _kinds(), maps[0])
        columns = [int(found.flatten().argmax()) % found.shape[1] for found in projected]
        assert abs(columns[0] - columns[1]) > mask.shape[2] // 2 - mask.shape[2] // 4
        assert (columns[0] < columns[1]) == bool(label)
        assert float(projected.amax()) > STRENGTH / 2
        labels.append(label)
    assert 4 <= sum(labels) <= 16
    again = made_bag(tiles, 19)
    assert torch.equal(again[0], maps)


def test_pooling_does_not_know_where_tiles_lie():
    maps, mask, _ = made_bag(60, 0)
    for model in (Pooled(), Pooled(weigh=GatedAttention)):
        model = model.eval()
        assert torch.allclose(model(maps, mask), model(maps.flip(3), mask.flip(2)), atol=1e-5)
        dirty = torch.where(mask[:, None], maps, torch.full_like(maps, 1e4))
        assert torch.equal(model(maps, mask), model(dirty, mask))
    weights = GatedAttention(8)(torch.randn(5, 8)).detach()
    assert float(weights.sum()) == pytest.approx(1)


@pytest.mark.parametrize("most", [30, 1000])
def test_a_small_case_is_measured(most, monkeypatch, tmp_path):
    monkeypatch.setattr("inline_attention.bench.bags.BATCH", 1)
    case = BagCase(60, most=most, train_tiles=60, training=0.0, test=2)
    record = {"tiles": 60, **measure_bags(case, 0.01, torch.device("cpu"))}
    assert set(record["accuracy"]) == set(MODELS) - ({"softmax"} if most < 60 else set())
    assert set(record["steps"].values()) == {1}
    assert ("once" in record) == (most < 60)
    assert all(step_seconds(record, name) > 0 for name in MODELS)
    assert [row[:2] for row in rows([record])] == [["60", name] for name in MODELS]
    draw([record]).savefig(tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 5000


def test_the_report_by_hand():
    timing = {"best": 0.5, "median": 0.5, "rounds": 5}
    record = {
        "tiles": 1000, "size": 1000, "model": "bags", "errors": {"mean": "no memory"},
        "step": {"inline": timing, "attention pooling": timing}, "once": {"softmax": {**timing, "best": 4.0}},
        "memory": {"inline": 2e9, "softmax": 3e9, "attention pooling": None},
        "accuracy": {"inline": 90.25, "softmax": 60.0}, "steps": {"inline": 1200, "softmax": 7},
    }  # fmt: skip
    assert gigabytes(record, "softmax") == 3
    assert rows([record])[:3] == [
        ["1,000", "inline", "90.2", "1,200", "0.500", "2.000"],
        ["1,000", "softmax", "60.0", "7", "4.000", "3.000"],
        ["1,000", "attention pooling", "-", "0", "0.500", "-"],
    ]
    assert sentences([record]) == [
        "1,000 tiles: a step of softmax takes 8.00 times as long as InLine's, and 1.50 times the memory",
        "Failed: mean of bags at 1000: no memory",
    ]
