"""Output of `inline linearize`: the phases as a table, the choice of the blocks that keep their attention, the dry run."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ..lite.json_file import read_object
from .console import table_console
from .train_report import number


def training_times(record: dict[str, Any], teacher: Path | None) -> dict[str, Any]:
    """Seconds of all phases; and their share of the seconds that the teacher's run records, if it does."""
    seconds = sum(phase["seconds"] for phase in record["phases"])
    path = None if teacher is None else teacher / "result.json"
    if path is None or not path.is_file():
        return {"seconds": seconds}
    before = read_object(path).get("seconds")
    if not isinstance(before, int | float) or before <= 0:
        return {"seconds": seconds}
    return {"seconds": seconds, "teacher_seconds": before, "share_of_teacher_seconds": seconds / before}


def print_record(record: dict[str, Any], times: dict[str, Any], out: Path, drawn: Sequence[Path]) -> None:
    """Print which blocks are kept, and a row for the teacher, for the copy before it was trained, and for each phase."""
    from ..training.distillation import PHASES

    console = table_console()
    if "keep" in record:
        print_kept(record["keep"], console)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1))
    table.add_column("validation")
    columns = ["agreement %", "attention error", "steps", "seconds"]
    if record["labelled"]:
        columns.insert(0, "top-1 %")
    for column in columns:
        table.add_column(column, justify="right")
    rows = [("teacher", record["teacher"]), (PHASES["swapped"].row, record["swapped"])]
    rows += [(PHASES[phase["phase"]].row, phase) for phase in record["phases"]]
    for name, found in rows:
        top1 = [number(found["top1"])] if record["labelled"] else []
        taken = [f"{found['steps']:,}", f"{found['seconds']:,.0f}"] if "steps" in found else ["", ""]
        table.add_row(name, *top1, number(found["agreement"]), number(found["error"], 3), *taken)
    console.print(table)
    last = record["phases"][-1]
    summary = []
    if record["labelled"] and record["teacher"]["top1"]:
        summary.append(f"{100 * last['top1'] / record['teacher']['top1']:.1f} % of the teacher's accuracy kept")
    if "share_of_teacher_seconds" in times:
        summary.append(f"in {100 * times['share_of_teacher_seconds']:.0f} % of the time that its training took")
    if summary:
        console.print(", ".join(summary), highlight=False, soft_wrap=True)
    names = ", ".join(path.name for path in drawn)
    console.print(f"Written: {out}/best.safetensors, linearize.json, {names}", highlight=False, soft_wrap=True)
    name = shlex.quote(str(out))
    use = f"Next: inline eval {name}, inline predict IMAGES --model {name}, inline export {name}"
    if not record["classes"]:
        use = f"Use it: create {record['model']}, swap it with {record['swap']}, and load best.safetensors into it"
    console.print(use, highlight=False, soft_wrap=True)


def print_kept(keep: Mapping[str, Any], console: Console) -> None:
    """Print the error of each block alone, the error with some of them kept, and what they cost."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1))
    for title in ("block", "name"):
        table.add_column(title)
    table.add_column("error if it alone is linear", justify="right")
    table.add_column("")
    for row in keep["blocks"]:
        table.add_row(str(row["block"]), row["name"], f"{row['error']:.3g}", "kept" if row["kept"] else "")
    console.print(table)
    curve = ", ".join(f"{kept}: {error:.3g}" for kept, error in enumerate(keep["curve"]))
    kept = [row["block"] for row in keep["blocks"] if row["kept"]]
    which = f"Kept: block {', '.join(map(str, kept))}" if kept else "Kept: none"
    console.print(f"Error with so many of the most sensitive kept: {curve}", highlight=False, soft_wrap=True)
    console.print(f"{which}, error {keep['error']:.3g}", highlight=False, soft_wrap=True)
    if "cost" not in keep:
        return
    side = keep["cost"]["side"]
    table = Table(box=SIMPLE_HEAD, padding=(0, 1))
    table.add_column(f"{side} x {side} pixels")
    for title in ("billion multiply-adds", "seconds"):
        table.add_column(title, justify="right")
    table.add_column("")
    for name, row in keep["cost"]["models"].items():
        flops = "" if row["flops"] is None else f"{row['flops'] / 1e9:,.3f}"
        seconds = "" if row["seconds"] is None else f"{row['seconds']:,.3f}"
        table.add_row(name, flops, seconds, row.get("reason", ""))
    console.print(table)


def print_dry_run(found: Mapping[str, Any], swapped: str) -> None:
    """Print what would be done: the steps of each phase, the choice of kept blocks, the report of the swap."""
    console = table_console()
    if "keep" in found:
        print_kept(found["keep"], console)
    steps = ", ".join(f"{phase} {count:,}" for phase, count in found["steps"].items())
    console.print(swapped, highlight=False, soft_wrap=True, markup=False)
    console.print(f"steps: {steps}", highlight=False, soft_wrap=True)
