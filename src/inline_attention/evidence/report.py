"""results.md: a page made from the records, and the few lines of it that the README shows."""

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any

from .claims import LOCAL_GAP, NEAR, RATES, Check, Claim, Side
from .contender import Contender
from .results import Numbers, Results, counted
from .scale import IMAGENET
from .statistics import FEWEST, LEVEL, Estimate

SUMMARY = ("claim", "the paper's checks", "verdict", "no gap to softmax + local")


def page(results: Results, pictures: Mapping[str, str]) -> str:
    """The whole page; `pictures` has the file of each claim's figure, by the claim's name."""
    numbers = Numbers.of(results)
    lines = ["# Results", "", *_head(results), "", *table(SUMMARY, summary(results)), ""]
    for claim in results.chosen:
        lines += _section(claim, numbers, pictures.get(claim.name))
    lines += [*_rates(results, numbers), *_incidents(results), *_record(results)]
    return "\n".join(lines).rstrip() + "\n"


def summary(results: Results) -> list[list[str]]:
    """A row for each claim."""
    numbers = Numbers.of(results)
    rows = []
    for claim in results.chosen:
        of_paper = [numbers.judge(check) for check in claim.checks if not check.ours]
        control = [numbers.judge(check) for check in claim.checks if LOCAL_GAP in check.says]
        rows.append([claim.title, counted(of_paper), numbers.judge_claim(claim) or "-", counted(control)])
    return rows


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """In Markdown, words to the left and figures to the right."""
    right = [all(_is_figure(row[place]) for row in rows) for place in range(len(columns))]
    rule = ["---:" if figures else "---" for figures in right]
    return [f"| {' | '.join(row)} |" for row in (columns, rule, *rows)]


def _is_figure(text: str) -> bool:
    return text[:1] in "-+0123456789" and not text.endswith(("hold", "holds", "told", "not"))


def _head(results: Results) -> list[str]:
    data, there = results.data, len({record.key for record in results.records})
    smaller = "of models with 6 to 30 million parameters; what is measured here is far smaller"
    told = "of models trained for 300 epochs" if results.scale == IMAGENET.name else smaller
    rated = "The rate is checked at half and at twice its value, see [below](#learning-rates)."
    failed = sum(record.status == "failed" for record in results.records)
    return [
        f"Made by `inline reproduce` from its records, not written by hand. The paper's numbers are of ImageNet and {told}. "
        "The two stand in columns of their own.",
        "",
        f"- **Scale** `{results.scale}`: {results.says}. Accuracy is of the held-out pictures after the last step.",
        f"- **Pictures**: {data['name']}, {data['train']:,} to learn from and {data['val']:,} held out, "
        f"{data['height']} x {data['width']}, {data['classes']} classes.",
        f"- **Seeds**: {results.seeds}, the same for all contenders. Intervals are Student's t at {LEVEL:.0%} over seeds, with "
        "the same held-out pictures; differences are taken seed by seed.",
        "- **Verdicts** are computed. A check holds if the whole interval of its difference is on the side that it names, does "
        f"not hold if all of it is on the other, and cannot be told otherwise, or with fewer than {FEWEST} seeds. 'No gap' is "
        f"at most {-NEAR:g} point below. A claim holds if all its checks do, and does not if one does not; of so many checks "
        f"at {LEVEL:.0%}, some are wrong by chance.",
        "- **Settings** are the same for all attentions: pictures and their order, augmentation, AdamW, learning rate, steps, "
        "the rule that draws first weights. " + (rated if _rates(results, Numbers.of(results)) else ""),
        "- **Controls** are checks that the paper does not have. The last column below counts the most telling one: whether "
        f"InLine is within {-NEAR:g} point of softmax attention where both have the local residual.",
        f"- **Cells**: {there} of {results.wanted} were run, of which {failed or 'none'} failed.",
    ]


def _section(claim: Claim, numbers: Numbers, picture: str | None) -> list[str]:
    whole = numbers.judge_claim(claim)
    lines = [f"## {claim.title}", "", f"The paper: {claim.paper}" + (f" **Here: {whole}.**" if whole else ""), ""]
    if picture:
        lines += [f"![{claim.title}]({picture})", ""]
    lines += [*table(*_contenders(claim, numbers)), "", *table(*_checks(claim, numbers)), ""]
    return lines


def _contenders(claim: Claim, numbers: Numbers) -> tuple[list[str], list[list[str]]]:
    metrics = list(dict.fromkeys(side.metric for side in claim.sides))
    if metrics == ["top1"]:
        reported = _reported(claim)
        rows = [
            [
                claim.name_of(contender),
                spread(numbers.mean(Side(contender))),
                _seeds(numbers, Side(contender)),
                _number(reported.get(contender), 1),
                _cost(numbers, contender, "parameters", 1e3, "k"),
                _cost(numbers, contender, "multiply_adds", 1e6, "M", digits=2),
                _cost(numbers, contender, "steps", 1, ""),
            ]
            for contender in claim.contenders
        ]
        return ["contender", "top-1 % here", "seeds", "paper, ImageNet", "parameters", "multiply-adds", "steps"], rows
    accuracy = ["top1"] if "top1" not in metrics else []
    columns = ["contender", *(METRICS.get(metric, metric) for metric in (*accuracy, *metrics))]
    rows = [
        [claim.name_of(contender), *(spread(numbers.mean(Side(contender, metric))) for metric in (*accuracy, *metrics))]
        for contender in claim.contenders
    ]
    return columns, rows


