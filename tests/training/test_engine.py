"""The loop: a stored curve, and each option by what it must do."""

import json
import re
from dataclasses import replace
from math import cos, pi
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, load_file

from inline_attention.data.sources import open_source
from inline_attention.training import engine as engines
from inline_attention.training import recipe as recipes
from inline_attention.training.checkpoint import to_bytes
from inline_attention.training.classify import Classify
from inline_attention.training.distributed import OptimizerState, gather, gather_optimizer, restore, restore_optimizer
from inline_attention.training.model_factory import build_model
from inline_attention.training.run import run_training
from inline_attention.training.schedule import build_optimizer, make_plan

from .small import RecordingReporter, metrics, never, run_command, small_recipe, weights, write_images, write_recipe

CURVE = Path(__file__).with_name("curve.json")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("engine"), 20)


def run(recipe, out, **more):
    report = RecordingReporter()
    outcome = run_training(Classify(recipe), out, resume=False, reporter=report, stop=never, device="cpu", **more)
    return report, outcome


def test_thirty_steps_give_the_stored_curve(tmp_path):
    """Losses of the demo's recipe, with mixup, erasing, drop path and EMA on. To store anew: delete the file, run twice."""
    recipe = recipes.load("digits")
    recipe = replace(
        recipe,
        model=replace(recipe.model, drop_path=0.1),
        data=replace(recipe.data, workers=0, size=(8, 8)),
        augment=replace(recipe.augment, mixup=0.8, cutmix=1.0, smoothing=0.1, erase=0.25, auto="rand-m9-mstd0.5-inc1"),
        optim=replace(recipe.optim, batch=48, device_batch=24),
        schedule=replace(recipe.schedule, epochs=3, warmup=1),
        ema=replace(recipe.ema, decay=0.99, rate_batch=48),
    )
    calls = []
    report = RecordingReporter()
    run_training(
        Classify(recipe),
        tmp_path / "run",
        resume=False,
        reporter=report,
        stop=lambda: bool(calls.append(1)) or len(calls) >= 30,
        device="cpu",
    )
    assert len(report.losses) == 30
    if not CURVE.exists():
        CURVE.write_text(json.dumps([round(loss, 6) for loss in report.losses]) + "\n")
        pytest.fail("stored the curve")
    assert report.losses == pytest.approx(json.loads(CURVE.read_text()), rel=2e-3)


def test_a_run_learns_and_writes_its_folder(data, tmp_path):
    recipe = small_recipe(
        data, schedule={"epochs": 6}, augment={"auto": "", "mixup": 0.0, "cutmix": 0.0}, model={"drop_path": 0.0}
    )
    report, outcome = run(recipe, tmp_path / "run")
    assert outcome.finished
    assert outcome.best["top1"] > 90, "three colours are easy"
    assert {path.name for path in outcome.folder.iterdir()} == {
        "recipe.toml", "environment.json", "metrics.csv", "metrics.jsonl", "best.safetensors", "checkpoints", "tensorboard",
        "result.json", "data.json",
    }  # fmt: skip
    lines = (outcome.folder / "metrics.csv").read_text().splitlines()
    assert len(lines) == 1 + 6
    assert lines[0].startswith("epoch,step,lr,train_loss,top1,top5,loss,ema_top1,ema_top5,ema_loss,")
    assert any((outcome.folder / "tensorboard").iterdir())
    rows = metrics(outcome.folder)
    assert [row["step"] for row in rows if row["kind"] == "evaluation"] == [4, 8, 12, 16, 20, 24]
    last = [row for row in rows if row["kind"] == "training"][-1]
    assert last["train_loss"] == pytest.approx(sum(report.losses[-2:]) / 2)
    plan = report.plan
    assert last["lr"] == pytest.approx(plan.min_lr + (plan.lr - plan.min_lr) * (1 + cos(pi * 23 / 24)) / 2), "of step 23"


def test_gradient_accumulation_gives_the_same_weights(data, tmp_path):
    """Without chance in it, a batch in one part or in four gives the same weights, up to rounding."""
    plain = {
        "augment": {"auto": "", "mixup": 0.0, "cutmix": 0.0, "erase": 0.0},
        "model": {"drop_path": 0.0},
        "schedule": {"epochs": 1},
    }
    run(small_recipe(data, **plain), tmp_path / "whole")
    run(small_recipe(data, optim={"device_batch": 3}, **plain), tmp_path / "parts")
    whole, parts = (load_file(tmp_path / name / "checkpoints/step-00000004/model.safetensors") for name in ("whole", "parts"))
    for name, value in whole.items():
        torch.testing.assert_close(value, parts[name], atol=2e-5, rtol=1e-3)


