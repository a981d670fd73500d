"""Runs the checks against a hub in a process of their own: what huggingface_hub leaves running breaks later forks."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CHECKS = [str(HERE / f"hub_{kind}_checks.py") for kind in ("server", "transformers")]


@pytest.mark.parametrize("marked", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_in_a_process_of_its_own(marked):
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marked, *CHECKS]
    done = subprocess.run(words, capture_output=True, text=True, cwd=HERE.parents[1])
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
