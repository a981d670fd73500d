"""The claims: complete, each with its control, and every candidate with a valid recipe."""

from dataclasses import replace

import pytest

from inline_attention.data.config import DataConfig
from inline_attention.evidence.candidate import FAMILIES, Candidate
from inline_attention.evidence.claims import (
    ALL_CLAIMS,
    CLAIMS,
    INLINE,
    INLINE_LOCAL,
    LENGTHS,
    NEWER,
    RATES,
    REPORTED,
    SOFTMAX,
    SOFTMAX_LOCAL,
    at_equal_compute,
    trained,
)  # fmt: skip
from inline_attention.evidence.scale import IMAGENET, SCALES, recipe_of
from inline_attention.layers import MIXERS
from inline_attention.models.counting import count
from inline_attention.ops.kernels import KERNELS
from inline_attention.training import recipe as recipes
from inline_attention.training.model_factory import make_model, model_spec

DIGITS = DataConfig(source="digits")
ALL = trained(list(ALL_CLAIMS.values()))


def test_every_mixer_of_the_paper_every_kernel_and_family_is_in_a_claim():
    mixers = {(one.mixer, one.local) for one in CLAIMS["mixers"].candidates}
    assert mixers == {(mixer, local) for mixer in REPORTED for local in (False, True)}
    assert (*REPORTED, *NEWER) == tuple(MIXERS)
    newer = {(one.mixer, one.local) for one in ALL_CLAIMS["newer"].candidates}
    assert newer >= {(mixer, local) for mixer in NEWER for local in (False, True)}
    kernels = {(one.mixer, one.kernel) for one in CLAIMS["kernels"].candidates}
    for kernel in KERNELS:
        assert ("inline", None if kernel == "identity" else kernel) in kernels
        assert ("linear", None if kernel == "relu" else kernel) in kernels
    families = {(one.family, one.mixer, one.local) for one in CLAIMS["families"].candidates}
    assert families == {
        (family, mixer, local) for family in FAMILIES for mixer in ("inline", "softmax") for local in (False, True)
    }


@pytest.mark.parametrize("name", ALL_CLAIMS)
def test_every_claim_has_softmax_with_the_residual(name):
    """The control that the paper lacks."""
    assert any(one.mixer == "softmax" and one.local for one in ALL_CLAIMS[name].candidates)


def test_candidates_have_distinct_labels():
    labels = [one.label for one in ALL]
    assert len(set(labels)) == len(labels)
    assert Candidate("inline", local=True).label == "InLine + local"
    assert Candidate("softmax", family="pvt", rate=2.0).label == "PVT softmax (2x rate)"


def test_every_attention_is_checked_at_three_rates():
    for candidate in (*map(Candidate, REPORTED), INLINE_LOCAL, SOFTMAX_LOCAL):
        assert {one.rate for one in ALL if replace(one, rate=1.0) == candidate} == {1.0, *RATES}
    plain, doubled = (recipe_of(replace(INLINE, rate=rate), SCALES["laptop"], DIGITS, 10, 0) for rate in (1.0, 2.0))
    assert recipes.changes(plain, doubled) == [
        "optim.lr: 0.004 -> 0.008", "optim.warmup_lr: 4e-05 -> 8e-05", "optim.min_lr: 4e-05 -> 8e-05",
    ]  # fmt: skip


