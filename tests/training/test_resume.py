"""A run that was killed or stopped goes on to the same numbers, bit for bit."""

import re
import resource
import shutil
import signal
import subprocess
import sys
import time

import pytest

from inline_attention.cli.main import main
from inline_attention.training.run_folder import RunFolder

from .small import command, environment, metrics, small_recipe, weights, write_images, write_recipe

WRITING = """
import os, signal, sys
from inline_attention.training import checkpoint
write, name, left = checkpoint._write, sys.argv.pop(1), [int(sys.argv.pop(1))]
def dying(path, data):
    left[0] -= name in str(path)
    if left[0] == 0:
        with path.open("wb") as file:
            file.write(data[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    write(path, data)
checkpoint._write = dying
from inline_attention.cli.main import main
main()
"""
"""The command, killed halfway through the n-th file that it writes under a name with this part."""


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    """Images, a recipe with workers, mixup and EMA, and the run that was never killed."""
    folder = tmp_path_factory.mktemp("resume")
    data = write_images(folder / "data", 20)
    recipe = write_recipe(
        folder / "recipe.toml", small_recipe(data, data={"workers": 2}, run={"save": 3}, schedule={"epochs": 4})
    )
    words = ("train", "--recipe", str(recipe), "--device", "cpu", "--json")
    whole = folder / "whole"
    main([*words, "--out", str(whole)])
    assert len(metrics(whole)) == 4 + 4 * 2
    return folder, words, whole


def resume(run, *options):
    main(["train", "--device", "cpu", "--out", str(run), "--resume", *options])


def refused(*words):
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    return stop.value.code


def assert_same(run, whole):
    assert metrics(run) == metrics(whole)
    assert weights(run) == weights(whole)
    assert (run / "recipe.toml").read_text() == (whole / "recipe.toml").read_text()


def test_killed_at_any_step_and_while_writing(setting):
    """Three times one run: at some step, in the middle of a table, in the middle of a checkpoint."""
    folder, words, whole = setting
    run = folder / "killed"
    process = subprocess.Popen(command(*words, "--out", str(run)), env=environment(), stderr=subprocess.DEVNULL)
    rows = []
    while process.poll() is None and len(rows) < 3:
        time.sleep(0.01)
        path = run / "metrics.jsonl"
        rows = path.read_text().splitlines() if path.exists() else []
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    for name, count in (("metrics.csv", 2), (".step-", 6)):
        again = [sys.executable, "-c", WRITING, name, str(count), "train", "--device", "cpu", "--out", str(run), "--resume"]
        killed = subprocess.run(again, env=environment(), capture_output=True, text=True)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert any(name in str(left) for left in run.glob("**/*.tmp"))
    resume(run)
    assert_same(run, whole)
    assert not any(run.glob("**/*.tmp"))


def test_ctrl_c_saves_and_says_how_to_go_on(setting, monkeypatch, capsys):
    folder, words, whole = setting
    run = folder / "stopped"
    append = RunFolder.append
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append", lambda self, row: (append(self, row), signal.raise_signal(signal.SIGINT))[0])
        assert refused(*words, "--out", str(run)) == 130
    said = capsys.readouterr().err
    assert said.splitlines()[-1] == f"Stopped and saved. Go on: inline train --out {run} --resume"
    assert "Traceback" not in said
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-00000003"]
    resume(run)
    assert_same(run, whole)


def test_a_broken_last_checkpoint_falls_back(setting, capsys):
    folder, _, whole = setting
    run = folder / "broken"
    shutil.copytree(whole, run)
    before, last = sorted((run / "checkpoints").glob("step-*"))
    data = (last / "model.safetensors").read_bytes()
    (last / "model.safetensors").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    resume(run)
    said = capsys.readouterr().err
    assert f"{last} is broken (model.safetensors has other contents than were written)" in said
    assert f"from step {int(before.name[5:])}" in said
    assert_same(run, whole)


def test_another_recipe_is_refused(setting, capsys):
    folder, _, whole = setting
    for option, value, message in (
        ("--optim.lr", "0.1", "optim.lr: 0.002 -> 0.1"),
        ("--model.mixer", "softmax", "model.mixer: None -> softmax"),
    ):
        assert refused("train", "--device", "cpu", "--out", str(whole), "--resume", option, value) == 2
        assert capsys.readouterr().err.splitlines()[-1] == (
            f"inline: {whole} is a run of another recipe ({message}): "
            f"go on with its own recipe, or begin anew with model.weights {whole}"
        )
    assert refused("train", "--out", str(folder / "data"), "--resume") == 2
    assert capsys.readouterr().err == f"inline: {folder / 'data'} is not the folder of a run: it has no recipe.toml\n"


def test_a_full_disk_ends_in_one_line_and_loses_nothing(setting, capsys):
    """The system refuses files beyond 60 kB, in the middle of a checkpoint; with room again, it goes on to the same end."""
    folder, words, whole = setting
    run = folder / "full"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60 * 1024, before[1]))
    try:
        assert refused(*words, "--out", str(run)) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    said = capsys.readouterr().err
    assert re.search(r"^inline: cannot write .*: File too large; .* untouched$", said.splitlines()[-1]), said
    assert "Traceback" not in said
    assert not any(run.glob("**/*.tmp"))
    resume(run)
    assert_same(run, whole)