METRICS = {
    "top1": "top-1 %",
    "confused": "confused pairs %",
    "near": "weight on own 3 x 3 %, layer 1",
    "even": "evenly %",
    "own": "top-1 %, own 3 x 3 hidden",
    "random": "top-1 %, 9 at random hidden",
    **{f"speed_{factor}x": f"speed at {factor}x side" for factor in (1, 2, 4, 8)},
}
"""What columns call them."""


def _reported(claim: Claim) -> dict[Contender, float]:
    found = {}
    for check in claim.checks:
        for side, value in zip((check.left, check.right), check.reported, strict=True):
            if value is not None:
                found[side.contender] = value
    return found


def _checks(claim: Claim, numbers: Numbers) -> tuple[list[str], list[list[str]]]:
    rows = []
    for check in claim.checks:
        left, right = check.reported
        reported = "-" if left is None or right is None else f"{left - right:+.1f}"
        rows.append(
            [
                ("*control:* " if check.ours else "") + check.says,
                interval(numbers.difference(check)),
                f"> {check.beyond:g}",
                numbers.judge(check),
                reported,
            ]
        )
    return ["check", "difference here, interval", "needed", "verdict", "paper's difference"], rows


def spread(found: Estimate | None) -> str:
    """A mean and how far its interval reaches."""
    if found is None:
        return "-"
    return f"{found.mean:.2f}" + ("" if isnan(found.half) else f" ± {found.half:.2f}")


def interval(found: Estimate | None) -> str:
    """A difference and the ends of its interval."""
    if found is None:
        return "-"
    return f"{found.mean:+.2f}" + ("" if isnan(found.half) else f" [{found.low:+.2f}, {found.high:+.2f}]")


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _seeds(numbers: Numbers, side: Side) -> str:
    found = numbers.mean(side)
    return "0" if found is None else str(found.count)


def _cost(numbers: Numbers, contender: Contender, metric: str, unit: float, letter: str, digits: int = 0) -> str:
    value: Any = numbers.details.get(contender, {}).get(metric)
    return "-" if value is None else f"{value / unit:,.{digits}f}{letter}"


def _rates(results: Results, numbers: Numbers) -> list[str]:
    """Whether a contender lost for want of tuning."""
    rows, better = [], []
    for contender in dict.fromkeys(one for claim in results.chosen for one in claim.rated):
        found = numbers.rates(contender)
        if len(found) < 2:
            continue
        best = max(found, key=lambda rate: found[rate])
        edge = ", the edge" if best in RATES else ""
        rows.append([contender.label, *(_number(found.get(rate), 2) for rate in (0.5, 1.0, 2.0)), f"{best:g}x{edge}"])
        if 1.0 in found and found[best] - found[1.0] > -NEAR:
            better.append(f"{contender.label} ({best:g}x, {found[best] - found[1.0]:+.1f})")
    if not rows:
        return []
    checks = [check for claim in results.chosen for check in claim.checks if check.left.metric == "top1"]
    again = [check for check in checks if numbers.at_best_rates(check) is not None]
    turned = [said for check in again if (said := _turned(check, numbers))]
    said = (
        f"More than a point better at another rate: {', '.join(better)}."
        if better
        else "None gains more than a point by another rate."
    )
    of_all = (
        f"With the best of its three rates for each side, {len(again)} of {len(checks)} checks of accuracy can be seen again"
    )
    outcome = (
        f"{of_all}, with seed 0. On the other side of their bound are then: {'; '.join(turned)}."
        if turned
        else f"{of_all}, with seed 0; none changes sides."
    )
    return [
        "## Learning rates", "", "Top-1 % with seed 0, at half, once and twice the common learning rate.", "",
        *table(["contender", "0.5x", "1x", "2x", "best"], rows), "", said, outcome, "",
    ]  # fmt: skip


def _turned(check: Check, numbers: Numbers) -> str:
    """A check whose difference is on another side of its bound when rates are the best ones."""
    best = numbers.at_best_rates(check)
    assert best is not None
    before = numbers.rates(check.left.contender)[1.0] - numbers.rates(check.right.contender)[1.0]
    return f"{check.says} ({before:+.2f} to {best:+.2f})" if (before > check.beyond) != (best > check.beyond) else ""


def _incidents(results: Results) -> list[str]:
    told = []
    for record in results.records:
        if record.status != "done":
            label = "a race" if record.contender is None else Contender(**record.contender).label
            told.append(f"- {label}, seed {record.seed}: {record.status}. {record.error}")
    if not told:
        return []
    note = "A run that diverged counts as guessing; one that failed is in no number."
    return ["## Cells that did not end well", "", note, "", *told, ""]


def _record(results: Results) -> list[str]:
    environments = list({str(record.environment): record.environment for record in results.records}.values())
    seconds = sum({record.key: record.seconds for record in results.records}.values())
    spent = f"{seconds / 3600:.1f} hours" if seconds > 3600 else f"{seconds / 60:.0f} minutes"
    codes = ", ".join(sorted({record.code for record in results.records}))
    lines = [
        "## Record",
        "",
        f"{len({record.key for record in results.records})} cells, {spent} of work, code `{codes}`.",
        "",
    ]
    lines += [f"- {', '.join(f'{key} {value}' for key, value in one.items())}" for one in environments if one]
    return [*lines, "", "Every record has its recipe's hash, seed, code, seconds and machine."]
