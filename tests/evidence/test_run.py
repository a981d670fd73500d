"""Running trials: stored, resumed, reported when they fail; and the command `inline reproduce`."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path
from threading import Event, Thread, main_thread
from time import sleep

import pytest

from inline_attention.cli.main import main
from inline_attention.data.config import DataConfig
from inline_attention.evidence import parallel_trials, run_trial
from inline_attention.evidence.budget import _representative, choose_scale, estimate_seconds, parse_budget
from inline_attention.evidence.claims import ALL_CLAIMS, CLAIMS, INLINE, LINEAR, SCALED, Check, Claim, Side
from inline_attention.evidence.parallel_trials import gpu_of, run_parallel, run_sequential
from inline_attention.evidence.results import read_results
from inline_attention.evidence.run_trial import StoppedError
from inline_attention.evidence.scale import SCALES, Scale, recipe_of
from inline_attention.evidence.trial import Record, load_finished_record, load_record
from inline_attention.evidence.trial_plan import plan_trials

from ..training.small import write_images

DIGITS = DataConfig(source="digits")
TINY = Scale("glance", 6, 8, 1)
CLAIM = Claim("mixers", "Two attentions", "One beats the other.", (Check("InLine beats linear", Side(INLINE), Side(LINEAR)),))


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """A scale of seconds, and one claim."""
    monkeypatch.setitem(SCALES, "glance", TINY)
    monkeypatch.setitem(CLAIMS, "mixers", CLAIM)
    monkeypatch.setitem(ALL_CLAIMS, "mixers", CLAIM)


def plan(seeds=1, claim=CLAIM):
    return plan_trials([claim], SCALES["glance"], DIGITS, seeds)


def run(trials, folder, stop=lambda: False):
    return list(run_sequential(trials, folder, device="cpu", stop=stop))


def reproduce(*words):
    main(["reproduce", "mixers", "--data", "digits", "--scale", "glance", "--jobs", "1", "--device", "cpu", *words])


def test_the_command_from_beginning_to_end(tmp_path, monkeypatch, capsys):
    """Trained once, reported again from what is kept, and the same page from the file alone."""
    out = tmp_path / "out"
    reproduce("--seeds", "2", "--out", str(out))
    output = capsys.readouterr()
    assert (
        "Scale glance, as given by --scale: DeiT of width 8 and depth 1, 6 steps of 64 images a trial, and nano models of "
        "the other families, 3 steps; images: digits" in output.err
    )
    assert "4 trials, 0 of them done; 4 to run" in output.err
    assert "trials: 4/4" in output.err
    assert "Two attentions" in output.out
    results = read_results(out / "results.json")
    assert [record.status for record in results.records] == ["done"] * 4
    assert {record.metrics["steps"] for record in results.records} == {6}
    assert len({record.metrics["loss"] for record in results.records}) == 4
    assert results.data["train"] + results.data["val"] == 1797
    assert (out / "images" / "results_mixers.png").stat().st_size > 5000
    page = (out / "results.md").read_text()

    monkeypatch.setattr(run_trial, "run_training", None)
    reproduce("--seeds", "2", "--out", str(out), "--json")
    again = capsys.readouterr()
    assert "4 trials, 4 of them done; 0 to run" in again.err
    assert json.loads(again.out)["mixers"]["verdict"] == "undecided"
    assert (out / "results.md").read_text() == page
    reproduce("--seeds", "2", "--out", str(tmp_path / "another"), "--known", str(out / "results.json"), "--dry-run")
    assert "4 trials, 4 of them done; 0 to run" in capsys.readouterr().err
    assert not (tmp_path / "another").exists()
    main(["reproduce", "--from", str(out), "--out", str(tmp_path / "copy")])
    assert (tmp_path / "copy" / "results.md").read_text() == page
    main(["reproduce", "mixers", "--data", "digits", "--out", str(out), "--device", "cpu", "--dry-run"])
    assert f"Scale glance, as before in {out}:" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["reproduce", "mixers", "--data", "digits", "--out", str(out), "--device", "cpu", "--scale", "hour"])
    assert f"{out} is for the scale glance and digits, not hour and digits: give another --out" in capsys.readouterr().err
    reproduce("--seeds", "3", "--out", str(out), "--dry-run")
    assert "6 trials, 4 of them done; 2 to run" in capsys.readouterr().err


def test_results_of_version_0_1_are_taken(tmp_path, capsys):
    """By --from, by --known, and in an --out folder. Their trials were computed by other code, and are not reused."""
    stored = Path(__file__).parents[1] / "stored" / "reproduce_0_1.json"
    main(["reproduce", "--from", str(stored), "--out", str(tmp_path / "page")])
    assert "| InLine | 74.19 |" in (tmp_path / "page" / "results.md").read_text()
    capsys.readouterr()
    reproduce("--seeds", "2", "--out", str(tmp_path / "new"), "--known", str(stored), "--dry-run")
    assert "4 trials, 0 of them done; 4 to run" in capsys.readouterr().err
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "results.json").write_bytes(stored.read_bytes())
    with pytest.raises(SystemExit):
        reproduce("--seeds", "2", "--out", str(tmp_path / "old"), "--dry-run")
    assert "is for the scale laptop and fashion-mnist, not glance and digits: give another --out" in capsys.readouterr().err


def test_a_resumed_trial_ends_with_the_same_numbers(tmp_path):
    (whole,) = run(plan().trainings[:1], tmp_path / "whole")
    calls = []

    def after_three():
        calls.append(0)
        return len(calls) >= 3

    with pytest.raises(StoppedError):
        run(plan().trainings[:1], tmp_path / "parts", stop=after_three)
    assert load_record(tmp_path / "parts", whole.key) is None
    (resumed,) = run(plan().trainings[:1], tmp_path / "parts")
    assert {**resumed.metrics} == {**whole.metrics}
    assert not list((tmp_path / "parts" / whole.key).glob("checkpoints"))


def test_runs_are_reproducible_and_depend_on_seed_and_attention(tmp_path):
    first, again = (run(plan(2).trainings, tmp_path / name) for name in ("a", "b"))
    assert [record.metrics for record in first] == [record.metrics for record in again]
    assert len({record.metrics["loss"] for record in first}) == len(first) == 4


def test_a_failed_trial_is_reported_and_the_others_go_on(tmp_path, monkeypatch, capsys):
    real = run_trial.run_training

    def failing(task, *arguments, **options):
        if task.recipe.model.mixer == "linear":
            raise RuntimeError("out of luck\nand more")
        return real(task, *arguments, **options)

    monkeypatch.setattr(run_trial, "run_training", failing)
    reproduce("--seeds", "1", "--out", str(tmp_path))
    output = capsys.readouterr()
    assert "linear, seed 0: failed. RuntimeError: out of luck" in output.err
    assert "1 trials failed" in output.out
    assert "linear, seed 0: failed. RuntimeError: out of luck" in (tmp_path / "results.md").read_text()
    monkeypatch.setattr(run_trial, "run_training", real)
    reproduce("--seeds", "1", "--out", str(tmp_path))
    assert "2 trials, 1 of them done; 1 to run" in capsys.readouterr().err
    assert "of which none failed" in (tmp_path / "results.md").read_text()


def test_a_diverged_trial_counts_as_guessing(tmp_path, monkeypatch):
    def diverging(*arguments, **options):
        raise FloatingPointError("loss nan in step 3")

    monkeypatch.setattr(run_trial, "run_training", diverging)
    (record, _) = run(plan().trainings, tmp_path)
    assert (record.status, record.metrics, record.error) == ("diverged", {"top1": 10.0}, "loss nan in step 3")
    assert load_record(tmp_path, record.key) == record


def test_analysing_and_timing(tmp_path, monkeypatch):
    monkeypatch.setattr(run_trial, "TIMING_SECONDS", 0.01)
    monkeypatch.setattr(run_trial, "ANALYZED_IMAGES", 4)
    monkeypatch.setattr(run_trial, "MASKING_IMAGES", 8)
    claim = replace(CLAIM, name="attention", analyzed=True)
    found = plan(1, claim)
    run(found.trainings, tmp_path)
    analyses = run(found.analyses, tmp_path)
    assert [record.status for record in analyses] == ["done", "done"]
    for record in analyses:
        assert all(0 <= value <= 100 for value in record.metrics.values())
        assert {"confused", "near", "even", "own", "random", "whole"} <= set(record.metrics)
    monkeypatch.setattr(run_trial, "SPEED_FACTORS", (1, 2))
    timed = plan(2, replace(CLAIM, name="speed"))
    timings = list(run_sequential(timed.timings, tmp_path, device="cpu", stop=lambda: False, timed_recipes=timed.timed_recipes))
    assert len({record.key for record in timings}) == 2
    for record in timings:
        assert set(record.metrics) == {"InLine", "linear"}
        assert all(rate > 0 for rates in record.metrics.values() for rate in rates.values())


def test_a_model_that_is_still_to_be_analysed_must_have_its_weights(tmp_path):
    """A record from another machine comes without weights."""
    found = plan(1, replace(CLAIM, name="attention", analyzed=True))
    first, second = found.trainings
    kept = Record("train", {}, 0, "done", {"top1": 50.0}, 1.0, first.key, "recipe", "code", {})
    kept.write(tmp_path)
    assert found.remaining(tmp_path).trainings == [first, second]
    assert found.remaining(tmp_path, known={second.key}).trainings == [first, second]
    (tmp_path / first.key).mkdir()
    (tmp_path / first.key / "best.safetensors").touch()
    assert found.remaining(tmp_path).trainings == [second]
    replace(kept, status="diverged", key=second.key).write(tmp_path)
    assert found.remaining(tmp_path).trainings == []
    assert found.remaining(tmp_path).analyses == found.analyses
    replace(kept, kind="analyze", key=found.analyses[1].key).write(tmp_path)
    assert found.remaining(tmp_path, known={found.analyses[0].key}).trials == []
    assert plan(1).remaining(tmp_path).trainings == []


def test_the_key_of_a_timing():
    """Other models or another device give another key."""
    claim = replace(CLAIM, name="speed")
    keys = {
        plan_trials([claim], scale, DIGITS, 1, device).timings[0].key
        for scale in (TINY, replace(TINY, depth=2))
        for device in ("cpu", "cuda")
    }
    assert len(keys) == 4


def when(condition, action):
    """Do something from another thread as soon as a condition holds."""

    def poll():
        while not condition():
            sleep(0.05)
        action()

    Thread(target=poll, daemon=True).start()


@pytest.fixture
def ctrl_c():
    """Ctrl-C works, also where a shell has started the tests in the background: it lets such processes ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_a_process_that_dies_and_one_that_is_stopped(tmp_path):
    """A killed process costs its trial only, which runs again later; a stopped one saves a checkpoint."""
    long = plan_trials([CLAIM], Scale("glance", 4_000, 8, 1), DIGITS, 1).trainings  # a lost signal fails, instead of hanging
    trials = [long[0], plan().trainings[1], long[1]]
    killed, _, stopped = (tmp_path / trial.key for trial in trials)
    when(killed.exists, lambda: os.kill(active_children()[0].pid, signal.SIGKILL))
    when((stopped / "metrics.jsonl").exists, lambda: os.kill(os.getpid(), signal.SIGINT))
    records = run_parallel(trials, tmp_path, device="cpu", jobs=1)
    first, second = next(records), next(records)
    assert [(one.status, one.key) for one in (first, second)] == [("failed", trials[0].key), ("done", trials[1].key)]
    assert "its process died" in first.error
    assert load_record(tmp_path, trials[0].key) == first
    assert load_finished_record(tmp_path, trials[0].key) is None, "it is run again"
    with pytest.raises(StoppedError):
        next(records)
    assert load_record(tmp_path, trials[2].key) is None
    assert list(stopped.glob("checkpoints/step-*"))


