"""What `inline predict --task segment --stream` reports: a table of the images and of the classes, and a summary as JSON."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from ..lite.text import printable
from .console import table_console
from .train_report import number

AREAS = {"um2": "µm²", "mm2": "mm²", "m2": "m²", "ha": "ha"}
"""Keys of the records, and how these units are written."""
NAMED = 3
"""Classes that are named for each image, the largest first."""
ROWS = 30
"""Images and classes in a table; the summary has all."""

Facts = Mapping[str, Any]


def totals(facts: Sequence[Facts]) -> list[dict[str, Any]]:
    """The classes over all images, in their order: pixels, share, and each area that all images have."""
    entries: list[dict[str, Any]] = []
    valid = sum(entry["pixels"] for fact in facts for entry in fact["classes"])
    for place in range(len(facts[0]["classes"]) if facts else 0):
        own = [fact["classes"][place] for fact in facts]
        pixels = sum(entry["pixels"] for entry in own)
        entry = {"name": own[0]["name"], "pixels": pixels, "share": pixels / max(1, valid)}
        entry |= {unit: sum(each[unit] for each in own) for unit in AREAS if all(unit in each for each in own)}
        entries.append(entry)
    return entries


def write_summary(path: Path, facts: Sequence[Facts], failed: Sequence[Mapping[str, str]]) -> None:
    """Write all records and the totals to a JSON file."""
    from ..large.whole_path import whole_path

    kept = [{name: value for name, value in fact.items() if name not in ("settings", "image_file", "files")} for fact in facts]
    summary = {"images": len(facts), "failed": list(failed), "classes": totals(facts), "results": kept}
    with whole_path(path) as temporary:
        temporary.write_text(json.dumps(summary, indent=1) + "\n")


def print_summary(facts: Sequence[Facts], failed: Sequence[Mapping[str, str]], summary: Path | None) -> None:
    """Print where the maps are, how much each class has, and last what was written: of one map without a summary its files."""
    console = table_console()
    if facts:
        console.print(_image_table(facts[:ROWS], None if summary is None else summary.parent))
        if len(facts) > ROWS:
            console.print(f"and {len(facts) - ROWS:,} more", highlight=False)
        console.print(_class_table(totals(facts)))
    if summary is None and facts:
        console.print(printable(_written(facts[0])), highlight=False, soft_wrap=True, markup=False)
        return
    done = sum("done_before" in fact for fact in facts)
    before = f", {done} of them before" if done else ""
    bad = f", {len(failed)} failed" if failed else ""
    more = "" if summary is None else f": {summary}"
    console.print(printable(f"{len(facts)} done{before}{bad}{more}"), highlight=False, soft_wrap=True, markup=False)


def _written(fact: Facts) -> str:
    """The files of a map."""
    files = [fact["map"], fact["preview"], str(Path(fact["preview"]).with_suffix(".json"))]
    if "polygons" in fact:
        count = fact["polygon_count"]
        files.append(f"{fact['polygons']} ({count:,} {'area' if count == 1 else 'areas'})")
    return f"{'Done before' if 'done_before' in fact else 'Written'}: {', '.join(files)}"


def _image_table(facts: Sequence[Facts], folder: Path | None) -> Table:
    """A row for each image; maps are named as they are in the folder of all."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1))
    table.add_column("map", overflow="fold", min_width=12)
    for column in ("size", "pixel", "s"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("most", no_wrap=True)
    for fact in facts:
        path = Path(fact["map"])
        name = path.relative_to(folder) if folder is not None and path.is_relative_to(folder) else path.name
        size = fact["pixel_size"]
        pixel = "-" if size is None else f"{size['width']:.3g} {size['unit']}"
        seconds = "before" if "done_before" in fact else f"{fact['seconds']:.1f}"
        table.add_row(printable(name), f"{fact['height']:,} x {fact['width']:,}", pixel, seconds, _largest(fact))
    return table


def _largest(fact: Facts) -> str:
    entries = sorted(fact["classes"], key=lambda entry: -entry["pixels"])[:NAMED]
    return ", ".join(f"{printable(entry['name'])} {entry['share']:.0%}" for entry in entries if entry["pixels"])


def _class_table(entries: Sequence[Facts]) -> Table:
    units = [unit for unit in AREAS if entries and unit in entries[0]]
    table = Table(box=SIMPLE_HEAD, padding=(0, 1))
    table.add_column("class", overflow="fold")
    for column in ("%", "pixels", *(AREAS[unit] for unit in units)):
        table.add_column(column, justify="right", no_wrap=True)
    for entry in sorted(entries, key=lambda entry: -entry["pixels"])[:ROWS]:
        areas = (f"{entry[unit]:,.4g}" if entry[unit] < 1000 else f"{entry[unit]:,.0f}" for unit in units)
        table.add_row(printable(entry["name"]), number(100 * entry["share"]), f"{entry['pixels']:,}", *areas)
    return table
