"""The bench of all mixers, and its report from records alone."""

import json

import torch

from inline_attention import MIXERS
from inline_attention.bench import mixers
from inline_attention.bench.mixers import CANDIDATES, MIXER_CASES, MixerCase, draw, rows, sentences
from inline_attention.bench.suite import BENCHES


def test_every_mixer_is_a_candidate_of_every_case():
    assert {name.split()[0] for name in CANDIDATES} == set(MIXERS)
    assert [case.tokens for case in MIXER_CASES] == [196, 1024, 16_384]
    assert all(case.batch * case.tokens >= 3000 for case in MIXER_CASES)


def test_a_small_bench_and_its_report(tmp_path, monkeypatch):
    """One small image, narrow layers."""
    for owner, name, value in ((mixers, "DIM", 24), (mixers, "HEADS", 3), (MixerCase, "batch", 1)):
        monkeypatch.setattr(owner, name, value)
    (small,) = BENCHES["mixers"].run([MixerCase(4)], seconds=0.001, device=torch.device("cpu"), seed=0)
    records = json.loads(json.dumps([small, {**small, "tokens": 25}]))
    assert {len(record[kind]) for record in records for kind in ("step", "memory")} == {len(CANDIDATES)}
    assert [row[:2] for row in rows(records)][:3] == [["inline", "16"], ["inline", "25"], ["softmax", "16"]]
    assert len(sentences(records)) == 3
    draw(records).savefig(tmp_path / "mixers.png")
    assert (tmp_path / "mixers.png").stat().st_size > 10_000


def test_numbers_by_hand():
    def timed(seconds):
        return {"best": seconds, "median": seconds, "rounds": 3}

    def record(tokens, batch, own):
        return {
            "side": 1,
            "tokens": tokens,
            "batch": batch,
            "parameters": dict.fromkeys(CANDIDATES, 1234),
            "forward": {"four products": timed(2.0), **dict.fromkeys(CANDIDATES, timed(own))},
            "step": dict.fromkeys(CANDIDATES, timed(12.0)),
            "memory": dict.fromkeys(CANDIDATES, 5_000_000),
        }

    records = [record(100, 4, 3.0), record(1600, 1, 24.0)]
    assert rows(records)[0] == ["inline", "100", "1,234", "1.50", "6.00", "5.00"]
    assert "softmax 2.00" in sentences(records)[-1]
