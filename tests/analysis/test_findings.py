"""Sentences and verdicts follow from the numbers."""

from dataclasses import replace

import pytest
import torch

from inline_attention.analysis.capture import capture_pass
from inline_attention.analysis.confusion import confusion, level
from inline_attention.analysis.findings import about_maps, findings
from inline_attention.analysis.locality import LayerLocality, locality
from inline_attention.analysis.maps import QueryMap
from inline_attention.analysis.masked_accuracy import MaskedAccuracy
from inline_attention.analysis.model_analysis import ModelAnalysis, kind_of, ray_of
from inline_attention.analysis.rank import rank_stats

from .models import images, make_model

KINDS = {"softmax": {}, "linear": {}, "inline": {}, "plain": {"local": False}}
TITLES = {
    "softmax": "softmax",
    "linear": "linear",
    "inline": "InLine",
    "plain": "InLine without local residual",
}


@pytest.fixture(scope="module")
def analyses():
    found = []
    for key, options in KINDS.items():
        model = make_model(mixer="inline" if key == "plain" else key, **options)
        seen = capture_pass(model, images())
        assert kind_of(seen) == TITLES[key]
        masked = MaskedAccuracy(70.0, 10, (3, 5, 7), {"own window": [50.0] * 3, "random tokens": [60.0] * 3}, {})
        ray = ray_of(seen, title=key)
        found.append(
            ModelAnalysis(key, TITLES[key], "nano", 1000, 2, confusion(seen), ray, locality(seen), rank_stats(seen), masked)
        )
    return found


def with_confusion(one, share):
    """A one with that share of confused pairs."""
    counts = tuple(
        torch.full_like(count, round(share * pairs)) for count, pairs in zip(one.confusion.counts, (10_000,) * 99, strict=False)
    )
    pairs = (10_000,) * len(one.confusion.pairs)
    return replace(one, confusion=replace(one.confusion, counts=counts, pairs=pairs))


@pytest.mark.parametrize(
    ("linear", "others", "verdict", "why"),
    [
        (0.4, 0.01, "agrees", "linear attention confuses 40 times as many pairs."),
        (0.4, 0.0, "agrees", "only linear attention confuses queries."),
        (0.4, 0.3, "partly agrees", "linear attention confuses the most pairs, but only 1.3 times as many."),
        (0.1, 0.3, "does not agree", "another attention confuses as many pairs as the linear one."),
    ],
)
def test_confusion(analyses, linear, others, verdict, why):
    changed = [with_confusion(one, linear if one.kind == "linear" else others) for one in analyses]
    found = findings(changed)["confusion"]
    assert (found.verdict, found.why) == (verdict, why)
    assert f"linear confuses {100 * linear:.0f} %" in found.says


def test_rays(analyses):
    found = findings(analyses)["rays"]
    assert (found.verdict, found.why) == ("agrees", "all pairs have the same weights with linear attention, none with InLine.")
    assert "linear gives 100 % of the pairs" in found.says
    alone = findings([one for one in analyses if one.kind != "linear"])["rays"]
    assert alone.verdict == "undecided"


def near(times):
    return [LayerLocality("one", (3, 5, 7), [0.1 * times] * 3, [0.1 * times] * 3, [0.1] * 3, [[0.1]] * 3, 2)]


@pytest.mark.parametrize(
    ("softmax", "linear", "verdict"),
    [(3.0, 1.0, "agrees"), (1.5, 1.0, "partly agrees"), (3.0, 3.0, "partly agrees"), (1.0, 3.0, "does not agree")],
)
def test_locality(analyses, softmax, linear, verdict):
    found = findings([replace(analyses[0], locality=near(softmax)), replace(analyses[1], locality=near(linear))])["locality"]
    assert found.verdict == verdict
    assert f"softmax {softmax:.2g} and linear {linear:.2g}" in found.says
    assert findings(analyses[::2])["locality"].verdict == "undecided", "softmax and InLine"


