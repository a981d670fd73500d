"""A cell: one model trained with one seed, or looked at, or timed. Its key says what it computes, its record what came out."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

from ..training.checkpoint import write_whole
from ..training.recipe import CARRIED_OUT, Recipe, flat
from .code import DECIDING, LOOKING, code_version
from .contender import Contender

Kind = Literal["train", "look", "race"]
Status = Literal["done", "diverged", "failed"]


@dataclass(frozen=True)
class Cell:
    """What is to be computed. Cells do not need each other, but for the models that are looked at or timed."""

    kind: Kind
    contender: Contender | None
    """None for a race, which all run together."""
    recipe: Recipe
    """With the seed."""
    data: str
    """A hash of the pictures' names and numbers."""
    trainer: str = field(default_factory=lambda: code_version(DECIDING))
    looker: str = field(default_factory=lambda: code_version(LOOKING))
    """Of the code as it was when the cell was planned, whatever a process that begins later finds on the disk."""

    @property
    def seed(self) -> int:
        """Of weights, order and augmentation."""
        return self.recipe.run.seed

    @property
    def recipe_hash(self) -> str:
        """Of what the recipe decides, wherever its pictures are and whatever the seed."""
        left_out = {*CARRIED_OUT, "run.seed"}
        fields = {name: value for name, value in flat(self.recipe).items() if name not in left_out}
        return _hash({"recipe": fields, "data": self.data})

    @property
    def key(self) -> str:
        """The same for the same computation by the same code."""
        return _hash({"kind": self.kind, "recipe": self.recipe_hash, "seed": self.seed, "code": self.code})

    @property
    def code(self) -> str:
        """The version of the code that computes it."""
        return self.trainer if self.kind == "train" else f"{self.trainer}-{self.looker}"

    @property
    def training(self) -> "Cell":
        """The cell that trains the model which this one looks at."""
        return replace(self, kind="train")


@dataclass(frozen=True)
class Record:
    """What came out of a cell, and all that is needed to compare it with another run's."""

    kind: Kind
    contender: Mapping[str, Any] | None
    seed: int
    status: Status
    metrics: Mapping[str, Any]
    """By name; of a race, by contender and name."""
    seconds: float
    key: str
    recipe_hash: str
    code: str
    environment: Mapping[str, Any]
    """Versions and machine."""
    error: str = ""

    def write(self, folder: Path) -> None:
        """Keep it, whole or not at all."""
        write_whole(folder / f"{self.key}.json", (json.dumps(asdict(self), indent=1) + "\n").encode())


def load_record(folder: Path, key: str) -> Record | None:
    """The record of a cell, if there is one that can be read."""
    try:
        found = Record(**json.loads((folder / f"{key}.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return found if found.key == key else None


def read_record(folder: Path, key: str) -> Record | None:
    """The same of a cell that need not be run again: those that failed are."""
    found = load_record(folder, key)
    return None if found is None or found.status == "failed" else found


def _hash(table: Mapping[str, Any]) -> str:
    return blake2b(json.dumps(table, sort_keys=True, default=str).encode(), digest_size=10).hexdigest()
