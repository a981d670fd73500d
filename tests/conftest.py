"""Settings for all tests."""

import os

# Some virtual machines announce AMX and do not grant it; a bfloat16 product then ends the process. AVX-512 is enough here.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

if "PYTEST_XDIST_WORKER" in os.environ:  # one thread for each worker: more would wait for each other
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
