"""Several processes give what one gives."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from inline_attention.training.build import block_classes, build_model
from inline_attention.training.classify import Classify
from inline_attention.training.launch import fsdp_plugin
from inline_attention.training.source import open_source

from .small import environment, metrics, run_command, small_recipe, write_pictures, write_recipe


def torchrun(processes: int, *words: str) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    done = subprocess.run([*launcher, *words], capture_output=True, text=True, env=environment(), timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pictures (an odd number held out, four unreadable), and a recipe with all chance on: drop path, mixup, erasing, EMA."""
    here = tmp_path_factory.mktemp("processes")
    data = write_pictures(here / "data", 21)
    write_pictures(data, 24, seed=1, classes=("red",))
    recipe = small_recipe(data, optim={"device_batch": 6}, data={"skip_bad": True})
    source = open_source(recipe.data)
    for pictures in (source.train, source.val):
        for place in (1, len(pictures) - 1):
            Path(pictures.name(place)).write_bytes(b"no picture")
    write_recipe(here / "recipe.toml", recipe)
    return here


def test_two_processes_train_like_one(folder):
    """The same micro-batches with the same chance: in turn in one process, side by side in two."""
    words = ("train", "--recipe", str(folder / "recipe.toml"), "--device", "cpu")
    one = run_command(*words, "--out", str(folder / "one"))
    assert one.returncode == 0, one.stderr
    torchrun(2, "-m", "inline_attention", *words, "--out", str(folder / "two"))
    lists = [
        json.loads((folder / n / "checkpoints/step-00000008/state.json").read_text())["progress"]["bad"] for n in ("one", "two")
    ]
    assert sorted(lists[0]) == sorted(lists[1])
    assert len(lists[0]) == 4
    for first, second in zip(metrics(folder / "one"), metrics(folder / "two"), strict=True):
        assert first.keys() == second.keys()
        for name, value in first.items():
            assert second[name] == (value if isinstance(value, str) else pytest.approx(value, rel=2e-3, abs=1e-4)), name
    for file in ("model", "ema"):
        alone, pair = (load_file(folder / n / "checkpoints/step-00000008" / f"{file}.safetensors") for n in ("one", "two"))
        for name, value in alone.items():
            torch.testing.assert_close(pair[name], value, atol=1e-4, rtol=2e-3)


def test_a_run_goes_on_with_another_number_of_processes(folder):
    """Files are whole and by name: two processes go on with what one began."""
    out = folder / "handed on"
    words = ("--recipe", str(folder / "recipe.toml"), "--device", "cpu", "--out", str(out))
    code = """
import sys
from inline_attention.training import engine
run = engine.Engine.run
def stopping(self, batches):
    self.stop = lambda: self.progress.step == 4
    return run(self, batches)
engine.Engine.run = stopping
from inline_attention.cli.main import main
main()
"""
    stopped = subprocess.run([sys.executable, "-c", code, "train", *words], capture_output=True, text=True, env=environment())
    assert stopped.returncode == 130, stopped.stderr
    torchrun(2, "-m", "inline_attention", "train", "--device", "cpu", "--out", str(out), "--resume")
    rows, whole = metrics(out), metrics(folder / "one")
    assert rows[-1]["top1"] == whole[-1]["top1"]
    assert rows[-1]["loss"] == pytest.approx(whole[-1]["loss"], rel=2e-3)


def test_scores_are_exact_over_processes(folder):
    torchrun(1, str(Path(__file__).with_name("workers.py")), "score", str(folder))
    torchrun(2, str(Path(__file__).with_name("workers.py")), "score", str(folder))
    one, two = (json.loads((folder / f"score{n}.json").read_text()) for n in (1, 2))
    assert one["pictures"] == 11, "thirteen less the unreadable, which do not come out even"
    assert sorted(one.pop("bad")) == sorted(two.pop("bad"))
    assert one.pop("loss") == pytest.approx(two.pop("loss"), rel=1e-6)
    assert one == two


def test_bad_numbers_in_one_process_stop_all_with_one_word(folder):
    script = str(Path(__file__).with_name("workers.py"))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launcher, script, "nan", str(folder)], capture_output=True, text=True, env=environment(), timeout=300
    )
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if line.startswith("inline: ")]
    assert said[0] == (
        "inline: loss nan in step 5: first bad is the output of stages.1.blocks.0.norm2; "
        f"the last good checkpoint is {folder / 'nan' / 'checkpoints' / 'step-00000004'}"
    )
    assert set(said) == {said[0]}
    assert 'Traceback (most recent call last):\n  File "<' not in done.stderr.split("inline: ")[0]


def test_a_sharded_model_gathers_into_the_same_file(folder):
    """FSDP's own sharding, on CPUs: accelerate would fall back to DDP there."""
    torchrun(2, str(Path(__file__).with_name("workers.py")), "shard", str(folder))
    assert (folder / "sharded").read_text() == "ok"


@pytest.mark.parametrize("name", ["inline_deit_nano", "inline_pvt_nano", "inline_swin_nano", "inline_cswin_nano"])
def test_fsdp_wraps_block_by_block(name):
    model, _ = build_model(Classify(small_recipe("", model={"name": name, "args": ""})), ("a", "b"))
    assert block_classes(model) == ["Block"]
    plugin = fsdp_plugin(block_classes(model))
    assert plugin.fsdp_version == 2
    plugin.set_auto_wrap_policy(model)
    wrapped = [
        key for key, module in model.named_modules() if plugin.auto_wrap_policy(module, recurse=False, nonwrapped_numel=1)
    ]
    assert wrapped == [key for key, module in model.named_modules() if type(module).__name__ == "Block"]
    assert len(wrapped) == sum(model.depths())
