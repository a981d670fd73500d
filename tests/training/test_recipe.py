"""Recipes: typed, strict, and equal to the numbers that were published."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from inline_attention.training.classify import Classify
from inline_attention.training.config import Recipe
from inline_attention.training.model_factory import build_model, model_spec
from inline_attention.training.recipe import (
    UNUSED_BY_TASK,
    changes,
    check,
    flat,
    load,
    model_arguments,
    parse,
    shipped,
    to_toml,
)
from inline_attention.training.schedule import build_scheduler, learning_rate, make_plan

IMAGENET = 1_281_167
# name: images per process (of eight), drop path, epochs, warm-up, cool-down, lr, first, lowest, decay, clip, crop, average
TABLE = {
    "inline_deit_tiny": (512, 0.1, 300, 20, 0, 5e-4, 5e-7, 5e-6, 0.05, 5.0, 224, False),
    "inline_deit_small": (128, 0.1, 300, 20, 0, 5e-4, 5e-7, 5e-6, 0.05, 5.0, 288, False),
    "inline_deit_base": (64, 0.1, 300, 20, 0, 5e-4, 5e-7, 5e-6, 0.05, 5.0, 448, False),
    "inline_pvt_tiny": (128, 0.1, 300, 5, 10, 5e-4, 1e-6, 1e-5, 0.05, 0.0, 224, False),
    "inline_pvt_small": (128, 0.1, 300, 5, 10, 5e-4, 1e-6, 1e-5, 0.05, 0.0, 224, False),
    "inline_pvt_medium": (128, 0.3, 300, 5, 10, 5e-4, 1e-6, 1e-5, 0.05, 1.0, 224, False),
    "inline_pvt_large": (64, 0.3, 300, 5, 10, 5e-4, 1e-6, 1e-5, 0.05, 1.0, 224, False),
    "inline_swin_tiny": (128, 0.2, 300, 20, 0, 5e-4, 5e-7, 5e-6, 0.05, 5.0, 224, False),
    "inline_swin_small": (128, 0.3, 300, 20, 0, 5e-4, 5e-7, 5e-6, 0.05, 5.0, 224, False),
    "inline_swin_base": (64, 0.5, 300, 20, 0, 5e-4, 5e-7, 5e-6, 0.05, 5.0, 224, False),
    "inline_swin_base_384": (32, 0.5, 30, 5, 0, 2e-5, 2e-8, 2e-7, 1e-8, 5.0, 384, False),
    "inline_cswin_tiny": (128, 0.2, 300, 20, 10, 5e-4, 1e-6, 1e-5, 0.05, 0.0, 224, True),
    "inline_cswin_small": (128, 0.4, 300, 20, 10, 5e-4, 1e-6, 1e-5, 0.05, 0.0, 224, True),
    "inline_cswin_base": (64, 0.5, 300, 20, 10, 5e-4, 1e-6, 1e-5, 0.1, 0.0, 224, True),
    "inline_cswin_base_384": (32, 0.7, 20, 0, 10, 5e-6, None, 5e-7, 1e-8, 0.0, 384, True),
}
SHIPPED = list(shipped())


def test_every_published_model_has_its_recipe():
    assert {name for name in SHIPPED if name.startswith("inline_")} == set(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_published_numbers(name):
    batch, drop, epochs, warmup, cooldown, lr, first, lowest, decay, clip, size, average = TABLE[name]
    recipe = load(name)
    assert recipe.model.name == name
    assert recipe.model.drop_path == drop
    assert (recipe.optim.batch, recipe.optim.device_batch) == (8 * batch, batch)
    assert (recipe.optim.lr, recipe.optim.min_lr, recipe.optim.rate_batch) == (lr, lowest, 512)
    assert first is None or recipe.optim.warmup_lr == first
    assert (recipe.optim.name, recipe.optim.betas, recipe.optim.eps) == ("adamw", (0.9, 0.999), 1e-8)
    assert (recipe.optim.weight_decay, recipe.optim.clip) == (decay, clip)
    assert recipe.schedule == type(recipe.schedule)(epochs, warmup, cooldown)
    augment = recipe.augment
    assert (augment.mixup, augment.cutmix, augment.mix_prob, augment.mix_switch) == (0.8, 1.0, 1.0, 0.5)
    assert (augment.smoothing, augment.auto, augment.color_jitter, augment.erase) == (0.1, "rand-m9-mstd0.5-inc1", 0.4, 0.25)
    assert (recipe.data.size, recipe.data.interpolation, recipe.data.crop_mode) == ((size, size), "bicubic", "squash")
    assert recipe.data.crop == (1.0 if name == "inline_swin_base_384" else 0.875)
    plan = make_plan(recipe, IMAGENET, 8)
    assert plan.ema_decay == (pytest.approx(0.9996 ** (8 * batch / 4096)) if average else 0)


@pytest.mark.parametrize("name", SHIPPED)
def test_learning_rate_follows_the_formula(name):
    """Warm-up in a straight line, then half a cosine, a power or drops over all steps; all scaled by the batch."""
    recipe = load(name)
    images = IMAGENET if name in TABLE else 5_000
    plan = make_plan(recipe, images, 1)
    optim, schedule = recipe.optim, recipe.schedule
    per_epoch, factor = images // optim.batch, optim.batch / optim.rate_batch
    total, warm = schedule.steps or schedule.epochs * per_epoch, schedule.warmup_steps or schedule.warmup * per_epoch
    drops = [drop * per_epoch for drop in schedule.drops]

    def formula(step: int) -> float:
        if step < warm:
            return factor * (optim.warmup_lr + (optim.lr - optim.warmup_lr) * step / warm)
        if schedule.shape == "drops":
            return factor * optim.lr / 10 ** len([drop for drop in drops if step >= drop])
        if step >= total:
            return factor * optim.min_lr
        left = (1 - step / total) ** schedule.power if schedule.shape == "poly" else (1 + math.cos(math.pi * step / total)) / 2
        return factor * (optim.min_lr + (optim.lr - optim.min_lr) * left)

    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=plan.lr)
    used = build_scheduler(optimizer, plan)
    end = plan.steps - 1
    around = {step for drop in drops for step in (drop - 1, drop)}
    for step in {0, 1, warm // 2, max(0, warm - 1), warm, warm + 1, total // 2, total - 1, total, end} | around:
        used.step_update(step)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(formula(step), rel=1e-12)
        assert learning_rate(optimizer) == optimizer.param_groups[0]["lr"]


def test_deit_tiny_by_hand():
    """Global batch 4,096 on ImageNet: 312 steps per epoch; 8 x the rates per 512."""
    plan = make_plan(load("inline_deit_tiny"), IMAGENET, 8)
    assert (plan.steps_per_epoch, plan.steps, plan.warmup_steps) == (312, 93_600, 6_240)
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=plan.lr)
    scheduler = build_scheduler(optimizer, plan)
    for step, rate in ((0, 4e-6), (3_120, (4e-6 + 4e-3) / 2), (46_800, (4e-3 + 4e-5) / 2)):
        scheduler.step_update(step)
        assert learning_rate(optimizer) == pytest.approx(rate)


def test_the_logged_rate_is_that_of_undecayed_layers():
    """Layers with `lr_scale` have a share of the rate; without a group at the full rate it is computed from another."""
    groups = [{"lr": 0.05, "lr_scale": 0.25}, {"lr": 0.2, "lr_scale": 1.0}]
    assert learning_rate(SimpleNamespace(param_groups=groups)) == 0.2
    assert learning_rate(SimpleNamespace(param_groups=groups[:1])) == pytest.approx(0.2)


@pytest.mark.parametrize(("processes", "micro", "parts"), [(1, 128, 8), (8, 128, 1), (64, 16, 1), (3, None, None)])
def test_any_number_of_processes_has_the_same_steps(processes, micro, parts):
    recipe = load("inline_swin_tiny")
    if micro is None:
        with pytest.raises(ValueError, match=r"optim.batch must be a multiple of the 3 processes, got 1024"):
            make_plan(recipe, IMAGENET, processes)
        return
    plan, alone = make_plan(recipe, IMAGENET, processes), make_plan(recipe, IMAGENET, 1)
    assert (plan.micro_batch, plan.accumulation) == (micro, parts)
    assert (plan.batch, plan.steps, plan.lr, plan.ema_decay) == (alone.batch, alone.steps, alone.lr, alone.ema_decay)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_recipes_are_lab_notes(name):
    lines = shipped()[name].splitlines()
    heads = [line for line in lines if line.startswith("#")]
    assert heads[0].startswith(f"# {name}: ")
    for word in ("Reaches: ", "Cost: ", "Command: inline train"):
        assert any(word in line for line in heads), word
    assert "TBD" not in shipped()[name]
    check(load(name))
    model, arguments = model_spec(load(name), 10)
    assert model == load(name).model.name
    assert arguments["num_classes"] == 10


@pytest.mark.parametrize("name", SHIPPED)
def test_a_recipe_survives_toml(name):
    recipe = load(name)
    assert parse(to_toml(recipe), "here") == recipe


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[optim]\nlrr = 1", r"here: unknown key optim.lrr \(did you mean optim.lr\?\)"),
        ("[optm]\nlr = 1", r"here: unknown key optm \(did you mean optim\?\)"),
        ("[optim]\nlr = 'fast'", "here: optim.lr must be of type float, got 'fast'"),
        ("[optim]\nbatch = 1.5", "here: optim.batch must be of type int, got 1.5"),
        ("[data]\nsize = [1]", r"here: data.size must be a list of 2, got \[1\]"),
        ("[data]\ncrop_mode = 'fish'", "here: data.crop_mode must be one of squash, center, got 'fish'"),
        ("[data]\nview = 'center'", "here: data.view is now called data.crop_mode"),
        ("[optim\n", "here is not TOML"),
        ("optim = 3", "here: optim must be a table, got 3"),
        ("[run]\nfsdp = 1", "here: run.fsdp must be of type bool, got 1"),
    ],
)
def test_what_is_wrong_with_a_recipe_raises(text, message):
    with pytest.raises(ValueError, match=message):
        parse(text, "here")


@pytest.mark.parametrize("family", ["swin", "cswin"])
def test_fine_tunes_start_from_the_model_at_224(family, tmp_path, monkeypatch):
    """The recipe names the file; without it there is an error, with it windows of 7 become windows of 12."""
    recipe = load(f"inline_{family}_base_384")
    assert recipe.model.weights == f"inline_{family}_base.safetensors"
    monkeypatch.chdir(tmp_path)
    args = "embed_dim=32, depths=[1, 1, 1, 1], inline_depths=[1, 1, 0, 0], num_heads=[2, 2, 4, 4]"
    small = replace(recipe, model=replace(recipe.model, args=args))
    with pytest.raises(ValueError, match=rf"there is no file inline_{family}_base.safetensors"):
        build_model(Classify(small), ("a", "b"))
    at_224 = replace(
        small, model=replace(small.model, name=f"inline_{family}_base", weights=None), data=replace(small.data, size=(224, 224))
    )
    before, _ = build_model(Classify(at_224), ("a", "b"))
    save_file(before.state_dict(), tmp_path / recipe.model.weights)
    after, said = build_model(Classify(small), ("a", "b"))
    assert "matched" in said
    for name, value in before.state_dict().items():
        if "position" not in name:
            assert torch.equal(after.state_dict()[name], value), name


def test_names_of_recipes():
    with pytest.raises(
        ValueError,
        match=r"unknown recipe 'inline_swim_tiny' \(did you mean inline_swin_tiny\?\); there are: ade20k_semantic_fpn, ",
    ):
        load("inline_swim_tiny")
    with pytest.raises(ValueError, match=r"^the recipe small_pictures is now called small_images$"):
        load("small_pictures")
    with pytest.raises(ValueError, match=r"there is no recipe nowhere.toml"):
        load("nowhere.toml")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("optim.lr", -1.0, "optim.lr must be positive, got -1.0"),
        ("optim.lr", float("nan"), "optim.lr must be positive, got nan"),
        ("optim.clip", -1.0, "optim.clip must not be negative"),
        ("augment.erase", 1.5, "augment.erase must be within 0..1, got 1.5"),
        ("data.size", (0, 3), r"data.size must be two positive numbers, got \(0, 3\)"),
        ("schedule.warmup", 99, "schedule.warmup must be within the 30 epochs, got 99"),
        ("data.workers", -1, "data.workers must not be negative"),
        ("data.workers", 10**6, "data.workers must be 1,024 at most, got 1000000"),
        ("optim.batch", 10**12, "optim.batch must be 10,000,000 at most, got 1000000000000"),
        ("schedule.steps", 10**10, "schedule.steps must be 1,000,000,000 at most, got 10000000000"),
        ("data.size", (32, 10**12), "data.size: 1,000,000,000,000 x 32 pixels .* are more than 16,777,216: INLINE_MAX"),
        ("data.source", "", "data.source must not be empty, got ''"),
        ("model.weights", " ", "model.weights must not be empty, got ' '"),
        ("optim.freeze", ("",), "optim.freeze must not be empty"),
        ("data.mean", (0.5, float("nan"), 0.5), r"data.mean must be three finite numbers, got \(0.5, nan, 0.5\)"),
    ],
)
def test_values_out_of_range(field, value, message):
    part, name = field.split(".")
    recipe = Recipe()
    recipe = replace(recipe, **{part: replace(getattr(recipe, part), **{name: value})})
    with pytest.raises(ValueError, match=message):
        check(recipe)


def test_a_recipe_without_what_its_task_ignores():
    text = to_toml(load("detect_small"), UNUSED_BY_TASK["detect"])
    assert "anchors = " in text
    assert not any(f"\n{field} = " in text for field in ("inference", "crop_mode", "mixup", "size"))
    assert parse(text, "printed") == load("detect_small")


def test_fsdp_and_average_do_not_go_together():
    recipe = load("inline_cswin_tiny")
    with pytest.raises(ValueError, match=r"ema.decay and run.fsdp do not go together"):
        check(replace(recipe, run=replace(recipe.run, fsdp=True)))


def test_model_arguments_are_toml():
    part = replace(Recipe().model, args="patch_size=4, depths=[1, 2]", mixer="softmax", local=False)
    assert model_arguments(part) == {"patch_size": 4, "depths": (1, 2), "mixer": "softmax", "local": False}
    with pytest.raises(ValueError, match=r"model.args must be like 'patch_size=4"):
        model_arguments(replace(part, args="patch_size"))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("in_chans=1", "in_chans is 1, and data.channels gives 3"),
        ("img_size=64", r"img_size is 64, and data.size gives \(32, 32\)"),
        ("drop_path_rate=0.5", "drop_path_rate is 0.5, and model.drop_path gives 0.1"),
        ("mixer='linear'", "mixer is 'linear', and model.mixer 'softmax': leave out one of the two"),
        (
            "checkpoint_path='some/file'",
            "checkpoint_path is 'some/file', and model.pretrained, or model.weights FILE",
        ),
        ("features_only=true", "features_only is True, and the task decides it: leave it out"),
    ],
)
def test_model_arguments_that_the_recipe_has_another_field_for(args, message):
    recipe = Recipe(model=replace(Recipe().model, mixer="softmax", drop_path=0.1, args=args))
    with pytest.raises(ValueError, match=rf"^model.args: {message}"):
        model_spec(recipe, 10)
    same = replace(recipe.model, args="num_classes=10, img_size=32, mixer='softmax'")
    assert model_spec(replace(recipe, model=same), 10)[1]["img_size"] == (32, 32)


def test_changes_name_what_is_computed_and_not_how():
    recipe = Recipe()
    other = replace(recipe, optim=replace(recipe.optim, lr=1.0, device_batch=2), run=replace(recipe.run, log=3))
    assert changes(recipe, other) == ["optim.lr: 0.0005 -> 1.0"]
    assert set(flat(recipe)) >= {"model.name", "data.source", "ema.decay"}


def test_batches_that_do_not_fit():
    recipe = load("inline_swin_tiny")
    with pytest.raises(ValueError, match=r"500 training images do not fill a batch of 1024: take --optim.batch 500 or less"):
        make_plan(recipe, 500, 1)
    odd = replace(recipe, optim=replace(recipe.optim, batch=9))
    with pytest.raises(ValueError, match="mixup and cutmix pair images: 9 over 1 processes gives batches of 9, an odd number"):
        make_plan(odd, 500, 1)
