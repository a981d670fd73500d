"""What the numbers say, in sentences made from them, and whether that is what the paper says."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .confusion import STATED
from .masking import RULES
from .study import Study

Verdict = Literal["agrees", "partly agrees", "does not agree", "cannot tell"]
MARGIN = 3.0
"""How many times more often one model has to confuse queries for 'far more often'."""


@dataclass(frozen=True)
class Finding:
    """What a figure shows."""

    title: str
    says: str
    """What to see, with the numbers."""
    paper: str
    """What the paper reports (Han et al., NeurIPS 2024), in this package's words."""
    verdict: Verdict
    why: str


def findings(studies: Sequence[Study]) -> dict[str, Finding]:
    """One for each figure of the report."""
    found = {
        "confusion": about_confusion(studies),
        "locality": about_locality(studies),
        "spectrum": about_spectrum(studies),
    }
    if any(study.ray is not None for study in studies):
        found["rays"] = about_rays(studies)
    if all(study.masking is not None for study in studies):
        found["masking"] = about_masking(studies)
        found["accuracy"] = about_accuracy(studies)
    return found


def about_confusion(studies: Sequence[Study]) -> Finding:
    """Who confuses queries."""
    shares = {study.label: study.confusion.share(STATED) for study in studies}
    ranked = sorted(shares, key=shares.__getitem__, reverse=True)
    says = (
        "Of all pairs of queries of a picture, "
        f"{_list([f'{label} confuses {_percent(shares[label])}' for label in ranked])}, at a tolerance of {STATED:g}."
    )
    linear, rest = _of(studies, "linear"), _of(studies, "softmax", "InLine", "InLine without local residual")
    paper = "Divided linear attention often gives different queries the same weights; softmax and InLine hardly ever do."
    if not linear or not rest:
        return Finding("Confusion", says, paper, "cannot tell", "that needs a linear model beside a softmax or InLine one.")
    least, most = min(shares[one.label] for one in linear), max(shares[one.label] for one in rest)
    if least > MARGIN * most:
        why = (
            f"linear attention confuses {least / most:.3g} times as often."
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
            f"linear attention confuses most, but only {least / most:.2g} times as often.",
        )
    return Finding("Confusion", says, paper, "does not agree", "here another attention confuses as often as the linear one.")


def about_rays(studies: Sequence[Study]) -> Finding:
    """Who forgets how long a query is."""
    rays = {study.label: study.ray for study in studies if study.ray is not None}
    shares = {label: float(ray.confused.double().mean()) / ray.pairs for label, ray in rays.items()}
    says = (
        "One query made shorter and longer: "
        + _list(
            [f"{label} gives {_percent(share)} of the pairs of lengths the same weights" for label, share in shares.items()]
        )
        + "."
    )
    paper = "Dividing by the sum forgets the length of phi(q); subtracting the mean does not."
    linear = [shares[one.label] for one in _of(studies, "linear") if one.ray is not None]
    inline = [shares[one.label] for one in _of(studies, "InLine", "InLine without local residual") if one.ray is not None]
    if not linear or not inline:
        return Finding("Rays", says, paper, "cannot tell", "that needs a linear model beside an InLine one.")
    if min(linear) == 1 and max(inline) == 0:
        return Finding("Rays", says, paper, "agrees", "all pairs are the same for linear attention, none for InLine.")
    verdict: Verdict = "partly agrees" if min(linear) > max(inline) else "does not agree"
    return Finding(
        "Rays", says, paper, verdict, f"{_percent(min(linear))} for linear attention, {_percent(max(inline))} for InLine."
    )


