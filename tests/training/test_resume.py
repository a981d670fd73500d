"""A killed run goes on to the same numbers, bit for bit."""

import re
import signal
import subprocess
import sys
import time

import pytest

from .small import command, environment, metrics, run_command, small_recipe, weights, write_pictures, write_recipe

WRITING = """
import os, signal, sys
from inline_attention.training import checkpoint
write, left = checkpoint._write, [int(sys.argv.pop(1))]
def dying(path, data):
    left[0] -= 1
    if left[0] == 0:
        with path.open("wb") as file:
            file.write(data[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    write(path, data)
checkpoint._write = dying
from inline_attention.cli.main import main
main()
"""
"""The command, killed halfway through the n-th file that it writes."""


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    """Pictures, a recipe with workers, mixup and EMA, and the run that was never killed."""
    folder = tmp_path_factory.mktemp("resume")
    data = write_pictures(folder / "data", 20)
    recipe = write_recipe(
        folder / "recipe.toml", small_recipe(data, data={"workers": 2}, run={"save": 3}, schedule={"epochs": 4})
    )
    words = ("train", "--recipe", str(recipe), "--device", "cpu", "--json")
    whole = folder / "whole"
    done = run_command(*words, "--out", str(whole))
    assert done.returncode == 0, done.stderr
    assert len(metrics(whole)) == 4 + 4 * 2
    return folder, words, whole


def assert_same(run, whole):
    assert metrics(run) == metrics(whole)
    assert weights(run) == weights(whole)
    assert (run / "recipe.toml").read_text() == (whole / "recipe.toml").read_text()


def test_killed_twice_at_any_step(setting):
    folder, words, whole = setting
    run = folder / "killed"
    rows = []
    for attempt, resume in enumerate(([], ["--resume"])):
        words_now = words if not resume else ("train", "--device", "cpu")
        process = subprocess.Popen(
            command(*words_now, "--out", str(run), *resume), env=environment(), stderr=subprocess.DEVNULL
        )
        goal = 3 + 4 * attempt
        while process.poll() is None and len(rows) < goal:
            time.sleep(0.01)
            path = run / "metrics.jsonl"
            rows = path.read_text().splitlines() if path.exists() else []
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    done = run_command("train", "--device", "cpu", "--out", str(run), "--resume")
    assert done.returncode == 0, done.stderr
    assert_same(run, whole)


@pytest.mark.parametrize("file", [8, 14])
def test_killed_while_a_checkpoint_is_written(setting, file):
    folder, words, whole = setting
    run = folder / f"writing{file}"
    killed = subprocess.run(
        [sys.executable, "-c", WRITING, str(file), *words, "--out", str(run)], env=environment(), capture_output=True, text=True
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert any(run.glob("**/*.tmp"))
    done = run_command("train", "--device", "cpu", "--out", str(run), "--resume")
    assert done.returncode == 0, done.stderr
    assert_same(run, whole)
    assert not any((run / "checkpoints").glob("*.tmp"))


def test_ctrl_c_saves_and_says_how_to_go_on(setting):
    folder, words, whole = setting
    run = folder / "stopped"
    process = subprocess.Popen(
        command(*words, "--out", str(run)), env=environment(), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    while not (run / "metrics.jsonl").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.splitlines()[-1] == f"Stopped and saved. Go on: inline train --out {run} --resume"
    assert "Traceback" not in said
    done = run_command("train", "--device", "cpu", "--out", str(run), "--resume")
    assert done.returncode == 0, done.stderr
    assert_same(run, whole)


def test_a_broken_last_checkpoint_falls_back(setting):
    folder, _, whole = setting
    run = folder / "broken"
    subprocess.run(["cp", "-r", str(whole), str(run)], check=True)
    before, last = sorted((run / "checkpoints").glob("step-*"))
    data = (last / "model.safetensors").read_bytes()
    (last / "model.safetensors").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    done = run_command("train", "--device", "cpu", "--out", str(run), "--resume")
    assert done.returncode == 0, done.stderr
    assert f"{last} is broken (model.safetensors has other contents than were written)" in done.stderr
    assert f"from step {int(before.name[5:])}" in done.stderr
    assert_same(run, whole)


def test_another_recipe_is_refused(setting):
    folder, _, whole = setting
    for option, value, message in (
        ("--optim.lr", "0.1", "optim.lr: 0.002 -> 0.1"),
        ("--model.mixer", "softmax", "model.mixer: None -> softmax"),
    ):
        done = run_command("train", "--device", "cpu", "--out", str(whole), "--resume", option, value)
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1] == (
            f"inline: {whole} is a run of another recipe ({message}): "
            f"go on without these options, or begin anew with --model.weights {whole}"
        )
    done = run_command("train", "--out", str(folder / "data"), "--resume")
    assert done.stderr == f"inline: {folder / 'data'} is not the folder of a run: it has no recipe.toml\n"


def test_a_full_disk_ends_in_one_line_and_loses_nothing(setting):
    """The system refuses files beyond 60 kB, in the middle of a checkpoint; with room again, it goes on to the same end."""
    folder, words, whole = setting
    run = folder / "full"
    limited = ["bash", "-c", 'ulimit -f 60; exec "$@"', "bash"]
    done = subprocess.run(
        [*limited, *command(*words, "--out", str(run))], env=environment(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 2, done.stderr
    assert re.search(r"^inline: cannot write .*: File too large; .* untouched$", done.stderr.splitlines()[-1]), done.stderr
    assert "Traceback" not in done.stderr
    assert not any(run.glob("**/*.tmp"))
    done = run_command("train", "--device", "cpu", "--out", str(run), "--resume")
    assert done.returncode == 0, done.stderr
    assert_same(run, whole)
