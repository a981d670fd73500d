"""The folder of a run: recipe, environment, metrics as JSON lines and CSV, weights, checkpoints, pictures."""

import csv
import io
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from . import checkpoint, recipe
from .recipe import Recipe


@dataclass(frozen=True)
class RunFolder:
    """Names of what is in it, and how it is written: whole or not at all."""

    path: Path

    @property
    def checkpoints(self) -> Path:
        """What the run goes on from."""
        return self.path / "checkpoints"

    @property
    def best(self) -> Path:
        """The weights that scored best."""
        return self.path / "best.safetensors"

    def begin(self, used: Recipe, environment: Mapping[str, Any]) -> None:
        """Write what the run is."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.write("recipe.toml", recipe.to_toml(used))
        self.write("environment.json", json.dumps(environment, indent=1) + "\n")

    def recipe(self) -> Recipe:
        """What the run computes."""
        path = self.path / "recipe.toml"
        if not path.is_file():
            raise ValueError(f"{self.path} is not the folder of a run: it has no recipe.toml")
        return recipe.parse(path.read_text(), str(path))

    def write(self, name: str, text: str) -> None:
        """A file of text."""
        checkpoint.write_whole(self.path / name, text.encode())

    def append(self, row: Mapping[str, Any]) -> None:
        """One more line of metrics."""
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")

    def rows(self) -> list[dict[str, Any]]:
        """All lines of metrics; one that was cut off in writing is not there."""
        path = self.path / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.is_file() else []
        found = []
        for line in lines:
            try:
                found.append(json.loads(line))
            except ValueError:
                break
        return found

    def rewind(self, step: int) -> None:
        """Forget the metrics of steps that will be done again."""
        for left in self.path.glob(".*.tmp"):  # of a process that was killed while writing
            left.unlink(missing_ok=True)
        kept = [row for row in self.rows() if row["step"] <= step]
        self.write("metrics.jsonl", "".join(json.dumps(row) + "\n" for row in kept))
        self.write_table()

    def write_table(self) -> None:
        """The evaluations as CSV, a line each."""
        rows = [row for row in self.rows() if row["kind"] == "evaluation"]
        columns = [name for name in (rows[0] if rows else ()) if name != "kind"]
        text = io.StringIO()
        table = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
        self.write("metrics.csv", text.getvalue())


def environment(device: str, processes: int) -> dict[str, Any]:
    """Versions and machine."""
    packages = ("inline-attention", "torch", "timm", "accelerate", "numpy", "pillow")
    return {
        **{name: version(name) for name in packages},
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "device": device,
        "processes": processes,
    }
