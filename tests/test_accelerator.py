"""Mixers, models, segmenters and a training step on an accelerator without data: devices, types, and no hidden waiting.

Each device has a process of its own, see `fake_device.py`, which runs all cases: importing takes longer than these.
"""

import json
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest
import torch

from inline_attention import MIXERS

from .fake_device import fake_device

ROOT = Path(__file__).parents[1]
MODELS = ("inline_deit_nano", "inline_pvt_nano", "inline_swin_nano", "inline_cswin_nano")
SEGMENTERS = ("semantic_fpn", "upernet")


@lru_cache
def results(device: str) -> dict[str, str | None]:
    """Of every case, by name."""
    words = [sys.executable, "-m", "tests.accelerator_checks", device]
    ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.parametrize("device", ["cuda", "card"])
@pytest.mark.parametrize("name", ["op", *MIXERS, *MODELS, *SEGMENTERS])
def test_forward_and_backward_stay_on_the_device(name, device):
    """ "cuda" in fp32 and under autocast to both 16-bit types; "card" with gradients, in fp32 and bf16; both with a mask."""
    cases = {case: error for case, error in results(device).items() if case.split(" ")[0] == name}
    assert len(cases) == 2 + (device == "cuda") + (name not in SEGMENTERS)
    assert not {case: error for case, error in cases.items() if error}


def test_a_training_step_stays_on_the_device():
    """Mixup, loss, gradients, AdamW and the average of weights."""
    assert results("card")["training step"] is None


def test_what_is_slow_is_seen():
    """The checks would find what they look for."""
    with fake_device() as watch:
        x = torch.ones(3, device="cuda")
        x.double(), x.cpu()
    assert len(watch.slow) == 2
    with fake_device(), pytest.raises(Exception, match="device"):
        torch.ones(3, device="cuda") + torch.ones(3)
    with fake_device(), pytest.raises(Exception, match="_local_scalar_dense"):
        torch.ones(3, device="cuda").sum().item()
    with fake_device(torch.bfloat16):
        assert torch.nn.functional.linear(*[torch.ones(3, 3, device="cuda")] * 2).dtype is torch.bfloat16