def with_scores(analyses, top1=None, own=50.0, random=60.0, images=1000):
    found = {"own window": [own] * 3, "random tokens": [random] * 3}
    return [
        replace(one, masking=MaskedAccuracy((top1 or {}).get(one.label, 70.0), images, (3, 5, 7), found, {}))
        for one in analyses
    ]


@pytest.mark.parametrize(
    ("own", "random", "images", "verdict"),
    [(50, 60, 1000, "agrees"), (50, 60, 10, "undecided"), (60, 50, 1000, "does not agree"), (59, 60, 1000, "undecided")],
)
def test_masking(analyses, own, random, images, verdict):
    """A difference counts beyond two standard errors."""
    found = findings(with_scores(analyses, own=own, random=random, images=images))["masking"]
    assert found.verdict == verdict
    assert (
        f"loses {70 - own:.1f} points with the neighbourhood masked, loses {70 - random:.1f} points with random tokens masked"
        in found.says
    )


def test_some_models_masked(analyses):
    mixed = [*with_scores(analyses)[:3], replace(analyses[3], masking=None)]
    found = findings(mixed)
    assert (
        found["masking"].why == "it costs more by over two standard errors in 9 of 9 cases (models and sizes), and less in 0."
    )
    assert found["accuracy"].verdict == "undecided"
    without = findings([replace(one, masking=None) for one in analyses])
    assert "masking" not in without
    assert "accuracy" not in without


def test_accuracy(analyses):
    tops = {"softmax": 70.0, "linear": 60.0, "inline": 80.0, "plain": 69.0}
    finding = findings(with_scores(analyses, tops))["accuracy"]
    assert finding.verdict == "agrees"
    assert "inline 80.0 %, softmax 70.0 %, plain 69.0 % and linear 60.0 %" in finding.says
    finding = findings(with_scores(analyses, {**tops, "inline": 60.0}))["accuracy"]
    assert finding.verdict == "partly agrees"
    assert "the other way round: InLine above InLine without local residual and InLine above softmax" in finding.why
    assert findings(with_scores(analyses))["accuracy"].verdict == "undecided", "all alike"
    assert findings(with_scores(analyses, tops, images=20))["accuracy"].verdict == "undecided", "too few"


def test_maps(analyses):
    """The share near the point, and of negative weights, in the mean over heads."""
    weights = torch.zeros(1, 2, 4, 4)
    weights[..., 0, 0], weights[..., 3, 3] = 3.0, -1.0
    found = QueryMap("one", "inline", (0, 1), (4, 4), weights, None, torch.zeros(1, 2, 0))
    finding = about_maps({"A": [found, found]})
    assert "A 75 % and 6.2 % in its first layer and 75 % and 6.2 % in its last" in finding.says


def test_rank_has_one_name_in_findings_and_in_json(analyses):
    assert "rank" in findings(analyses)
    assert [len(one.numbers()["rank"]) for one in analyses] == [len(one.rank) for one in analyses]


@pytest.mark.parametrize(("share", "word"), [(0.28, "many"), (0.001, "many"), (0.0007, "some"), (0.0005, "few"), (0.0, "few")])
def test_how_many_confused_pairs_are_many(analyses, share, word):
    one = with_confusion(analyses[0], share)
    assert level(share) == word
    assert f"({level(one.confusion.share())}), at a tolerance of 0.01. Few is good" in findings([one])["confusion"].says


def test_one_model_is_described_and_not_judged(analyses):
    by_kind = {one.kind: findings([one]) for one in analyses}
    for found in by_kind.values():
        assert {finding.verdict for finding in found.values()} == {None}
        assert "paper" not in " ".join(map(str, found.values())).lower()
    assert by_kind["linear"]["rays"].why == "The length of a query does not matter."
    assert by_kind["InLine"]["rays"].why == "The length of a query matters."
    assert by_kind["softmax"]["masking"].why.endswith("at 0 of 3 sizes.")
