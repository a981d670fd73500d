"""The folder of a run: recipe, environment, metrics as JSON lines and CSV, best weights, checkpoints; and who writes them."""

import csv
import io
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from torch import nn

from ..data.config import DataConfig
from ..data.sources import Source, before_splits
from ..lite.decode import first_line
from ..lite.json_file import read_object
from ..lite.transform import TRANSFORM_FIELDS
from ..lite.versions import versions
from .checkpoint import save_checkpoint, to_bytes, write_atomically
from .config import RUNS, Recipe
from .distributed import gather, gather_optimizer
from .recipe import parse, read_toml, to_toml
from .task import Task

RENAMED_KEYS = {"pictures": "images", "pictures_per_second": "images_per_second"}
"""Keys of JSON files that the first version wrote, and what they are called now."""
DATA = "data.json"
"""Which images a run is trained and scored on. Runs by earlier versions do not have it."""
MASK_FIELDS = ("images", "masks", "ignore", "class_name")
"""Fields of `DataConfig` about folders of masks, which other images of a run are read by, too."""


def upgrade_names(record: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with the keys of this version, whichever version wrote it."""
    return {RENAMED_KEYS.get(name, name): value for name, value in record.items()}


@dataclass(frozen=True)
class RunFolder:
    """Paths of what is in the folder, and how it is written: each file whole or not at all."""

    path: Path

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints are."""
        return self.path / "checkpoints"

    @property
    def best(self) -> Path:
        """The weights that scored best."""
        return self.path / "best.safetensors"

    def begin(self, recipe: Recipe, environment: Mapping[str, Any], source: Source) -> None:
        """Write what the run is."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.record_data(source)  # first: a folder with a recipe and without this is one of an earlier version
        self.write("recipe.toml", to_toml(recipe))
        self.write("environment.json", json.dumps(environment, indent=1) + "\n")

    def record_data(self, source: Source) -> None:
        """Write which images the run is trained and scored on."""
        self.write(DATA, json.dumps({"training_images": len(source.train), **source.scored}, indent=1) + "\n")

    @property
    def has_recipe(self) -> bool:
        """Whether it is the folder of a run."""
        return (self.path / "recipe.toml").is_file()

    def recipe(self) -> Recipe:
        """What the run computes."""
        path = self.path / "recipe.toml"
        if not self.has_recipe:
            raise ValueError(f"{self.path} is not the folder of a run: it has no recipe.toml")
        recipe = parse(read_toml(path), str(path), written_by_run=True)
        if recipe.task.name == "classify" and not (self.path / DATA).is_file():
            recipe = replace(recipe, data=before_splits(recipe.data))
        return recipe

    def write(self, name: str, text: str) -> None:
        """A text file."""
        write_atomically(self.path / name, text.encode())

    def append(self, row: Mapping[str, Any]) -> None:
        """One more line of metrics."""
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")

    def rows(self) -> list[dict[str, Any]]:
        """All lines of metrics, without one that was cut off in writing."""
        path = self.path / "metrics.jsonl"
        lines = path.read_bytes().splitlines() if path.is_file() else []
        rows = []
        for number, line in enumerate(lines, 1):
            try:
                row = upgrade_names(json.loads(line))
                if type(row["step"]) is not int or not isinstance(row["kind"], str):
                    raise ValueError("step and kind must be a whole number and a word")
            except (ValueError, KeyError, AttributeError, RecursionError) as error:
                if number == len(lines):
                    break
                raise ValueError(f"{path}, line {number}, is no row of metrics: {first_line(error)}") from error
            rows.append(row)
        return rows

    def record(self, name: str) -> dict[str, Any]:
        """A JSON file of the run, such as 'result', with the keys of this version; empty if it is not there."""
        path = self.path / f"{name}.json"
        return upgrade_names(read_object(path)) if path.is_file() else {}

    def rewind(self, step: int) -> None:
        """Remove the metrics of steps that will be done again."""
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


def new_run_folder(recipe: Recipe) -> Path:
    """A folder under runs/ that holds no run yet, named after the images and the model."""
    name = f"{Path(recipe.data.source).name or 'data'}-{recipe.model.name}"
    folders = (RUNS / (name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(folder for folder in folders if not (folder / "recipe.toml").exists())


def environment(device: str, processes: int) -> dict[str, Any]:
    """Versions and machine."""
    return {
        **versions("inline-attention", "torch", "timm", "accelerate", "numpy", "pillow"),
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "device": device,
        "processes": processes,
    }


@dataclass(frozen=True)
class RunWriter:
    """Writes metrics, checkpoints and the best weights during a run.

    Every process calls it, as gathering takes all of them; the main process writes.
    """

    folder: RunFolder
    task: Task
    classes: tuple[str, ...]
    data: Mapping[str, Any]
    """Fingerprint of the images, which a resumed run compares."""
    scored: Mapping[str, Any]
    """Which images the weights are scored on."""
    accelerator: Accelerator

    def log(self, row: dict[str, Any]) -> None:
        """Write a line of metrics, also for TensorBoard."""
        if self.accelerator.is_main_process:
            self.folder.append(row)
            if row["kind"] == "evaluation":
                self.folder.write_table()
        numbers = {f"{row['kind']}/{name}": value for name, value in row.items() if isinstance(value, float)}
        self.accelerator.log(numbers, step=row["step"])

    def save(self, model: nn.Module, optimizer: Any, average: nn.Module | None, progress: Any) -> None:
        """Write a checkpoint."""
        weights, moments = gather(model), gather_optimizer(model, optimizer)
        if self.accelerator.is_main_process:
            state = {
                "step": progress.step,
                "progress": asdict(progress),
                "optimizer": {"plain": moments.plain, "groups": moments.groups},
                "scaler": None if self.accelerator.scaler is None else self.accelerator.scaler.state_dict(),
                "data": self.data,
            }
            parts = {"model": to_bytes(weights, self.metadata()), "optimizer": to_bytes(moments.tensors)}
            if average is not None:
                parts["ema"] = to_bytes(average.state_dict(), self.metadata())
            save_checkpoint(self.folder.checkpoints, state, parts)
        self.accelerator.wait_for_everyone()

    def save_best(self, model: nn.Module, score: dict[str, Any]) -> None:
        """Write the weights that scored best, with their score, and the images that it is of, as metadata."""
        weights = gather(model)
        if self.accelerator.is_main_process:
            write_atomically(self.folder.best, to_bytes(weights, {**self.metadata(), **score, **self.scored}))

    def metadata(self) -> dict[str, Any]:
        """Metadata of a file of weights: all that is needed to use it without the run."""
        recipe = self.task.recipe
        name, arguments = self.task.model_spec(len(self.classes))
        data = {key: getattr(recipe.data, key) for key in TRANSFORM_FIELDS}
        layout = {key: getattr(recipe.data, key) for key in MASK_FIELDS}
        data |= {key: value for key, value in layout.items() if value != getattr(DataConfig, key)}
        task = {} if recipe.task.name == "classify" else {"task": asdict(recipe.task)}
        return {"model": name, "arguments": arguments, "classes": self.classes, "data": data, **task}

    def last_good(self) -> str:
        """Where the newest checkpoint is, for a message."""
        found = sorted(self.folder.checkpoints.glob("step-*"))
        return f"the last good checkpoint is {found[-1]}" if found else "there is no checkpoint before it"
