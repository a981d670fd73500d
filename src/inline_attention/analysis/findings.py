"""What the numbers say, in sentences made from them, and whether that is what the paper says."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Literal

from .confusion import STATED
from .maps import QueryMap
from .masking import RULES, Masked
from .study import Study

Verdict = Literal["agrees", "partly agrees", "does not agree", "cannot tell"]
MARGIN = 3.0
"""How many times more often one model has to confuse queries for 'far more often'."""
FAR = 2.0
"""How many times the even share is 'far more'."""


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
    """One for each figure of the report that compares models, and one about accuracy."""
    found = {"confusion": about_confusion(studies), "locality": about_locality(studies), "spectrum": about_spectrum(studies)}
    if any(study.ray is not None for study in studies):
        found["rays"] = about_rays(studies)
    masked = [study for study in studies if study.masking is not None]
    if masked:
        found |= {"masking": about_masking(masked), "accuracy": about_accuracy(masked)}
    return found


def about_maps(models: Mapping[str, Sequence[QueryMap]]) -> Finding:
    """Where one query looks."""
    parts = []
    for label, maps in models.items():
        first, last = (_of_map(found) for found in (maps[0], maps[-1]))
        parts.append(f"{label} {first} in its first layer and {last} in its last")
    says = f"Of the marked point's weights, on the 3 x 3 tokens around it, and negative: {'; '.join(parts)}."
    paper = "It shows such maps for softmax, linear and InLine attention."
    return Finding("Maps", says, paper, "cannot tell", "one point of one picture proves nothing; the other figures count.")


def _of_map(found: QueryMap) -> str:
    weights = found.together[0].mean(0)
    row, column = (at * side // whole for at, side, whole in zip(found.query, weights.shape, found.grid, strict=True))
    around = weights[max(0, row - 1) : row + 2, max(0, column - 1) : column + 2].abs().sum() / weights.abs().sum()
    return f"{_percent(float(around))} and {_percent(float((weights < 0).double().mean()))}"


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
    parts, times = [], {}
    for study in studies:
        shallow = study.locality[: max(1, len(study.locality) // 3)]
        own = sum(near.attention[0] / near.even[0] for near in shallow) / len(shallow)
        times[study.label] = own
        both = sum(near.together[0] / near.even[0] for near in shallow) / len(shallow)
        parts.append(f"{study.label} {own:.2g}" + ("" if both == own else f" ({both:.2g} with its local part)"))
    says = (
        "Weights on the 3 x 3 tokens around the query in the first third of the layers, in multiples of what even weights "
        f"would put there: {_list(parts)}."
    )
    paper = "Softmax attention puts far more than the even share near the query in shallow layers; linear attention does not."
    softmax, linear = _of(studies, "softmax"), _of(studies, "linear")
    if not softmax or not linear:
        return Finding("Locality", says, paper, "cannot tell", "that needs a softmax and a linear model.")
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


def about_masking(studies: Sequence[Study]) -> Finding:
    """Whom hiding neighbours hurts, judged at every size."""
    told: dict[int, list[str]] = {}
    more = less = cases = 0
    for study, masked in _masked(studies):
        for place, size in enumerate(masked.sizes):
            own, random = (masked.found[rule][place] for rule in RULES)
            cases, more = cases + 1, more + _beyond(random, own, masked.pictures)
            less += _beyond(own, random, masked.pictures)
            losses = f"{study.label} {_change(masked.top1 - own)} by its own window, {_change(masked.top1 - random)} at random"
            told.setdefault(size, []).append(losses)
    shown = {size: told[size] for size in (min(told), max(told))}
    parts = [f"{size} x {size} tokens: {'; '.join(losses)}" for size, losses in shown.items()]
    says = f"Hidden from every query in every layer that is larger: {'. '.join(parts)}."
    paper = "Hiding a query's own neighbourhood costs more than hiding as many random tokens."
    verdict: Verdict = "partly agrees" if more else "does not agree" if less else "cannot tell"
    verdict = "agrees" if more == cases else verdict
    why = f"by more than two standard errors, it costs more in {more} of {cases} cases (models and sizes) and less in {less}."
    return Finding("Masking", says, paper, verdict, why)


def about_accuracy(studies: Sequence[Study]) -> Finding:
    """Which attention learned most."""
    tops = {study.label: masked.top1 for study, masked in _masked(studies)}
    ranked = sorted(tops, key=tops.__getitem__, reverse=True)
    pictures = _masked(studies)[0][1].pictures
    says = f"Top-1 over {pictures:,} held-out pictures: {_list([f'{label} {tops[label]:.1f} %' for label in ranked])}."
    paper = "Linear attention is below softmax, InLine without the local residual above linear, InLine with it above softmax."
    kinds = ("linear", "InLine without local residual", "softmax", "InLine")
    linear, plain, softmax, inline = (max((tops[one.label] for one in _of(studies, kind)), default=None) for kind in kinds)
    if linear is None or softmax is None or inline is None or plain is None:
        why = "that needs softmax, linear, and InLine with and without local residual."
        return Finding("Accuracy", says, paper, "cannot tell", why)
    claims = {
        "softmax above linear": (softmax, linear),
        "InLine without local residual above linear": (plain, linear),
        "InLine above InLine without local residual": (inline, plain),
        "InLine above softmax": (inline, softmax),
    }
    held = [words for words, (more, less) in claims.items() if _beyond(more, less, pictures)]
    failed = [words for words, (more, less) in claims.items() if _beyond(less, more, pictures)]
    open_ = [words for words in claims if words not in (*held, *failed)]
    verdict: Verdict = (
        "agrees" if len(held) == len(claims) else "partly agrees" if held else "does not agree" if failed else "cannot tell"
    )
    said = [("found", held), ("the other way round", failed), ("within two standard errors", open_)]
    return Finding(
        "Accuracy", says, paper, verdict, "; ".join(f"{what}: {_list(words)}" for what, words in said if words) + "."
    )


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


def _masked(studies: Sequence[Study]) -> list[tuple[Study, Masked]]:
    return [(study, study.masking) for study in studies if study.masking is not None]


def _beyond(more: float, less: float, pictures: int) -> bool:
    """Whether one accuracy, in percent, is above another by more than two standard errors of their difference."""
    error = sqrt(sum(share / 100 * (1 - share / 100) for share in (more, less)) / pictures) * 100
    return more - less > 2 * error