def start_two_workers(out):
    """`inline reproduce` in a process group of its own, once both workers train."""
    command = [sys.executable, "-m", "inline_attention", "reproduce", "mixers", "--data", "digits", "--scale", "day"]
    process = subprocess.Popen(
        [*command, "--jobs", "2", "--out", str(out)], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while process.poll() is None and len(list(out.glob("trials/*/metrics.jsonl"))) < 2:
        sleep(0.1)
    return process


def saved_runs(out):
    return {folder.parent for folder in out.glob("trials/*/checkpoints/step-*")}


@pytest.mark.slow
def test_ctrl_c_saves_a_checkpoint_of_every_process(tmp_path):
    """As a terminal sends it, to the whole group; the same command would go on."""
    process = start_two_workers(tmp_path)
    os.killpg(process.pid, signal.SIGINT)
    stderr = process.communicate(timeout=120)[1]
    assert process.returncode == 130, stderr
    assert stderr.strip().endswith("Stopped and saved: this is what there is so far. The same command goes on.")
    assert read_results(tmp_path / "results.json").records == []
    assert "Traceback" not in stderr
    assert len(saved_runs(tmp_path)) == 2


@pytest.mark.slow
def test_workers_whose_parent_was_killed_save_and_end(tmp_path):
    process = start_two_workers(tmp_path)
    process.kill()
    process.communicate(timeout=120)  # the workers have its stderr too: it is at its end when all of them are gone
    assert len(saved_runs(tmp_path)) == 2


def test_a_worker_whose_parent_is_gone_lets_its_trial_save_and_then_ends(monkeypatch):
    """The thread that watches the parent, in this process: its parent, sleep and signal are replaced."""
    requests, busy, orphaned, sent, slept = [], Event(), Event(), [], []

    def sleep(seconds):
        slept.append((list(requests), orphaned.is_set()))
        if len(slept) == 3:
            busy.clear()  # the trial has saved its checkpoint

    parents = [7, 7, 1]
    monkeypatch.setattr(parallel_trials, "_stop_requests", requests)
    monkeypatch.setattr(parallel_trials, "_busy", busy)
    monkeypatch.setattr(parallel_trials, "_orphaned", orphaned)
    monkeypatch.setattr(parallel_trials, "sleep", sleep)
    monkeypatch.setattr(parallel_trials.os, "getppid", lambda: parents.pop(0))
    monkeypatch.setattr(parallel_trials.signal, "pthread_kill", lambda thread, number: sent.append((thread, number)))
    busy.set()
    parallel_trials._request_stop(signal.SIGINT, None)
    assert requests == [signal.SIGINT], "Ctrl-C alone does not end the process"
    requests.clear()
    parallel_trials._watch_parent(7)
    assert slept == [([], False), ([], False), ([0], False)], "it waits while the parent lives, then for the trial"
    assert sent == [(main_thread().ident, signal.SIGTERM)]
    assert orphaned.is_set()
    with pytest.raises(SystemExit):
        parallel_trials._request_stop(signal.SIGTERM, None)
    with pytest.raises(StoppedError):
        parallel_trials._work(None, None, "cpu")  # no further trial begins


def test_workers_are_spread_over_gpus():
    """Each slot sees one of those that this process may use; nothing was run on one."""
    assert [gpu_of(number, 3, "") for number in range(4)] == ["0", "1", "2", "0"]
    assert [gpu_of(number, 2, "5,7") for number in range(3)] == ["5", "7", "5"]
    assert gpu_of(1, 0, "") == gpu_of(1, 1, "3") == ""


def test_a_distributed_launcher_is_an_error(monkeypatch, capsys):
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
    found = plan(3)
    assert found.val_images == 359
    seconds = estimate_seconds(found.trainings, found, 2)
    assert seconds == pytest.approx(6 * (3 + 1.5 * 6 * 0.01 + 359 * (1e-4 + 0.01 / 64 / 3)) / 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["seeing"], "the claim 'seeing' is now called 'attention'"),
        (["kernals"], "unknown claim 'kernals' (did you mean kernels?); there are: kernels, windows,"),
        (
            ["--scale", "huge"],
            "unknown scale 'huge' (did you mean hour?); there are: glance, hour, laptop, day, week, imagenet",
        ),
        (["--budget", "soon"], "--budget must be a time such as 90s, 30m, 2h or 1d, got 'soon'"),
        (["--budget", "0h"], "--budget must be a time such as"),
        (["--seeds", "0"], "--seeds must be from 1 to 1000, got 0"),
        (["--jobs", "0"], "--jobs must be from 1 to 1024, got 0"),
        (["--device", "tpu9"], "unknown device 'tpu9'; this machine has: cpu"),
        (["--data", "/no/such/folder"], "there is no folder /no/such/folder"),
        (["--from", "/no/such/file.json"], "cannot read /no/such/file.json: No such file"),
    ],
)
def test_wrong_arguments_are_one_line(words, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "--data", "digits", *words])
    assert stop.value.code == 2
    output = capsys.readouterr().err
    assert message in output
    assert output.count("\n") == 1


def test_too_few_images_are_one_line(tmp_path, capsys):
    data = write_images(tmp_path / "data", 5)
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "mixers", "--data", str(data), "--scale", "glance", "--out", str(tmp_path / "out")])
    assert stop.value.code == 2
    output = capsys.readouterr().err.splitlines()[-1]
    assert output.startswith(f"inline: {data} has ")
    assert output.endswith(" training images, and one step takes 64")
    assert not (tmp_path / "out").exists()


def test_arguments_of_a_mixer_are_left_out_where_softmax_is_timed_for_it():
    scale, data = SCALES["glance"], DataConfig(source="digits")
    for candidate in SCALED:
        stands_for_it = _representative(recipe_of(candidate, scale, data, 10, 0))
        assert stands_for_it == _representative(recipe_of(INLINE, scale, data, 10, 0))