@pytest.mark.parametrize("candidate", ALL, ids=lambda one: one.label)
def test_the_recipe_of_a_candidate(candidate):
    """It is valid, and differs from that of InLine only in the candidate's own settings."""
    recipe = recipe_of(candidate, SCALES["glance"], DIGITS, 10, 3)
    recipes.check(recipe)
    assert recipe.run.seed == 3
    model = make_model(*model_spec(recipe, 10))
    mixers = [module for module in model.modules() if type(module) in MIXERS.values()]
    assert MIXERS[candidate.mixer] in {type(one) for one in mixers}
    has_local = [one.local is not None for one in mixers if isinstance(one, MIXERS[candidate.mixer])]
    assert all(has_local) if candidate.local else not any(has_local)
    for one in mixers:
        if isinstance(one, MIXERS["inline"]):
            start = one.head_dim**-0.5 if candidate.scale is None else candidate.scale
            assert (one.base, one.start_scale if candidate.learned else one.scale) == (candidate.base or "mean", start)
    if candidate.kernel:
        assert recipe.model.kernel == candidate.kernel
    usual = recipe_of(replace(INLINE, family=candidate.family), SCALES["glance"], DIGITS, 10, 3)
    differing = {line.partition(":")[0] for line in recipes.changes(usual, recipe)}
    allowed = {"model.mixer", "model.kernel", "model.local", "model.args"}
    allowed |= {"schedule.steps", "schedule.warmup_steps"} if candidate.equal or candidate.longer != 1 else set()
    allowed |= {"optim.lr", "optim.warmup_lr", "optim.min_lr"} if candidate.rate != 1 else set()
    assert differing <= allowed


def test_pyramids_have_half_the_steps_and_wide_models_smaller_rates():
    def steps_and_rate(candidate, scale):
        recipe = recipe_of(candidate, SCALES[scale], DIGITS, 10, 0)
        return recipe.schedule.steps, recipe.optim.lr

    assert steps_and_rate(INLINE, "laptop") == (500, 4e-3)
    assert steps_and_rate(INLINE, "day") == (6000, 2e-3)
    for family in ("pvt", "swin", "cswin"):
        assert steps_and_rate(replace(INLINE, family=family), "laptop") == (250, 2e-3)


def test_equal_compute_is_equal():
    """Steps times multiply-adds, to the rounding of a step."""

    def spent(candidate):
        recipe = recipe_of(candidate, SCALES["laptop"], DataConfig(source="digits"), 10, 0)
        return recipe.schedule.steps, count(make_model(*model_spec(recipe, 10))).flops

    steps, cost = spent(SOFTMAX)
    for one in CLAIMS["resolution"].candidates:
        own_steps, own_cost = spent(one)
        assert abs(own_steps * own_cost - LENGTHS[-1] * steps * cost) <= own_cost / 2
    coarse, fine = (spent(at_equal_compute(INLINE, finer))[1] for finer in (1, 2))
    assert fine / coarse > 3


def test_softmax_pvt_has_seven_by_seven_keys():
    """As at 224 pixels, or nearly; by its usual ratios a small image would leave it four keys."""
    softmax, inline = (
        recipe_of(Candidate(one, family="pvt"), SCALES["laptop"], DIGITS, 10, 0) for one in ("softmax", "inline")
    )
    assert softmax.data.size == (16, 16)
    assert "sr_ratios=[2, 1, 1, 1]" in softmax.model.args
    assert "sr_ratios" not in inline.model.args


@pytest.mark.parametrize("candidate", [one for one in ALL if one.rate == 1], ids=lambda one: one.label)
def test_the_imagenet_scale_has_the_papers_recipes(candidate):
    recipe = recipe_of(candidate, IMAGENET, DataConfig(source="/imagenet"), 1000, 0)
    recipes.check(recipe)
    published = recipes.load(f"inline_{candidate.family}_tiny")
    differing = {line.partition(":")[0] for line in recipes.changes(published, recipe)}
    assert differing <= {
        "model.mixer",
        "model.kernel",
        "model.local",
        "model.args",
        "data.size",
        "schedule.epochs",
        "run.evaluate",
    }
    assert ("data.size" in differing) == (candidate.finer != 1)
    assert "schedule.epochs" not in differing or candidate.equal or candidate.longer != 1
    model_spec(recipe, 1000)


def test_one_evaluation_at_the_end():
    recipe = recipe_of(SOFTMAX_LOCAL, SCALES["laptop"], DIGITS, 10, 0)
    assert recipe.run.evaluate >= recipe.schedule.epochs


def test_labels_name_the_family_where_there_are_several():
    names = [CLAIMS["families"].name_of(one) for one in CLAIMS["families"].candidates]
    assert [name.split()[0] for name in names] == [title for title in FAMILIES.values() for _ in range(4)]
    assert CLAIMS["mixers"].name_of(INLINE) == "InLine"
