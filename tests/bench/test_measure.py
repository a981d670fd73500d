"""Candidates are timed in turn, peak memory is measured, and a failing candidate does not end the measurement."""

import sys
import time

import torch

from inline_attention.bench.measure import interleave, measure_candidates, peak_memory

CPU = torch.device("cpu")


def test_candidates_take_turns():
    calls = []
    timings = interleave(
        {name: lambda name=name: (calls.append(name), time.sleep(0.011)) for name in ("a", "b")}, seconds=0.2, device=CPU
    )
    timed = calls[4:]  # after one call to warm up and one to size the rounds, each
    assert timed == ["a", "b"] * (len(timed) // 2)
    assert timings["a"].rounds >= 3
    assert 0.011 <= timings["a"].best <= timings["a"].median < 0.1


def test_peak_memory_counts_temporary_tensors():
    def call():
        held = [torch.ones(2**20) for _ in range(8)]
        return sum(float(t[0]) for t in held)

    measured = peak_memory(call, CPU)
    assert (measured is not None) == (sys.platform == "linux")
    assert measured is None or 0.8 * 2**25 < measured < 1.5 * 2**25


def test_failing_candidates_are_left_out_with_a_reason():
    def broken():
        raise RuntimeError("no\n  such kernel")

    makers = {"good": lambda: lambda: time.sleep(0.001), "unbuilt": broken, "unrun": lambda: broken}
    record = measure_candidates(makers, "forward", seconds=0.01, dtype=torch.float32, device=CPU)
    assert set(record["forward"]) == {"good", "product"}
    assert set(record["memory"]) == {"good"}
    assert record["errors"] == dict.fromkeys(("unbuilt", "unrun"), "RuntimeError: no such kernel")


def test_compiling_is_not_timed():
    calls = []

    def slow_at_first():
        calls.append(0)
        time.sleep(0.2 if len(calls) == 1 else 0.001)

    record = measure_candidates({"compiled": lambda: slow_at_first}, "forward", seconds=0.01, dtype=torch.float32, device=CPU)
    assert record["forward"]["compiled"]["median"] < 0.1
