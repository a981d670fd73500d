"""Malformed inputs for all commands and loaders end in an answer or in one line that names the file, and in nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .targets import TARGETS

CASES = "320"


def test_every_command_has_a_target():
    """But the page, whose loaders are tested from Python, and `weights`, which reads files as `convert` does."""
    from inline_command import COMMANDS

    found = {target.words.split()[0] for target in TARGETS if not target.python}
    assert set(COMMANDS) - found == {"explore", "weights"}


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited and measured as Linux does it")
def test_malformed_inputs_end_in_an_answer_or_in_one_line(tmp_path):
    words = [sys.executable, "-m", "tests.fuzz", "--keep", str(tmp_path)]
    environment = {"FUZZ_SEED": "0", "FUZZ_CASES": CASES, **os.environ}
    run = subprocess.run(words, capture_output=True, text=True, cwd=Path(__file__).parents[2], env=environment, timeout=900)
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{environment['FUZZ_CASES']} malformed" in run.stdout
