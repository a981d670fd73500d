"""Output of `inline reproduce`: the records as results, the page and its figures, the verdicts."""

import io
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .arguments import prepare_folder
from .console import table_console

if TYPE_CHECKING:
    from ..data.config import DataConfig
    from ..evidence.claims import Claim
    from ..evidence.results import Numbers, Results
    from ..evidence.scale import Scale
    from ..evidence.statistics import Estimate
    from ..evidence.trial_plan import TrialPlan


def collect_results(
    claims: list["Claim"], scale: "Scale", data: "DataConfig", seeds: int, plan: "TrialPlan", trials: Path
) -> "Results":
    """The records of all trials that were run. Two candidates may share one computation; each gets its own record."""
    from ..data.sources import open_source
    from ..evidence.results import Results
    from ..evidence.trial import load_record

    records = []
    for trial in plan.trials:
        record = load_record(trials, trial.key)
        if record is not None:
            records.append(replace(record, candidate=None if trial.candidate is None else asdict(trial.candidate)))
    source = open_source(data)
    size = plan.trials[0].recipe.data.size
    facts = {
        "name": Path(data.source).name, "train": len(source.train), "val": len(source.val), "classes": len(source.classes),
        "height": size[0], "width": size[1], "split": source.split_text,
    }  # fmt: skip
    planned = len({trial.key for trial in plan.trials})
    return Results(scale.name, scale.description, facts, seeds, [claim.name for claim in claims], planned, records)


def report_results(results: "Results", out: Path, *, as_json: bool, wrote_json: bool) -> None:
    """Write the page and its figures into `out`; print the verdicts.

    Args:
        wrote_json: results.json was written too, and is listed among the files.
    """
    from ..evidence.results import Numbers
    from ..evidence.results_page import page
    from ..training.checkpoint import write_atomically

    numbers = Numbers.of(results)
    images = _draw(results, numbers, out)
    write_atomically(out / "results.md", page(results, images).encode())
    if as_json:
        print(json.dumps({claim.name: _claim_numbers(claim, numbers) for claim in results.chosen}, indent=1))
        return
    _print_summary(results, out)
    written = ", ".join([*(["results.json"] if wrote_json else []), "results.md", *images.values()])
    Console().print(f"Written into {out}: {written}", highlight=False, soft_wrap=True, markup=False)


def _draw(results: "Results", numbers: "Numbers", out: Path) -> dict[str, str]:
    """Write the figure of each claim that has one; return their paths in `out`, by claim."""
    from ..evidence.figures import draw
    from ..training.checkpoint import write_atomically

    images = {}
    for claim in results.chosen:
        figure = draw(claim, numbers)
        if figure is not None:
            images[claim.name] = f"images/results_{claim.name}.png"
            prepare_folder(out / "images")
            drawn = io.BytesIO()
            figure.savefig(drawn, dpi=130)
            write_atomically(out / images[claim.name], drawn.getvalue())
    return images


def _claim_numbers(claim: "Claim", numbers: "Numbers") -> dict[str, Any]:
    checks = [
        {"says": c.statement, "ours": c.ours, "verdict": numbers.verdict_of(c), "difference": _interval(numbers.difference(c))}
        for c in claim.checks
    ]
    return {"verdict": numbers.claim_verdict(claim), "checks": checks}


def _interval(found: "Estimate | None") -> dict[str, float | int | None] | None:
    if found is None:
        return None
    ends = {"low": found.low, "high": found.high} if found.count > 1 else {"low": None, "high": None}
    return {"mean": found.mean, **ends, "seeds": found.count}


def _print_summary(results: "Results", out: Path) -> None:
    from ..evidence.results_page import SUMMARY, summary

    console = table_console()
    table = Table(box=SIMPLE_HEAD, padding=(0, 1))
    for column in SUMMARY:
        table.add_column(column)
    for row in summary(results):
        table.add_row(*row)
    console.print(table)
    done = len({record.key for record in results.records})
    if done < results.planned:
        console.print(f"{done} of {results.planned} trials were run so far.", markup=False, highlight=False)
    failed = [record for record in results.records if record.status == "failed"]
    if failed:
        console.print(f"{len(failed)} trials failed: see {out}/results.md; the same command tries them again.", markup=False)
