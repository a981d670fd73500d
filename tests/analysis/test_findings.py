"""Sentences follow the numbers."""

from dataclasses import replace

import pytest
import torch

from inline_attention.analysis.capture import seen_by
from inline_attention.analysis.confusion import confusion
from inline_attention.analysis.findings import findings
from inline_attention.analysis.locality import Near, locality
from inline_attention.analysis.masking import Masked
from inline_attention.analysis.spectrum import spectrum
from inline_attention.analysis.study import Study, kind_of, ray_of

from .models import made, pictures

KINDS = {"softmax": {}, "linear": {}, "inline": {}, "plain": {"local": False}}
TITLES = {
    "softmax": "softmax",
    "linear": "linear",
    "inline": "InLine",
    "plain": "InLine without local residual",
}


@pytest.fixture(scope="module")
def studies():
    found = []
    for key, options in KINDS.items():
        model = made(mixer="inline" if key == "plain" else key, **options)
        seen = seen_by(model, pictures())
        assert kind_of(seen) == TITLES[key]
        masked = Masked(70.0, 10, (3, 5, 7), {"own window": [50.0] * 3, "random tokens": [60.0] * 3}, [])
        ray = ray_of(seen, title=key)
        found.append(Study(key, TITLES[key], "nano", 1000, 2, confusion(seen), ray, locality(seen), spectrum(seen), masked))
    return found


def with_confusion(study, share):
    """A study with that share of confused pairs."""
    counts = tuple(
        torch.full_like(count, round(share * pairs))
        for count, pairs in zip(study.confusion.counts, (10_000,) * 99, strict=False)
    )
    pairs = (10_000,) * len(study.confusion.pairs)
    return replace(study, confusion=replace(study.confusion, counts=counts, pairs=pairs))


@pytest.mark.parametrize(
    ("linear", "others", "verdict", "why"),
    [
        (0.4, 0.01, "agrees", "linear attention confuses 40 times as often."),
        (0.4, 0.0, "agrees", "only linear attention confuses queries."),
        (0.4, 0.3, "partly agrees", "linear attention confuses most, but only 1.3 times as often."),
        (0.1, 0.3, "does not agree", "here another attention confuses as often as the linear one."),
    ],
)
def test_confusion(studies, linear, others, verdict, why):
    changed = [with_confusion(study, linear if study.kind == "linear" else others) for study in studies]
    found = findings(changed)["confusion"]
    assert (found.verdict, found.why) == (verdict, why)
    assert f"linear confuses {100 * linear:.0f} %" in found.says


def test_rays(studies):
    found = findings(studies)["rays"]
    assert (found.verdict, found.why) == ("agrees", "all pairs are the same for linear attention, none for InLine.")
    assert "linear gives 100 % of the pairs" in found.says
    alone = findings([study for study in studies if study.kind != "linear"])["rays"]
    assert alone.verdict == "cannot tell"


@pytest.mark.parametrize(("times", "verdict"), [(3.0, "agrees"), (1.5, "partly agrees"), (1.0, "does not agree")])
def test_locality(studies, times, verdict):
    near = Near("one", (3, 5, 7), [0.1 * times] * 3, [0.1 * times] * 3, [0.1] * 3, [[0.1]] * 3, 2)
    found = findings([replace(studies[0], locality=[near])])["locality"]
    assert found.verdict == verdict
    assert f"softmax {times:.2g}" in found.says


def test_masking_and_accuracy(studies):
    found = findings(studies)
    assert (found["masking"].verdict, found["masking"].why) == ("agrees", "so it is for 4 of 4 models.")
    assert "softmax loses 20.0 points by its own window, loses 10.0 points by random tokens" in found["masking"].says
    assert found["accuracy"].verdict == "does not agree", "all alike"
    tops = {"softmax": 70, "linear": 60, "inline": 75, "plain": 69}
    ordered = [replace(study, masking=replace(study.masking, top1=tops[study.label])) for study in studies]
    assert findings(ordered)["accuracy"].verdict == "agrees"
    ordered[2] = replace(ordered[2], masking=replace(ordered[2].masking, top1=65))
    told = findings(ordered)["accuracy"]
    assert told.verdict == "partly agrees"
    assert "not InLine above softmax" in told.why
    without = findings([replace(study, masking=None) for study in studies])
    assert "masking" not in without
    assert "accuracy" not in without
