"""What `inline linearize` tells in the end."""

import json
import shlex
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .report import number

IN_WORDS = {"new": "new matched", "all": "all matched", "distil": "distilled"}


def taught_in(record: dict[str, Any], teacher: Path | None) -> dict[str, Any]:
    """Seconds of all phases; and, where the teacher's run tells its own, their share of these."""
    seconds = sum(phase["seconds"] for phase in record["phases"])
    path = None if teacher is None else teacher / "result.json"
    if path is None or not path.is_file():
        return {"seconds": seconds}
    before = json.loads(path.read_text()).get("seconds")
    if before is None:
        return {"seconds": seconds}
    return {"seconds": seconds, "teacher_seconds": before, "share_of_teacher_seconds": seconds / before}


def print_record(record: dict[str, Any], whole: dict[str, Any], out: Path, drawn: Path) -> None:
    """A line for the teacher, for the student that was only swapped, and for each phase."""
    console = Console()
    table = Table(box=SIMPLE_HEAD, padding=(0, 1))
    table.add_column("held out")
    columns = ["agreement %", "attention error", "steps", "seconds"]
    if record["labelled"]:
        columns.insert(0, "top-1 %")
    for column in columns:
        table.add_column(column, justify="right")
    rows = [("teacher", record["teacher"]), ("swap only", record["swapped"])]
    rows += [(IN_WORDS[phase["phase"]], phase) for phase in record["phases"]]
    for name, found in rows:
        top1 = [number(found["top1"])] if record["labelled"] else []
        taken = [f"{found['steps']:,}", f"{found['seconds']:,.0f}"] if "steps" in found else ["", ""]
        table.add_row(name, *top1, number(found["agreement"]), number(found["error"], 3), *taken)
    console.print(table)
    last = record["phases"][-1]
    said = []
    if record["labelled"] and record["teacher"]["top1"]:
        said.append(f"{100 * last['top1'] / record['teacher']['top1']:.1f} % of the teacher's accuracy kept")
    if "share_of_teacher_seconds" in whole:
        said.append(f"in {100 * whole['share_of_teacher_seconds']:.0f} % of the time that its training took")
    if said:
        console.print(", ".join(said), highlight=False, soft_wrap=True)
    console.print(f"Written: {out}/best.safetensors, linearize.json, {drawn.name}", highlight=False, soft_wrap=True)
    name = shlex.quote(str(out))
    use = f"Next: inline eval {name}, inline predict PICTURES --model {name}, inline export {name}"
    if not record["classes"]:
        use = f"Use it: make {record['model']} anew, swap it with {record['swap']}, and load best.safetensors into it"
    console.print(use, highlight=False, soft_wrap=True)
