"""`inline bench`: how fast, compared with what one would use instead."""

import json
from dataclasses import dataclass
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .arguments import prepare_folder, usable_device
from .progress import track


@dataclass(frozen=True)
class BenchLayer:
    """Time the attention layer against softmax, textbook InLine and plain matrix products."""

    out: Path = Path("bench")
    """Folder for layer.json, layer.md and layer.png."""
    quick: bool = False
    """Six sizes instead of thirty-five."""
    json: bool = False
    """Print the JSON instead of the table."""
    device: str = "cpu"
    """Where to measure."""
    seconds: float = 2.0
    """How long to time the contenders of one size, forward and again forward + backward."""
    seed: int = 0
    """Seed of weights and inputs."""

    def run(self) -> None:
        """Measure, write, print."""
        from ..bench.layer import LAYER_CASES, QUICK_CASES, measure_layers
        from ..bench.machine import machine
        from ..bench.report import COLUMNS, LEGEND, draw, rows, sentences

        if not 0 < self.seconds < float("inf"):
            raise ValueError(f"--seconds must be positive, got {self.seconds}")
        device = usable_device(self.device)
        prepare_folder(self.out)
        cases = QUICK_CASES if self.quick else LAYER_CASES
        measured = measure_layers(cases, seconds=self.seconds, device=device, seed=self.seed)
        records = list(track(measured, "sizes", len(cases), Console(stderr=True)))
        result = {"bench": "layer", "machine": machine(device), "seconds": self.seconds, "seed": self.seed, "records": records}
        text = json.dumps(result, indent=1)
        (self.out / "layer.json").write_text(text + "\n")
        (self.out / "layer.md").write_text(_markdown(machine(device), LEGEND, COLUMNS, rows(records), sentences(records)))
        draw(records, self.out / "layer.png")
        console = Console()
        if self.json:
            print(text)
            return
        table = Table(caption=LEGEND, caption_justify="left", box=SIMPLE_HEAD, padding=0)
        for column in COLUMNS:
            table.add_column(column, justify="right")
        for row in rows(records):
            table.add_row(*row)
        console.print(table)
        for sentence in sentences(records):
            console.print(sentence, highlight=False, soft_wrap=True)
        console.print(f"Written: {self.out}/layer.json, layer.md, layer.png", highlight=False, soft_wrap=True)


def _markdown(
    machine: dict[str, str | int], legend: str, columns: list[str], table: list[list[str]], sentences: list[str]
) -> str:
    lines = [
        "# inline bench layer",
        "",
        "Measured on " + ", ".join(f"{key} {value}" for key, value in machine.items()) + ".",
        "",
        legend,
        "",
    ]
    lines += [f"| {' | '.join(row)} |" for row in (columns, ["---:"] * len(columns), *table)]
    return "\n".join([*lines, "", "```text", *sentences, "```", ""])
