"""Cells that are run: kept, gone on with, told when they fail; and the command around them."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from multiprocessing import active_children
from threading import Timer

import pytest

from inline_attention.cli.main import main
from inline_attention.evidence import run_cell
from inline_attention.evidence.budget import choose_scale, estimate_seconds, parse_budget
from inline_attention.evidence.cell import Record, load_record, read_record
from inline_attention.evidence.claims import CLAIMS, INLINE, LINEAR, Check, Claim, Side
from inline_attention.evidence.grid import grid_of
from inline_attention.evidence.pool import gpu_of, run_in_turn, run_side_by_side
from inline_attention.evidence.results import read_results
from inline_attention.evidence.run_cell import StoppedError
from inline_attention.evidence.scale import SCALES, Scale
from inline_attention.training.recipe import DataPart

from ..training.small import write_pictures

DIGITS = DataPart(source="digits")
TINY = Scale("glance", 6, 8, 1)
CLAIM = Claim("mixers", "Two attentions", "One beats the other.", (Check("InLine beats linear", Side(INLINE), Side(LINEAR)),))


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """A scale of seconds, and one claim."""
    monkeypatch.setitem(SCALES, "glance", TINY)
    monkeypatch.setitem(CLAIMS, "mixers", CLAIM)


def grid(seeds=1, claim=CLAIM):
    return grid_of([claim], SCALES["glance"], DIGITS, seeds)


def run(cells, folder, stop=lambda: False):
    return list(run_in_turn(cells, folder, device="cpu", stop=stop))


def reproduce(*words):
    main(["reproduce", "mixers", "--data", "digits", "--scale", "glance", "--jobs", "1", "--device", "cpu", *words])


def test_the_command_from_beginning_to_end(tmp_path, monkeypatch, capsys):
    """Trained once, reported again from what is kept, and the same page from the file alone."""
    out = tmp_path / "out"
    reproduce("--seeds", "2", "--out", str(out))
    said = capsys.readouterr()
    assert (
        "Scale glance, as asked: DeiT of width 8 and depth 1, 6 steps of 64 pictures a cell, and nano models of the other "
        "families, 3 steps; pictures: digits" in said.err
    )
    assert "4 cells, 0 of them done; 4 to run" in said.err
    assert "cells: 4/4" in said.err
    assert "Two attentions" in said.out
    results = read_results(out / "results.json")
    assert [record.status for record in results.records] == ["done"] * 4
    assert {record.metrics["steps"] for record in results.records} == {6}
    assert len({record.metrics["loss"] for record in results.records}) == 4
    assert results.data["train"] + results.data["val"] == 1797
    assert (out / "images" / "results_mixers.png").stat().st_size > 5000
    page = (out / "results.md").read_text()

    monkeypatch.setattr(run_cell, "train", None)
    reproduce("--seeds", "2", "--out", str(out), "--json")
    again = capsys.readouterr()
    assert "4 cells, 4 of them done; 0 to run" in again.err
    assert json.loads(again.out)["mixers"]["verdict"] == "cannot tell"
    assert (out / "results.md").read_text() == page
    reproduce("--seeds", "2", "--out", str(tmp_path / "another"), "--known", str(out / "results.json"), "--dry-run")
    assert "4 cells, 4 of them done; 0 to run" in capsys.readouterr().err
    assert not (tmp_path / "another").exists()
    main(["reproduce", "--from", str(out), "--out", str(tmp_path / "copy")])
    assert (tmp_path / "copy" / "results.md").read_text() == page
    main(["reproduce", "mixers", "--data", "digits", "--out", str(out), "--device", "cpu", "--dry-run"])
    assert f"Scale glance, as before in {out}:" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["reproduce", "mixers", "--data", "digits", "--out", str(out), "--device", "cpu", "--scale", "hour"])
    assert f"{out} is for the scale glance and digits, not hour and digits: give another --out" in capsys.readouterr().err
    reproduce("--seeds", "3", "--out", str(out), "--dry-run")
    assert "6 cells, 4 of them done; 2 to run" in capsys.readouterr().err


def test_a_stopped_cell_goes_on_to_the_same_number(tmp_path):
    (whole,) = run(grid().trainings[:1], tmp_path / "whole")
    asked = []

    def after_three():
        asked.append(0)
        return len(asked) >= 3

    with pytest.raises(StoppedError):
        run(grid().trainings[:1], tmp_path / "parts", stop=after_three)
    assert load_record(tmp_path / "parts", whole.key) is None
    (gone_on,) = run(grid().trainings[:1], tmp_path / "parts")
    assert {**gone_on.metrics} == {**whole.metrics}
    assert not list((tmp_path / "parts" / whole.key).glob("checkpoints"))


def test_seeds_and_attentions_matter_and_runs_repeat(tmp_path):
    first, again = (run(grid(2).trainings, tmp_path / name) for name in ("a", "b"))
    assert [record.metrics for record in first] == [record.metrics for record in again]
    assert len({record.metrics["loss"] for record in first}) == len(first) == 4


def test_a_failed_cell_is_told_and_the_others_go_on(tmp_path, monkeypatch, capsys):
    real = run_cell.train

    def failing(task, *arguments, **options):
        if task.recipe.model.mixer == "linear":
            raise RuntimeError("out of luck\nand more")
        return real(task, *arguments, **options)

    monkeypatch.setattr(run_cell, "train", failing)
    reproduce("--seeds", "1", "--out", str(tmp_path))
    said = capsys.readouterr()
    assert "linear, seed 0: failed. RuntimeError: out of luck" in said.err
    assert "1 cells failed" in said.out
    assert "linear, seed 0: failed. RuntimeError: out of luck" in (tmp_path / "results.md").read_text()
    monkeypatch.setattr(run_cell, "train", real)
    reproduce("--seeds", "1", "--out", str(tmp_path))
    assert "2 cells, 1 of them done; 1 to run" in capsys.readouterr().err
    assert "of which none failed" in (tmp_path / "results.md").read_text()


def test_a_diverged_cell_counts_as_guessing(tmp_path, monkeypatch):
    def diverging(*arguments, **options):
        raise FloatingPointError("loss nan in step 3")

    monkeypatch.setattr(run_cell, "train", diverging)
    (record, _) = run(grid().trainings, tmp_path)
    assert (record.status, record.metrics, record.error) == ("diverged", {"top1": 10.0}, "loss nan in step 3")
    assert load_record(tmp_path, record.key) == record


def test_looking_and_racing(tmp_path, monkeypatch):
    monkeypatch.setattr(run_cell, "RACE_SECONDS", 0.01)
    monkeypatch.setattr(run_cell, "LOOKED_AT", 4)
    monkeypatch.setattr(run_cell, "HIDDEN_FROM", 8)
    seeing = replace(CLAIM, name="seeing")
    found = grid(1, seeing)
    run(found.trainings, tmp_path)
    looks = run(found.looks, tmp_path)
    assert [record.status for record in looks] == ["done", "done"]
    for record in looks:
        assert all(0 <= value <= 100 for value in record.metrics.values())
        assert {"confused", "near", "even", "own", "random", "whole"} <= set(record.metrics)
    monkeypatch.setattr(run_cell, "SPEED_FACTORS", (1, 2))
    raced = grid(2, replace(CLAIM, name="speed"))
    races = list(run_in_turn(raced.races, tmp_path, device="cpu", stop=lambda: False, racers=raced.racers))
    assert len({record.key for record in races}) == 2
    for record in races:
        assert set(record.metrics) == {"InLine", "linear"}
        assert all(rate > 0 for rates in record.metrics.values() for rate in rates.values())


def test_a_model_that_is_yet_to_be_looked_at_must_be_there_itself(tmp_path):
    """A record that came from elsewhere has no weights with it."""
    found = grid(1, replace(CLAIM, name="seeing"))
    first, second = found.trainings
    kept = Record("train", {}, 0, "done", {"top1": 50.0}, 1.0, first.key, "recipe", "code", {})
    kept.write(tmp_path)
    assert found.left(tmp_path).trainings == [first, second]
    assert found.left(tmp_path, known={second.key}).trainings == [first, second]
    (tmp_path / first.key).mkdir()
    (tmp_path / first.key / "best.safetensors").touch()
    assert found.left(tmp_path).trainings == [second]
    replace(kept, status="diverged", key=second.key).write(tmp_path)
    assert found.left(tmp_path).trainings == []
    assert found.left(tmp_path).looks == found.looks
    replace(kept, kind="look", key=found.looks[1].key).write(tmp_path)
    assert found.left(tmp_path, known={found.looks[0].key}).cells == []
    assert grid(1).left(tmp_path).trainings == []


def test_a_race_is_of_its_racers():
    """Other models, or another device, are another race."""
    claim = replace(CLAIM, name="speed")
    keys = {
        grid_of([claim], scale, DIGITS, 1, device).races[0].key
        for scale in (TINY, replace(TINY, depth=2))
        for device in ("cpu", "cuda")
    }
    assert len(keys) == 4


def test_a_process_that_dies_takes_one_cell_with_it(tmp_path):
    """Killed while it runs: that cell is told as failed, and the next one has a process again."""

    def kill():
        if any(tmp_path.iterdir()):
            os.kill(active_children()[0].pid, signal.SIGKILL)
        else:
            timers.append(Timer(0.2, kill))
            timers[-1].start()

    timers = []
    long = Scale("glance", 60, 8, 1)
    cells = [grid_of([CLAIM], long, DIGITS, 1).trainings[0], grid(1).trainings[1]]
    kill()
    records = list(run_side_by_side(cells, tmp_path, device="cpu", jobs=1))
    assert [(record.status, record.key) for record in records] == [("failed", cells[0].key), ("done", cells[1].key)]
    assert "its process died" in records[0].error
    assert load_record(tmp_path, cells[0].key) == records[0]
    assert read_record(tmp_path, cells[0].key) is None, "it is run again, and goes on"


def test_ctrl_c_saves_what_all_processes_are_at(tmp_path):
    """As a terminal sends it, to the whole group; the same command would go on."""
    command = [sys.executable, "-m", "inline_attention", "reproduce", "mixers", "--data", "digits", "--scale", "day"]
    process = subprocess.Popen(
        [*command, "--jobs", "2", "--out", str(tmp_path)], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    cells = tmp_path / "cells"
    while process.poll() is None and len(list(cells.glob("*/metrics.jsonl"))) < 2:
        pass
    os.killpg(process.pid, signal.SIGINT)
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 130, said
    assert said.strip().endswith("Stopped and saved: this is what there is so far. The same command goes on.")
    assert read_results(tmp_path / "results.json").records == []
    assert "Traceback" not in said
    assert len({folder.parent for folder in cells.glob("*/checkpoints/step-*")}) == 2


def test_gpus_take_turns():
    """Each slot sees one of those that this process may use; nothing was run on one."""
    assert [gpu_of(number, 3, "") for number in range(4)] == ["0", "1", "2", "0"]
    assert [gpu_of(number, 2, "5,7") for number in range(3)] == ["5", "7", "5"]
    assert gpu_of(1, 0, "") == gpu_of(1, 1, "3") == ""


def test_a_launcher_is_refused(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit):
        reproduce()
    assert "start `inline reproduce` without a launcher" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("2h", 7200), ("1.5d", 129600)])
def test_budgets(text, seconds):
    assert parse_budget(text) == seconds


def test_a_larger_budget_is_a_larger_scale(monkeypatch):
    names = list(SCALES)
    monkeypatch.setattr("inline_attention.evidence.budget._step", lambda recipe, classes, device: 0.01)
    chosen = [choose_scale([CLAIM], DIGITS, 3, 2, budget)[0].name for budget in (1e-3, 50, 100, 1e3, 1e9)]
    assert [names.index(name) for name in chosen] == sorted(names.index(name) for name in chosen)
    assert (chosen[0], chosen[-1]) == ("glance", "week")
    found = grid(3)
    assert found.held_out == 359
    seconds = estimate_seconds(found.trainings, found, 2)
    assert seconds == pytest.approx(6 * (3 + 1.5 * 6 * 0.01 + 359 * (1e-4 + 0.01 / 64 / 3)) / 2)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["kernals"], "unknown claim 'kernals' (did you mean kernels?); there are: kernels, windows,"),
        (
            ["--scale", "huge"],
            "unknown scale 'huge' (did you mean hour?); there are: glance, hour, laptop, day, week, imagenet",
        ),
        (["--budget", "soon"], "--budget must be a time such as 90s, 30m, 2h or 1d, got 'soon'"),
        (["--budget", "0h"], "--budget must be a time such as"),
        (["--seeds", "0"], "--seeds must be positive, got 0"),
        (["--jobs", "0"], "--jobs must be positive, got 0"),
        (["--device", "tpu9"], "unknown device 'tpu9'; this machine has: cpu"),
        (["--data", "/no/such/folder"], "there is no folder /no/such/folder"),
        (["--from", "/no/such/file.json"], "cannot read /no/such/file.json: No such file"),
    ],
)
def test_what_a_user_gets_wrong_is_one_line(words, says, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "--data", "digits", *words])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_too_few_pictures_are_one_line(tmp_path, capsys):
    data = write_pictures(tmp_path / "data", 5)
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "mixers", "--data", str(data), "--scale", "glance", "--out", str(tmp_path / "out")])
    assert stop.value.code == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"inline: {data} has ")
    assert said.endswith(" pictures to learn from, and one step takes 64")
    assert not (tmp_path / "out").exists()