def test_average_of_the_weights(data, tmp_path):
    """After one step at decay 0.9: nine tenths of the first weights, one of the next."""
    recipe = small_recipe(
        data, optim={"batch": 48, "device_batch": 48}, schedule={"epochs": 1, "warmup": 0}, ema={"rate_batch": 48}
    )
    first, _ = build_model(Classify(recipe), ("blue", "green", "red"))
    run(recipe, tmp_path / "run")
    found = tmp_path / "run" / "checkpoints" / "step-00000001"
    after, average = (load_file(found / f"{name}.safetensors") for name in ("model", "ema"))
    for name, value in first.state_dict().items():
        torch.testing.assert_close(average[name], 0.9 * value + 0.1 * after[name], atol=1e-6, rtol=1e-5)
    assert not torch.equal(after["head.weight"], first.state_dict()["head.weight"])


def test_activation_checkpointing_changes_nothing(data, tmp_path):
    run(small_recipe(data), tmp_path / "plain")
    run(small_recipe(data, model={"checkpointing": True}), tmp_path / "recomputed")
    plain, recomputed = weights(tmp_path / "plain"), weights(tmp_path / "recomputed")
    for name in plain:
        if name.startswith("model"):
            a, b = (torch.frombuffer(bytearray(found[name]), dtype=torch.float32) for found in (plain, recomputed))
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)


def test_frozen_modules_stay_and_layer_decay_scales_rates(data, tmp_path):
    recipe = small_recipe(data, optim={"freeze": ("stages.0", "stages.1"), "layer_decay": 0.5})
    first, _ = build_model(Classify(recipe), ("blue", "green", "red"))
    plan = make_plan(recipe, 48, 1)
    optimizer = build_optimizer(first, recipe, plan)
    scales = {group["lr_scale"] for group in optimizer.param_groups}
    assert 1.0 in scales
    assert 0.5 in scales
    run(recipe, tmp_path / "run")
    after = load_file(tmp_path / "run" / "checkpoints" / "step-00000008" / "model.safetensors")
    for name, value in first.state_dict().items():
        assert torch.equal(after[name], value) == name.startswith(("stages.0", "stages.1")), name
    with pytest.raises(ValueError, match=r"optim.freeze: inline_swin_nano has no 'stage.0' \(did you mean stages.0\?\)"):
        build_model(Classify(small_recipe(data, optim={"freeze": ("stage.0",)})), ("a", "b"))


def test_parameters_without_weight_decay(data):
    recipe = small_recipe(data)
    for name in ("inline_swin_nano", "inline_deit_nano", "inline_pvt_nano", "inline_cswin_nano"):
        recipe = replace(recipe, model=replace(recipe.model, name=name, args="mixer='softmax'"))
        model, _ = build_model(Classify(recipe), ("a", "b"))
        optimizer = build_optimizer(model, recipe, make_plan(recipe, 48, 1))
        free = {id(p) for group in optimizer.param_groups if group["weight_decay"] == 0 for p in group["params"]}
        for key, parameter in model.named_parameters():
            special = re.search(r"positions\.|position\.table|cls_token", key) is not None
            assert (id(parameter) in free) == (parameter.ndim <= 1 or special), key


def test_fine_tuning_from_a_run_and_at_another_size(data, tmp_path):
    run(small_recipe(data, schedule={"epochs": 1}), tmp_path / "first")
    recipe = small_recipe(
        data, model={"weights": str(tmp_path / "first")}, data={"size": (24, 32)}, schedule={"epochs": 1, "warmup": 0}
    )
    report, _ = run(recipe, tmp_path / "second")
    assert "tensors matched" in report.messages[1]
    best = load_file(tmp_path / "first" / "best.safetensors")
    start, _ = build_model(Classify(recipe), ("blue", "green", "red"))
    assert torch.equal(start.state_dict()["stages.0.embed.proj.weight"], best["stages.0.embed.proj.weight"])
    other = small_recipe(data, model={"name": "inline_pvt_nano", "args": "", "weights": str(tmp_path / "first")})
    with pytest.raises(ValueError, match=r"best.safetensors does not fit inline_pvt_nano"):
        build_model(Classify(other), ("blue", "green", "red"))


