"""`inline bench`: how fast, compared with what one would use instead."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .arguments import prepare_folder, usable_device
from .progress import track


@dataclass(frozen=True)
class BenchOptions:
    """What every bench can be told."""

    out: Path = Path("bench")
    """Folder for the results: JSON, a table in Markdown, a picture."""
    quick: bool = False
    """A few sizes instead of all."""
    json: bool = False
    """Print the JSON instead of the table."""
    device: str = "cpu"
    """Where to measure."""
    seconds: float = 2.0
    """How long to time the contenders of one size, forward and again forward + backward."""
    seed: int = 0
    """Seed of weights and inputs."""


@dataclass(frozen=True)
class BenchLayer(BenchOptions):
    """Time the attention layer against softmax, textbook InLine and plain matrix products."""

    def run(self) -> None:
        """Measure, write, print."""
        from ..bench import report
        from ..bench.layer import LAYER_CASES, QUICK_CASES, measure_layers

        _run(self, "layer", QUICK_CASES if self.quick else LAYER_CASES, measure_layers, report)


@dataclass(frozen=True)
class BenchModels(BenchOptions):
    """Time whole models, forward and training, against timm's DeiT-T and Swin-T."""

    seconds: float = 15.0
    """How long to time the two contenders of one size, forward and again forward + backward."""

    def run(self) -> None:
        """Measure, write, print."""
        from ..bench import models

        _run(self, "models", models.QUICK_MODEL_CASES if self.quick else models.MODEL_CASES, models.measure_models, models)


def _run(options: BenchOptions, name: str, cases: Sequence[Any], measure: Callable[..., Any], report: Any) -> None:
    from ..bench.machine import machine

    if not 0 < options.seconds < float("inf"):
        raise ValueError(f"--seconds must be positive, got {options.seconds}")
    device = usable_device(options.device)
    prepare_folder(options.out)
    measured = measure(cases, seconds=options.seconds, device=device, seed=options.seed)
    records = list(track(measured, "sizes", len(cases), Console(stderr=True)))
    table, said, where = report.rows(records), report.sentences(records), machine(device)
    result = {"bench": name, "machine": where, "seconds": options.seconds, "seed": options.seed, "records": records}
    text = json.dumps(result, indent=1)
    (options.out / f"{name}.json").write_text(text + "\n")
    (options.out / f"{name}.md").write_text(_markdown(name, where, report.LEGEND, report.COLUMNS, table, said))
    report.draw(records, options.out / f"{name}.png")
    if options.json:
        print(text)
        return
    console = Console()
    shown = Table(caption=report.LEGEND, caption_justify="left", box=SIMPLE_HEAD, padding=0)
    for column in report.COLUMNS:
        shown.add_column(column, justify="right")
    for row in table:
        shown.add_row(*row)
    console.print(shown)
    for sentence in said:
        console.print(sentence, highlight=False, soft_wrap=True)
    console.print(f"Written: {options.out}/{name}.json, {name}.md, {name}.png", highlight=False, soft_wrap=True)


def _markdown(
    name: str, machine: dict[str, str | int], legend: str, columns: list[str], table: list[list[str]], sentences: list[str]
) -> str:
    lines = [
        f"# inline bench {name}",
        "",
        "Measured on " + ", ".join(f"{key} {value}" for key, value in machine.items()) + ".",
        "",
        legend,
        "",
    ]
    lines += [f"| {' | '.join(row)} |" for row in (columns, ["---:"] * len(columns), *table)]
    return "\n".join([*lines, "", "```text", *sentences, "```", ""])
