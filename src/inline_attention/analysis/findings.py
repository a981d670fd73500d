"""Findings: sentences generated from the numbers, and whether they agree with the paper."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Literal

from .confusion import DEFAULT_TOLERANCE, LEVELS, level
from .maps import QueryMap
from .masked_accuracy import RULES, MaskedAccuracy
from .model_analysis import ModelAnalysis

Verdict = Literal["agrees", "partly agrees", "does not agree", "undecided"]
MARGIN = 3.0
"""'Far more often': linear attention confuses more than this many times as many queries as the others."""
FAR = 2.0
"""'Far more': at least this many times the even share."""
SOME = 1.2
"""'Somewhat more': from so many times the even share on."""
NEARLY_EVEN = 0.95
"""Entropy, 1 for even weights, from which on weights are called nearly even."""


@dataclass(frozen=True)
class Finding:
    """What a figure shows, and the verdict against the paper."""

    title: str
    says: str
    """What is measured, with the numbers."""
    paper: str
    """What the paper reports (Han et al., NeurIPS 2024), in this package's words."""
    verdict: Verdict | None
    """None with one model: verdicts are about several."""
    why: str
    """The reason for the verdict; with one model, what its numbers mean."""

    def __str__(self) -> str:
        verdict = "" if self.verdict is None else f" The paper: {self.paper} {self.verdict.capitalize()}:"
        return f"{self.title}: {self.says}{verdict} {self.why}".rstrip()


def findings(analyses: Sequence[ModelAnalysis]) -> dict[str, Finding]:
    """One finding for each figure of the report, and one about accuracy, by name. One model is described, not judged."""
    found = {"confusion": about_confusion(analyses), "locality": about_locality(analyses), "rank": about_rank(analyses)}
    if any(one.ray is not None for one in analyses):
        found["rays"] = about_rays(analyses)
    masked = [one for one in analyses if one.masking is not None]
    if masked:
        found |= {"masking": about_masking(masked), "accuracy": about_accuracy(masked)}
    if len(analyses) == 1:
        meaning = describe(analyses[0])
        found = {name: replace(one, verdict=None, why=meaning.get(name, "")) for name, one in found.items()}
    return found


def describe(one: ModelAnalysis) -> dict[str, str]:
    """What the numbers of one model mean, in a sentence for each finding that has one."""
    times, together = _near(one)
    near = "far more than" if times >= FAR else "about as much as" if times < SOME else "somewhat more than"
    local = f", and far more with its local part ({together:.2g} times)" if together >= FAR > times else ""
    entropy = sum(layer.entropy for layer in one.rank) / len(one.rank)
    found = {
        "locality": f"It puts {near} even weights would near the query in its first layers{local}.",
        "rank": "Its weights are nearly even." if entropy >= NEARLY_EVEN else "Its weights differ from place to place.",
    }
    if one.ray is not None:
        same = float(one.ray.confused.double().mean()) / one.ray.pairs
        matters = "does not matter" if same == 1 else "matters" if same == 0 else "matters in part"
        found["rays"] = f"The length of a query {matters}."
    if one.masking is not None:
        masked, near_, random = one.masking, *(one.masking.found[rule] for rule in RULES)
        costlier = sum(_beyond(b, a, masked.images) for a, b in zip(near_, random, strict=True))
        found["masking"] = (
            "Masking the neighbourhood costs more than masking as many random tokens, by over two standard errors, at "
            f"{costlier} of {len(masked.sizes)} sizes."
        )
    return found


def about_maps(models: Mapping[str, Sequence[QueryMap]]) -> Finding:
    """The attention of one query."""
    parts = []
    for label, maps in models.items():
        first, last = (_of_map(found) for found in (maps[0], maps[-1]))
        parts.append(f"{label} {first} in its first layer and {last} in its last")
    says = f"Shares of the marked point's weights on the 3 x 3 tokens around it, and of negative weights: {'; '.join(parts)}."
    paper = "It shows such maps for softmax, linear and InLine attention."
    if len(models) == 1:
        return Finding("Maps", says, paper, None, "This is one point of one image; the other figures are over all images.")
    return Finding(
        "Maps", says, paper, "undecided", "one point of one image proves nothing; the other figures are over all images."
    )


