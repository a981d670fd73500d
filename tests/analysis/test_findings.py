"""Sentences follow the numbers."""

from dataclasses import replace

import pytest
import torch

from inline_attention.analysis.capture import seen_by
from inline_attention.analysis.confusion import confusion
from inline_attention.analysis.findings import about_maps, findings
from inline_attention.analysis.locality import Near, locality
from inline_attention.analysis.maps import QueryMap
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
        masked = Masked(70.0, 10, (3, 5, 7), {"own window": [50.0] * 3, "random tokens": [60.0] * 3}, {})
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


def near(times):
    return [Near("one", (3, 5, 7), [0.1 * times] * 3, [0.1 * times] * 3, [0.1] * 3, [[0.1]] * 3, 2)]


@pytest.mark.parametrize(
    ("softmax", "linear", "verdict"),
    [(3.0, 1.0, "agrees"), (1.5, 1.0, "partly agrees"), (3.0, 3.0, "partly agrees"), (1.0, 3.0, "does not agree")],
)
def test_locality(studies, softmax, linear, verdict):
    found = findings([replace(studies[0], locality=near(softmax)), replace(studies[1], locality=near(linear))])["locality"]
    assert found.verdict == verdict
    assert f"softmax {softmax:.2g} and linear {linear:.2g}" in found.says
    assert findings(studies[:1])["locality"].verdict == "cannot tell"


def with_scores(studies, top1=None, own=50.0, random=60.0, pictures=1000):
    found = {"own window": [own] * 3, "random tokens": [random] * 3}
    return [
        replace(study, masking=Masked((top1 or {}).get(study.label, 70.0), pictures, (3, 5, 7), found, {})) for study in studies
    ]


@pytest.mark.parametrize(
    ("own", "random", "pictures", "verdict"),
    [(50, 60, 1000, "agrees"), (50, 60, 10, "cannot tell"), (60, 50, 1000, "does not agree"), (59, 60, 1000, "cannot tell")],
)
def test_masking(studies, own, random, pictures, verdict):
    """A difference counts beyond two standard errors."""
    found = findings(with_scores(studies, own=own, random=random, pictures=pictures))["masking"]
    assert found.verdict == verdict
    assert f"softmax loses {70 - own:.1f} points by its own window, loses {70 - random:.1f} points at random" in found.says


def test_some_models_masked(studies):
    mixed = [*with_scores(studies)[:3], replace(studies[3], masking=None)]
    found = findings(mixed)
    assert (
        found["masking"].why
        == "by more than two standard errors, it costs more in 9 of 9 cases (models and sizes) and less in 0."
    )
    assert found["accuracy"].verdict == "cannot tell"
    without = findings([replace(study, masking=None) for study in studies])
    assert "masking" not in without
    assert "accuracy" not in without


def test_accuracy(studies):
    tops = {"softmax": 70.0, "linear": 60.0, "inline": 80.0, "plain": 69.0}
    told = findings(with_scores(studies, tops))["accuracy"]
    assert told.verdict == "agrees"
    assert "inline 80.0 %, softmax 70.0 %, plain 69.0 % and linear 60.0 %" in told.says
    told = findings(with_scores(studies, {**tops, "inline": 60.0}))["accuracy"]
    assert told.verdict == "partly agrees"
    assert "the other way round: InLine above InLine without local residual and InLine above softmax" in told.why
    assert findings(with_scores(studies))["accuracy"].verdict == "cannot tell", "all alike"
    assert findings(with_scores(studies, tops, pictures=20))["accuracy"].verdict == "cannot tell", "too few"


def test_maps(studies):
    """The share near the point, and of negative weights, in the mean over heads."""
    weights = torch.zeros(1, 2, 4, 4)
    weights[..., 0, 0], weights[..., 3, 3] = 3.0, -1.0
    found = QueryMap("one", "inline", (0, 1), (4, 4), weights, None, torch.zeros(1, 2, 0))
    told = about_maps({"A": [found, found]})
    assert "A 75 % and 6.2 % in its first layer and 75 % and 6.2 % in its last" in told.says
