"""A trial trains one model with one seed, analyses it, or times all candidates. Its key identifies the computation."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

from ..training.checkpoint import write_atomically
from ..training.config import RESUMABLE_FIELDS, Recipe
from ..training.recipe import flat
from .candidate import Candidate
from .code_hash import ANALYSIS_CODE, TRAINING_CODE, code_hash

Kind = Literal["train", "analyze", "time"]
Status = Literal["done", "diverged", "failed"]


@dataclass(frozen=True)
class Trial:
    """A computation. An analysis needs the model that its training trial leaves; other trials are independent."""

    kind: Kind
    candidate: Candidate | None
    """None for a timing, which is of all candidates together."""
    recipe: Recipe
    data: str
    """A hash of the dataset: names and counts of the images."""
    training_code_hash: str = field(default_factory=lambda: code_hash(TRAINING_CODE))
    analysis_code_hash: str = field(default_factory=lambda: code_hash(ANALYSIS_CODE))
    """Both hashes are taken when the trial is planned: the files may change before a worker process starts."""

    @property
    def seed(self) -> int:
        """Seed of initial weights, order of images and augmentation."""
        return self.recipe.run.seed

    @property
    def recipe_hash(self) -> str:
        """Hash of the recipe and the dataset, without the seed and without where the files are."""
        excluded = {*RESUMABLE_FIELDS, "run.seed"}
        fields = {name: value for name, value in flat(self.recipe).items() if name not in excluded}
        return _hash({"recipe": fields, "data": self.data})

    @property
    def key(self) -> str:
        """The name of its record: equal for equal computations by equal code."""
        return _hash({"kind": self.kind, "recipe": self.recipe_hash, "seed": self.seed, "code": self.code})

    @property
    def code(self) -> str:
        """Hash of the code that computes it."""
        return self.training_code_hash if self.kind == "train" else f"{self.training_code_hash}-{self.analysis_code_hash}"

    @property
    def training(self) -> "Trial":
        """The trial that trains the model which this one analyses."""
        return replace(self, kind="train")


@dataclass(frozen=True)
class Record:
    """The outcome of a trial, with what is needed to compare it with another run."""

    kind: Kind
    candidate: Mapping[str, Any] | None
    seed: int
    status: Status
    metrics: Mapping[str, Any]
    """Metric -> value; of a timing, candidate -> metric -> value."""
    seconds: float
    key: str
    recipe_hash: str
    code: str
    environment: Mapping[str, Any]
    """Machine and package versions."""
    error: str = ""

    def write(self, folder: Path) -> None:
        """Write it to the folder, atomically."""
        write_atomically(folder / f"{self.key}.json", (json.dumps(asdict(self), indent=1) + "\n").encode())


OLD_KINDS = {"look": "analyze", "race": "time"}
OLD_RECORD_FIELDS = {"contender": "candidate"}
"""Kinds and fields as version 0.1.0 wrote them -> their names now."""


def parse_record(row: Mapping[str, Any]) -> Record:
    """A record from its JSON object; those of 0.1.0 too."""
    renamed = {OLD_RECORD_FIELDS.get(name, name): value for name, value in row.items()}
    return Record(**{**renamed, "kind": OLD_KINDS.get(row["kind"], row["kind"])})


def load_record(folder: Path, key: str) -> Record | None:
    """The record of a trial; None if there is none or it cannot be read."""
    try:
        found = parse_record(json.loads((folder / f"{key}.json").read_text()))
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return found if found.key == key else None


def load_finished_record(folder: Path, key: str) -> Record | None:
    """The same, but None for a failed trial, which is to be run again."""
    found = load_record(folder, key)
    return None if found is None or found.status == "failed" else found


def _hash(table: Mapping[str, Any]) -> str:
    return blake2b(json.dumps(table, sort_keys=True, default=str).encode(), digest_size=10).hexdigest()
