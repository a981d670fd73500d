"""The Triton kernels: by the interpreter on the CPU against plain torch, and compiled for cards that are not there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from inline_attention.ops.fused import SWITCH, uses_triton

from ..fake_device import fake_device

ROOT = Path(__file__).parents[2]


def run(*words: str) -> str:
    environment = os.environ | {"TRITON_DEFAULT_FP_FUSION": "1"}
    ran = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_kernels_equal_plain_torch():
    """fp32 and fp16; the interpreter cannot multiply bf16."""
    pytest.importorskip("triton")
    results = json.loads(run("-m", "tests.ops.fused_checks"))
    assert len(results) == 18
    assert not {case: error for case, error in results.items() if error}


@pytest.mark.slow
def test_kernels_compile_for_cards_that_are_not_there():
    """Within their shared memory, and nothing spilled."""
    pytest.importorskip("triton")
    rows = [line.split("|")[1:-1] for line in run("benchmarks/triton_targets.py").splitlines()[2:]]
    assert len(rows) == 4 * 2 * 3 * 4
    assert {row[0].strip() for row in rows} == {"sm_80", "sm_86", "sm_90", "gfx942"}
    assert all(int(row[5]) == 0 for row in rows)


def test_where_kernels_run(monkeypatch):
    pytest.importorskip("triton")
    with fake_device():
        heads = torch.ones(1, 2, 5, 32, device="cuda")
        assert uses_triton(heads, heads.half())
        assert not uses_triton(heads.double())
        assert not uses_triton(heads[..., :8])
        assert not uses_triton(heads.cpu())
        monkeypatch.setenv(SWITCH, "0")
        assert not uses_triton(heads)