def about_locality(studies: Sequence[Study]) -> Finding:
    """Whose attention stays near."""
    parts = []
    for study in studies:
        shallow = study.locality[: max(1, len(study.locality) // 3)]
        own = sum(near.attention[0] / near.even[0] for near in shallow) / len(shallow)
        both = sum(near.together[0] / near.even[0] for near in shallow) / len(shallow)
        parts.append(f"{study.label} {own:.2g}" + ("" if both == own else f" ({both:.2g} with its local part)"))
    says = (
        "Weights on the 3 x 3 tokens around the query in the first third of the layers, in multiples of what even weights "
        f"would put there: {_list(parts)}."
    )
    paper = "Softmax attention puts far more than the even share near the query in shallow layers; linear attention does not."
    softmax = _of(studies, "softmax")
    if not softmax:
        return Finding("Locality", says, paper, "cannot tell", "that needs a softmax model.")
    first = softmax[0].locality[0]
    times = first.attention[0] / first.even[0]
    verdict: Verdict = "agrees" if times >= 2 else "partly agrees" if times > 1.2 else "does not agree"
    return Finding("Locality", says, paper, verdict, f"softmax puts {times:.2g} times the even share there in its first layer.")


def about_masking(studies: Sequence[Study]) -> Finding:
    """Whom hiding neighbours hurts."""
    parts, more = [], 0
    for study in studies:
        masked = study.masking
        if masked is None:
            continue
        own, random = (masked.top1 - masked.found[rule][0] for rule in RULES)
        more += own > random
        parts.append(f"{study.label} {_change(own)} by its own window, {_change(random)} by random tokens")
    size = next(study.masking.sizes[0] for study in studies if study.masking is not None)
    says = f"With {size} x {size} tokens hidden from every query in every layer: {'; '.join(parts)}."
    paper = "Hiding a query's own neighbourhood costs more than hiding as many random tokens."
    verdict: Verdict = "agrees" if more == len(studies) else "partly agrees" if more else "does not agree"
    return Finding("Masking", says, paper, verdict, f"so it is for {more} of {len(studies)} models.")


def about_accuracy(studies: Sequence[Study]) -> Finding:
    """Which attention learned most."""
    tops = {study.label: study.masking.top1 for study in studies if study.masking is not None}
    ranked = sorted(tops, key=tops.__getitem__, reverse=True)
    pictures = next(study.masking.pictures for study in studies if study.masking is not None)
    says = f"Top-1 over {pictures} held-out pictures: {_list([f'{label} {tops[label]:.1f} %' for label in ranked])}."
    paper = "Linear attention is below softmax, InLine without the local residual near it, InLine with it above."
    kinds = ("linear", "InLine without local residual", "softmax", "InLine")
    by_kind = [max((tops[one.label] for one in _of(studies, kind)), default=None) for kind in kinds]
    linear, plain, softmax, inline = by_kind
    if linear is None or softmax is None or inline is None or plain is None:
        return Finding(
            "Accuracy", says, paper, "cannot tell", "that needs softmax, linear, and InLine with and without local residual."
        )
    facts = [linear < softmax, plain > linear, inline > plain, inline > softmax]
    verdict: Verdict = "agrees" if all(facts) else "partly agrees" if any(facts) else "does not agree"
    words = (
        "linear below softmax",
        "InLine without local residual above linear",
        "the local residual helps",
        "InLine above softmax",
    )
    held = [word for word, fact in zip(words, facts, strict=True) if fact]
    failed = [f"not {word}" for word, fact in zip(words, facts, strict=True) if not fact]
    return Finding("Accuracy", says, paper, verdict, f"{_list(held + failed)}.")


def about_spectrum(studies: Sequence[Study]) -> Finding:
    """Whose weights are rich, and whose even."""
    parts = []
    for study in studies:
        mean = [
            sum(getattr(one, part) for one in study.spectrum) / len(study.spectrum) for part in ("effective_rank", "entropy")
        ]
        parts.append(f"{study.label} {mean[0]:.1f} and {mean[1]:.2f}")
    tokens = studies[0].spectrum[0].tokens
    says = (
        f"Effective rank (of at most {tokens} in the first layer) and entropy (1 is even), in the mean over layers: "
        f"{'; '.join(parts)}."
    )
    paper = "It reports neither. By the algebra, linear weights have at most the rank of a head's channels, and one more."
    return Finding("Rank and entropy", says, paper, "cannot tell", "there is nothing to compare with.")


def _of(studies: Sequence[Study], *kinds: str) -> list[Study]:
    return [study for study in studies if study.kind in kinds]


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if 0 < share < 0.0995 else f"{100 * share:.0f} %"


def _list(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _change(loss: float) -> str:
    """Of accuracy, in points."""
    return f"loses {loss:.1f} points" if loss >= 0 else f"gains {-loss:.1f} points"
