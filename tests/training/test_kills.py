"""Runs of each task that are killed again and again end with the numbers of a run that was not, bit for bit."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .small import environment, metrics, small_recipe, weights, write_images, write_recipe
from .small_dense import detect_recipe, segment_recipe, write_coco, write_maps

pytestmark = pytest.mark.slow
KILLS = 20
STEPS = 40


@pytest.fixture(scope="module")
def start():
    """Starts a run in a process of its own: its process id, and a function that waits for its exit code."""
    program = [sys.executable, str(Path(__file__).with_name("forked_runs.py"))]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()) as forking:

        def start_run(recipe, out, die=0):
            forking.stdin.write(json.dumps({"recipe": str(recipe), "out": str(out), "die": die}) + "\n")
            forking.stdin.flush()
            return int(forking.stdout.readline()), lambda: int(forking.stdout.readline())

        yield start_run
        forking.stdin.close()


@pytest.fixture(scope="module", params=["classify", "detect", "segment"])
def setting(request, tmp_path_factory, start):
    """A recipe of 40 steps with a checkpoint after each, and the run that was never killed."""
    folder = tmp_path_factory.mktemp(request.param)
    data, often = folder / "data", {"save": 1, "log": 1}
    if request.param == "classify":
        recipe = small_recipe(write_images(data, 20), run=often, schedule={"epochs": 10})
    elif request.param == "detect":
        recipe = detect_recipe(write_coco(data), run=often, schedule={"epochs": 20, "drops": (8, 16)})
    else:
        recipe = segment_recipe(write_maps(data), run=often, schedule={"steps": STEPS})
    path = write_recipe(folder / "recipe.toml", recipe)
    assert start(path, folder / "whole")[1]() == 0
    assert metrics(folder / "whole")[-1]["step"] == STEPS
    return request.param, path, folder


def result(run):
    return {name: value for name, value in json.loads((run / "result.json").read_text()).items() if name != "seconds"}


def assert_same(run, whole):
    assert metrics(run) == metrics(whole)
    assert weights(run) == weights(whole)
    assert result(run) == result(whole)
    assert (run / "metrics.csv").is_file()
    assert not any(run.glob("**/*.tmp"))


def written(out, pattern):
    """The newest step of which there is a checkpoint, or the beginning of one; -1 if there is none."""
    return max((int(path.name.split("-")[1][:8]) for path in out.glob(f"checkpoints/{pattern}")), default=-1)


def test_killed_twenty_times_in_one_run(setting, start):
    """Every second time while a checkpoint is being written, as far as a look at the folder can tell."""
    _, recipe, folder = setting
    out, chance, cut = folder / "killed", random.Random(0), 0
    for number in range(KILLS):
        process, wait = start(recipe, out)
        pattern, step = (".step-*.tmp", number * STEPS // KILLS + 1) if number % 2 else ("step-*", number * STEPS // KILLS)
        until = time.monotonic() + 60
        while written(out, pattern) < (step or -1):
            assert time.monotonic() < until
            time.sleep(0.0005)
        time.sleep(chance.uniform(0, 0.002 if number % 2 else 0.2))
        os.kill(process, signal.SIGKILL)
        assert wait() == -signal.SIGKILL, f"the run was over before kill {number}"
        cut += any(out.glob("checkpoints/.step-*.tmp"))
    assert start(recipe, out)[1]() == 0
    assert_same(out, folder / "whole")
    assert cut >= 3, "kills that left a checkpoint half written"


def test_killed_in_every_write(setting, start):
    """In the n-th fsync or rename after each start, from the first on, with files cut in half; each task a third of all n."""
    name, recipe, folder = setting
    out = folder / "cut"
    for die in range(1 + ["classify", "detect", "segment"].index(name), 37, 3):
        assert start(recipe, out, die)[1]() == -signal.SIGKILL
    assert start(recipe, out)[1]() == 0
    assert_same(out, folder / "whole")