def test_any_timm_model_trains(data, tmp_path):
    recipe = small_recipe(
        data,
        model={"name": "test_resnet", "args": "", "drop_path": 0.0},
        data={"size": (32, 32)},
        schedule={"epochs": 1, "warmup": 0},
    )
    _, outcome = run(recipe, tmp_path / "run")
    assert outcome.finished
    with pytest.raises(ValueError, match=r"unknown model 'inline_swin_nana' \(did you mean inline_swin_nano\?\)"):
        build_model(Classify(small_recipe(data, model={"name": "inline_swin_nana"})), ("a", "b"))
    with pytest.raises(ValueError, match="inline_swin_nano cannot be made: inline_swin_nano has no argument 'fish'"):
        build_model(Classify(small_recipe(data, model={"args": "fish=3"})), ("a", "b"))


@pytest.mark.parametrize("where", ["weight", "output", "gradient"])
def test_nan_and_infinity_stop_the_run_and_are_traced(data, tmp_path, monkeypatch, where):
    """Planted in the sixth step, after the first checkpoint."""
    step = engines.Engine._step

    class Explode(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * float("inf")

    def planted(self, number, *rest):
        if number == 5:
            block = self.accelerator.unwrap_model(self.model).stages[1].blocks[0]
            if where == "weight":
                with torch.no_grad():
                    block.mlp.fc1.weight[0, 0] = float("nan")
            elif where == "output":
                block.norm2.register_forward_hook(lambda module, inputs, output: output * float("inf"))
            else:
                block.norm2.register_forward_hook(lambda module, inputs, output: Explode.apply(output))
        return step(self, number, *rest)

    monkeypatch.setattr(engines.Engine, "_step", planted)
    with pytest.raises(FloatingPointError) as caught:
        run(small_recipe(data), tmp_path / "run")
    last = tmp_path / "run" / "checkpoints" / "step-00000004"
    message = {
        "weight": "loss nan in step 5: first non-finite value: the weight stages.1.blocks.0.mlp.fc1.weight",
        "output": "loss nan in step 5: first non-finite value: the output of stages.1.blocks.0.norm2",
        "gradient": "gradient of length .* in step 5: first non-finite value: the gradient of stages.1.blocks.0.norm2.bias",
    }[where]
    assert re.match(f"{message}; the last good checkpoint is {re.escape(str(last))}$", str(caught.value)), str(caught.value)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000004"]


def test_unreadable_images_stop_the_run_or_are_skipped(data, tmp_path):
    folder = write_images(tmp_path / "data", 20)
    for name in ("0", "1", "2", "3", "4", "5"):
        (folder / "red" / f"{name}.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r".*red/\d.png cannot be read: not an image \(--skip-bad "):
        run(small_recipe(folder), tmp_path / "stops")
    _, outcome = run(small_recipe(folder, data={"skip_bad": True}), tmp_path / "goes on")
    assert outcome.finished
    held_out = open_source(small_recipe(folder).data).val
    assert {held_out.name(i) for i in range(len(held_out))} & {f"{folder}/red/{n}.png" for n in range(6)}
    assert set(outcome.bad) == {f"{folder}/red/{n}.png cannot be read: not an image" for n in range(6)}


def test_bf16_and_fsdp_are_options_of_the_same_loop(data, tmp_path):
    """bf16 gives other numbers, close to fp32's; without other processes there is nothing to shard over, which is told."""
    plain = {"schedule": {"epochs": 1, "warmup": 0}, "ema": {"decay": 0.0}}
    report, _ = run(small_recipe(data, run={"fsdp": True}, **plain), tmp_path / "whole")
    assert report.messages[1:] == ["run.fsdp: nothing to shard over here; going on with whole weights in every process"]
    recipe = write_recipe(tmp_path / "recipe.toml", small_recipe(data, run={"precision": "bf16"}, **plain))
    done = run_command("train", "--recipe", str(recipe), "--out", str(tmp_path / "half"), "--device", "cpu")
    assert done.returncode == 0, done.stderr
    half, whole = metrics(tmp_path / "half"), metrics(tmp_path / "whole")
    assert half[0]["train_loss"] == pytest.approx(whole[0]["train_loss"], rel=0.05)
    assert half[0]["train_loss"] != whole[0]["train_loss"]
    assert load_file(tmp_path / "half" / "best.safetensors")["head.weight"].dtype == torch.float32


@pytest.mark.parametrize("name", ["adamw", "sgd", "lion", "lamb", "adan", "madgrad", "adafactor", "nadamw", "adafactorbv"])
def test_any_optimizer_resumes_bit_for_bit(data, name):
    """Three steps, through a checkpoint's bytes into a fresh model, two more: the same weights, bit for bit."""
    recipe = small_recipe(
        data, optim={"name": name, "layer_decay": 0.8, "freeze": ("stages.0.embed",)}, model={"drop_path": 0.0}
    )

    def made():
        model, _ = build_model(Classify(recipe), ("a", "b", "c"))
        return model, build_optimizer(model, recipe, make_plan(recipe, 48, 1))

    def step(model, optimizer, number):
        torch.manual_seed(number)
        model(torch.randn(4, 3, 16, 24)).logsumexp(1).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    first, fresh = made(), made()
    for number in range(3):
        step(*first, number)
    kept = gather_optimizer(*first)
    plain = json.loads(json.dumps({"plain": kept.plain, "groups": kept.groups}))
    restore_optimizer(*fresh, OptimizerState(load(to_bytes(kept.tensors)), **plain))
    restore(fresh[0], load(to_bytes(gather(first[0]))))
    for number in (3, 4):
        step(*first, number)
        step(*fresh, number)
    for key, value in first[0].state_dict().items():
        assert torch.equal(fresh[0].state_dict()[key], value), key


def test_evaluation_every_few_epochs_and_at_the_end(data, tmp_path):
    _, outcome = run(small_recipe(data, schedule={"epochs": 5}, run={"evaluate": 2}), tmp_path / "run")
    checked = [row for row in outcome.rows if row["kind"] == "evaluation"]
    assert [row["epoch"] for row in checked] == [2, 4, 5]
    assert outcome.best["top1"] == max(max(row["top1"], row["ema_top1"]) for row in checked)
    first = next(row for row in checked if outcome.best["top1"] in (row["top1"], row["ema_top1"]))
    assert outcome.best["epoch"] == first["epoch"], "of equals, the first is kept"


def test_label_smoothing_and_gradient_clipping(data, tmp_path):
    """The first loss with smoothing s is (1 - s) of the plain one plus s of the mean over classes."""
    plain = {"auto": "", "mixup": 0.0, "cutmix": 0.0, "erase": 0.0}
    losses = {}
    for smoothing in (0.0, 0.4, 1.0):
        recipe = small_recipe(
            data, augment={**plain, "smoothing": smoothing}, model={"drop_path": 0.0}, schedule={"epochs": 1, "warmup": 0}
        )
        losses[smoothing] = run(recipe, tmp_path / str(smoothing))[0].losses[0]
    assert losses[0.4] == pytest.approx(0.6 * losses[0.0] + 0.4 * losses[1.0], rel=1e-5)
    assert losses[0.0] != pytest.approx(losses[1.0], rel=1e-3)
    moved, sizes = {}, ("batch", "device_batch", "rate_batch")
    for clip in (0.0, 1e-4):
        recipe = small_recipe(
            data, augment=plain, model={"drop_path": 0.0}, schedule={"epochs": 1, "warmup": 0}, ema={"decay": 0.0},
            optim={"name": "sgd", "lr": 1.0, "clip": clip, "weight_decay": 0.0, **dict.fromkeys(sizes, 48)},
        )  # fmt: skip
        before, _ = build_model(Classify(recipe), ("blue", "green", "red"))
        run(recipe, tmp_path / f"clip{clip}")
        after = load_file(tmp_path / f"clip{clip}" / "checkpoints" / "step-00000001" / "model.safetensors")
        moved[clip] = sum(float((after[k] - v).pow(2).sum()) for k, v in before.state_dict().items()) ** 0.5
    assert moved[1e-4] == pytest.approx(1.9e-4, rel=0.02), "a gradient of length 1e-4 at rate 1, and Nesterov's 0.9 of it"
    assert moved[0.0] > 1e-2