def _of_map(found: QueryMap) -> str:
    weights = found.together[0].mean(0)
    row, column = (at * side // whole for at, side, whole in zip(found.query, weights.shape, found.grid, strict=True))
    around = weights[max(0, row - 1) : row + 2, max(0, column - 1) : column + 2].abs().sum() / weights.abs().sum()
    return f"{_percent(float(around))} and {_percent(float((weights < 0).double().mean()))}"


def about_confusion(analyses: Sequence[ModelAnalysis]) -> Finding:
    """Which models confuse queries."""
    shares = {one.label: one.confusion.share(DEFAULT_TOLERANCE) for one in analyses}
    ranked = sorted(shares, key=shares.__getitem__, reverse=True)
    listed = _list([f"{label} confuses {_percent(shares[label])} ({level(shares[label])})" for label in ranked])
    says = f"Of all pairs of queries of an image, {listed}, at a tolerance of {DEFAULT_TOLERANCE:g}. {LEVELS}"
    linear, rest = _of(analyses, "linear"), _of(analyses, "softmax", "InLine", "InLine without local residual")
    paper = "Linear attention often gives different queries the same weights; softmax and InLine hardly ever do."
    if not linear or not rest:
        return Finding("Confusion", says, paper, "undecided", "this needs a linear model and a softmax or InLine one.")
    least, most = min(shares[one.label] for one in linear), max(shares[one.label] for one in rest)
    if least > MARGIN * most:
        why = (
            f"linear attention confuses {least / most:.3g} times as many pairs."
            if most
            else "only linear attention confuses queries."
        )
        return Finding("Confusion", says, paper, "agrees", why)
    if least > most:
        return Finding(
            "Confusion",
            says,
            paper,
            "partly agrees",
            f"linear attention confuses the most pairs, but only {least / most:.2g} times as many.",
        )
    return Finding("Confusion", says, paper, "does not agree", "another attention confuses as many pairs as the linear one.")


def about_rays(analyses: Sequence[ModelAnalysis]) -> Finding:
    """Which models give queries of different lengths the same weights."""
    rays = {one.label: one.ray for one in analyses if one.ray is not None}
    shares = {label: float(ray.confused.double().mean()) / ray.pairs for label, ray in rays.items()}
    says = (
        "One query at several lengths: "
        + _list(
            [f"{label} gives {_percent(share)} of the pairs of lengths the same weights" for label, share in shares.items()]
        )
        + "."
    )
    paper = "Dividing by the sum loses the length of phi(q); subtracting the mean keeps it."
    linear = [shares[one.label] for one in _of(analyses, "linear") if one.ray is not None]
    inline = [shares[one.label] for one in _of(analyses, "InLine", "InLine without local residual") if one.ray is not None]
    if not linear or not inline:
        return Finding("Rays", says, paper, "undecided", "this needs a linear and an InLine model.")
    if min(linear) == 1 and max(inline) == 0:
        return Finding(
            "Rays", says, paper, "agrees", "all pairs have the same weights with linear attention, none with InLine."
        )
    verdict: Verdict = "partly agrees" if min(linear) > max(inline) else "does not agree"
    return Finding(
        "Rays", says, paper, verdict, f"{_percent(min(linear))} for linear attention, {_percent(max(inline))} for InLine."
    )


def about_locality(analyses: Sequence[ModelAnalysis]) -> Finding:
    """How local the attention of each model is."""
    parts, times = [], {}
    for one in analyses:
        own, both = _near(one)
        times[one.label] = own
        parts.append(f"{one.label} {own:.2g}" + ("" if both == own else f" ({both:.2g} with its local part)"))
    says = (
        "The weights on the 3 x 3 tokens around the query in the first third of the layers, as multiples of the share of even "
        f"weights: {_list(parts)}."
    )
    paper = "Softmax attention puts far more than the even share near the query in shallow layers; linear attention does not."
    softmax, linear = _of(analyses, "softmax"), _of(analyses, "linear")
    if not softmax or not linear:
        return Finding("Locality", says, paper, "undecided", "this needs a softmax and a linear model.")
    most, least = max(times[one.label] for one in linear), min(times[one.label] for one in softmax)
    facts = (least >= FAR, most < FAR)
    verdict: Verdict = "agrees" if all(facts) else "partly agrees" if any(facts) else "does not agree"
    return Finding(
        "Locality",
        says,
        paper,
        verdict,
        f"{least:.2g} times the even share for softmax, {most:.2g} times for linear attention.",
    )


def _near(one: ModelAnalysis) -> tuple[float, float]:
    """The weights on the 3 x 3 tokens around the query in the first third of the layers, over those of even weights.

    Of attention alone, and together with the local part.
    """
    shallow = one.locality[: max(1, len(one.locality) // 3)]
    parts = [[getattr(near, part)[0] / near.even[0] for near in shallow] for part in ("attention", "together")]
    return sum(parts[0]) / len(shallow), sum(parts[1]) / len(shallow)


def about_masking(analyses: Sequence[ModelAnalysis]) -> Finding:
    """What masking the neighbourhood costs each model, at every window size."""
    by_size: dict[int, list[str]] = {}
    more = less = cases = 0
    for one, masked in _masked(analyses):
        for place, size in enumerate(masked.sizes):
            own, random = (masked.found[rule][place] for rule in RULES)
            cases, more = cases + 1, more + _beyond(random, own, masked.images)
            less += _beyond(own, random, masked.images)
            near, far = _change(masked.top1 - own), _change(masked.top1 - random)
            losses = f"{one.label} {near} with the neighbourhood masked, {far} with random tokens masked"
            by_size.setdefault(size, []).append(losses)
    extremes = {size: by_size[size] for size in (min(by_size), max(by_size))}
    parts = [f"{size} x {size} tokens: {'; '.join(losses)}" for size, losses in extremes.items()]
    says = f"Keys masked for every query in every layer with a larger grid: {'. '.join(parts)}."
    paper = "Masking the neighbourhood of a query costs more accuracy than masking as many random tokens."
    verdict: Verdict = "partly agrees" if more else "does not agree" if less else "undecided"
    verdict = "agrees" if more == cases else verdict
    why = f"it costs more by over two standard errors in {more} of {cases} cases (models and sizes), and less in {less}."
    return Finding("Masking", says, paper, verdict, why)


def about_accuracy(analyses: Sequence[ModelAnalysis]) -> Finding:
    """The accuracy of each model."""
    tops = {one.label: masked.top1 for one, masked in _masked(analyses)}
    ranked = sorted(tops, key=tops.__getitem__, reverse=True)
    images = _masked(analyses)[0][1].images
    says = f"Top-1 over {images:,} validation images: {_list([f'{label} {tops[label]:.1f} %' for label in ranked])}."
    paper = "Linear attention is below softmax, InLine without the local residual above linear, InLine with it above softmax."
    kinds = ("linear", "InLine without local residual", "softmax", "InLine")
    linear, plain, softmax, inline = (max((tops[one.label] for one in _of(analyses, kind)), default=None) for kind in kinds)
    if linear is None or softmax is None or inline is None or plain is None:
        why = "this needs softmax, linear, and InLine with and without the local residual."
        return Finding("Accuracy", says, paper, "undecided", why)
    claims = {
        "softmax above linear": (softmax, linear),
        "InLine without local residual above linear": (plain, linear),
        "InLine above InLine without local residual": (inline, plain),
        "InLine above softmax": (inline, softmax),
    }
    confirmed = [words for words, (more, less) in claims.items() if _beyond(more, less, images)]
    reversed_ = [words for words, (more, less) in claims.items() if _beyond(less, more, images)]
    open_ = [words for words in claims if words not in (*confirmed, *reversed_)]
    verdict: Verdict = (
        "agrees"
        if len(confirmed) == len(claims)
        else "partly agrees"
        if confirmed
        else "does not agree"
        if reversed_
        else "undecided"
    )
    groups = [("found", confirmed), ("the other way round", reversed_), ("within two standard errors", open_)]
    return Finding(
        "Accuracy", says, paper, verdict, "; ".join(f"{what}: {_list(words)}" for what, words in groups if words) + "."
    )


def about_rank(analyses: Sequence[ModelAnalysis]) -> Finding:
    """Rank and entropy of the weights of each model."""
    parts = []
    for one in analyses:
        mean = [sum(getattr(layer, part) for layer in one.rank) / len(one.rank) for part in ("effective_rank", "entropy")]
        parts.append(f"{one.label} {mean[0]:.1f} and {mean[1]:.2f}")
    tokens = analyses[0].rank[0].tokens
    says = (
        f"Effective rank (at most {tokens} in the first layer) and entropy (1 for even weights), averaged over layers: "
        f"{'; '.join(parts)}."
    )
    paper = "It reports neither. Weights of linear attention have at most a rank of the channels of a head plus one."
    return Finding("Rank and entropy", says, paper, "undecided", "the paper has no numbers to compare with.")


def _of(analyses: Sequence[ModelAnalysis], *kinds: str) -> list[ModelAnalysis]:
    return [one for one in analyses if one.kind in kinds]


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if 0 < share < 0.0995 else f"{100 * share:.0f} %"


def _list(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _change(loss: float) -> str:
    """A loss or gain of accuracy in points."""
    return f"loses {loss:.1f} points" if loss >= 0 else f"gains {-loss:.1f} points"


def _masked(analyses: Sequence[ModelAnalysis]) -> list[tuple[ModelAnalysis, MaskedAccuracy]]:
    return [(one, one.masking) for one in analyses if one.masking is not None]


def _beyond(more: float, less: float, images: int) -> bool:
    """Whether one accuracy, in percent, is above another by more than two standard errors of their difference."""
    error = sqrt(sum(share / 100 * (1 - share / 100) for share in (more, less)) / images) * 100
    return more - less > 2 * error
