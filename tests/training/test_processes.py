"""Several processes give what one gives. One launch of two processes does all there is to do; the tests read what it left."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from inline_attention.cli.main import main
from inline_attention.data.sources import open_source
from inline_attention.training.classify import Classify
from inline_attention.training.distributed import fsdp_plugin
from inline_attention.training.engine import Engine
from inline_attention.training.model_factory import block_classes, build_model

from . import workers
from .small import environment, metrics, small_recipe, write_images, write_recipe
from .small_dense import detect_recipe, segment_recipe, write_coco, write_maps

DENSE = {
    "segment": {
        "task": {"inference": "slide", "head": "upernet"},
        "optim": {"device_batch": 2},
        "schedule": {"steps": 3},
        "ema": {"decay": 0.9, "rate_batch": 4},
        "model": {"drop_path": 0.2},
    },
    "detect": {"data": {"val": "validation"}, "schedule": {"epochs": 1, "shape": "cosine", "drops": ()}},
}


def write_dense(here: Path, name: str) -> list[str]:
    """Images (three for validation, an odd number) and a recipe; the words of the command."""
    write, recipe = {"segment": (write_maps, segment_recipe), "detect": (write_coco, detect_recipe)}[name]
    here.mkdir()
    path = write_recipe(here / "recipe.toml", recipe(write(here / "data", 8, 3), **DENSE[name]))
    return ["train", "--recipe", str(path), "--device", "cpu", "--out"]


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    """Images (an odd number for validation, four unreadable), and a recipe with all randomness on: drop path, mixup, EMA.

    What one process does is done here; then two processes are launched, for everything.
    """
    here = tmp_path_factory.mktemp("processes")
    data = write_images(here / "data", 21)
    write_images(data, 24, seed=1, classes=("red",))
    recipe = small_recipe(data, optim={"device_batch": 6}, data={"skip_bad": True})
    source = open_source(recipe.data)
    for images in (source.train, source.val):
        for place in (1, len(images) - 1):
            Path(images.name(place)).write_bytes(b"no image")
    write_recipe(here / "recipe.toml", recipe)
    words = ["train", "--recipe", str(here / "recipe.toml"), "--device", "cpu", "--out"]
    main([*words, str(here / "one")])
    with pytest.MonkeyPatch.context() as patch:
        run = Engine.run
        patch.setattr(
            Engine, "run", lambda self, batches: (setattr(self, "stop", lambda: self.progress.step == 4), run(self, batches))[1]
        )
        with pytest.raises(SystemExit):
            main([*words, str(here / "handed on")])
    workers.score(str(here))
    jobs = [
        ["command", *words, str(here / "two")],
        ["command", "train", "--device", "cpu", "--resume", "--out", str(here / "handed on")],
        ["score", str(here)],
        ["shard", str(here)],
    ]
    for name in DENSE:
        dense = write_dense(here / name, name)
        evaluate = ["eval", str(here / name / "one"), "--batch", "1", "--device", "cpu", "--out"]
        main([*dense, str(here / name / "one")])
        main([*evaluate, str(here / name / "alone")])
        jobs += [["command", *dense, str(here / name / "two")], ["command", *evaluate, str(here / name / "pair")]]
    jobs.append(["nan", str(here)])
    (here / "jobs.json").write_text(json.dumps(jobs))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    script = str(Path(workers.__file__))
    done = subprocess.run(
        [*launcher, script, str(here / "jobs.json")], capture_output=True, text=True, env=environment(), timeout=300
    )
    return here, done


@pytest.fixture(scope="module")
def folder(launched):
    return launched[0]


def test_two_processes_train_like_one(folder):
    """The same micro-batches with the same randomness: in turn in one process, side by side in two."""
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
    rows, whole = metrics(folder / "handed on"), metrics(folder / "one")
    assert json.loads((folder / "handed on" / "environment.json").read_text())["processes"] == 1
    assert len(rows) == len(whole)
    assert rows[-1]["top1"] == whole[-1]["top1"]
    assert rows[-1]["loss"] == pytest.approx(whole[-1]["loss"], rel=2e-3)


def test_scores_are_exact_over_processes(folder):
    one, two = (json.loads((folder / f"score{n}.json").read_text()) for n in (1, 2))
    assert one["images"] == 11, "thirteen less the unreadable, which do not come out even"
    assert sorted(one.pop("bad")) == sorted(two.pop("bad"))
    assert one.pop("loss") == pytest.approx(two.pop("loss"), rel=1e-6)
    assert one == two


def test_a_sharded_model_gathers_into_the_same_file(folder):
    """FSDP's own sharding, on CPUs: accelerate would fall back to DDP there."""
    assert (folder / "sharded").read_text() == "ok"


@pytest.mark.parametrize("name", DENSE)
def test_two_processes_detect_and_segment_like_one(folder, name):
    """The same losses, and every image counted once; windows slide over images of different sizes."""
    here = folder / name
    one, two = metrics(here / "one"), metrics(here / "two")
    losses = [[row["train_loss"] for row in rows] for rows in (one, two)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    last = sorted((here / "one" / "checkpoints").glob("step-*"))[-1].name
    alone, pair = (load_file(here / run / "checkpoints" / last / "model.safetensors") for run in ("one", "two"))
    for key, value in alone.items():
        if "running_" in key or "num_batches" in key:  # batch norms of two processes see half of the images each
            continue
        torch.testing.assert_close(pair[key], value, atol=2e-3, rtol=1e-2)
    found = [json.loads((here / name / "eval.json").read_text()) for name in ("alone", "pair")]
    for key in {"segment": ("miou", "macc", "aacc", "loss"), "detect": ("mask_ap", "box_ap", "box_ap50")}[name]:
        assert found[1][key] == pytest.approx(found[0][key], abs=1e-4), key
    assert found[0]["images"] == found[1]["images"] == 3


def test_bad_numbers_in_one_process_stop_all_with_one_message(launched):
    """The last job, after which the launch has failed."""
    folder, done = launched
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if line.startswith("inline: ")]
    assert said, done.stderr[-3000:]
    assert said[0] == (
        "inline: loss nan in step 5: first non-finite value: the output of stages.1.blocks.0.norm2; "
        f"the last good checkpoint is {folder / 'nan' / 'checkpoints' / 'step-00000004'}"
    )
    assert set(said) == {said[0]}
    assert 'Traceback (most recent call last):\n  File "<' not in done.stderr.split("inline: ")[0]


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
