"""Making a trained model linear as a task: match its attention, then distil it. `deploy/linearize.py` says how."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor, nn
from typing_extensions import override

from ..deploy.linearize import answer, attention_errors, distillation, learn, listening, pair_up
from ..models.swap import swap
from ..training.classify import Classify
from ..training.create import make_model
from ..training.loader import Batch
from ..training.randomness import Purpose, reseed
from ..training.recipe import Recipe
from ..training.source import Source, by_folder, open_unlabelled
from ..training.task import Meter

PHASES = ("new", "all", "distil")
"""What learns: what the swapped attention has more than it had, all of it, the whole model."""

LOOKED_INTO = 512
"""Pictures that attention is compared on in an evaluation."""


@dataclass(frozen=True)
class Teacher:
    """A trained model, with what is needed to make another like it."""

    model: nn.Module
    name: str
    arguments: Mapping[str, Any]
    """Of `make_model`."""
    classes: tuple[str, ...]
    """What its outputs are called; none for a model that gives features."""

    def digest(self) -> str:
        """A hash of its weights."""
        found = blake2b(digest_size=16)
        for name, tensor in sorted(self.model.state_dict().items()):
            found.update(name.encode())
            found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        return found.hexdigest()

    def student(self, swapped: Mapping[str, Any]) -> tuple[nn.Module, list[str]]:
        """A copy with another attention, and the names of what was swapped."""
        model = deepcopy(self.model)
        return model, list(swap(model, **swapped).changed)


class Linearize(Classify):
    """One phase: the teacher shows, the student learns; classes of the pictures are for the accuracy only.

    Args:
        recipe: as for every task; its model is the teacher's.
        teacher: is not changed.
        swapped: arguments of `swap`.
        phase: a name from `PHASES`. It begins with the weights that the recipe names, or else with the teacher's.
        unlabelled: take all pictures below the folder, whatever folders they are in.
    """

    columns: ClassVar[Mapping[str, str]] = {"agreement": "agreement %", "top1": "top-1 %", "error": "attention error"}

    def __init__(
        self, recipe: Recipe, teacher: Teacher, swapped: Mapping[str, Any], phase: str, *, unlabelled: bool = False
    ) -> None:
        super().__init__(recipe)
        self.teacher, self.swapped, self.phase, self.unlabelled = teacher, dict(swapped), phase, unlabelled
        reseed(recipe.run.seed, Purpose.WEIGHTS)
        self.fresh, self.names = teacher.student(swapped)
        self.labelled = False

    @override
    def open(self) -> Source:
        """Pictures in class folders, or all below a folder without any; what is not the teacher's class is no class."""
        folder = Path(self.recipe.data.source).expanduser()
        flat = folder.is_dir() and not any(entry.is_dir() for entry in folder.iterdir() if not entry.name.startswith("."))
        try:
            found = open_unlabelled(self.recipe.data) if flat or self.unlabelled else super().open()
        except ValueError as error:
            hint = " (--unlabelled takes all pictures below it)" if folder.is_dir() and not self.unlabelled and not flat else ""
            raise ValueError(f"{error}{hint}") from error
        known = by_folder(self.teacher.classes, found.classes)
        self.labelled = bool(known) and found.classes == known
        return replace(found, classes=self.teacher.classes or ("all",))

    @override
    def creation(self, classes: int) -> tuple[str, dict[str, Any]]:
        before = self.teacher.arguments.get("swap", [])
        return self.teacher.name, {**self.teacher.arguments, "swap": [*before, self.swapped]}

    @override
    def make(self, name: str, arguments: dict[str, Any], classes: int) -> nn.Module:
        student = deepcopy(self.fresh) if self.recipe.model.weights is None else make_model(name, arguments)
        learn(self.teacher.model, student, self.names, self.phase)
        return student

    def learning(self) -> int:
        """How many numbers learn in this phase."""
        return learn(self.teacher.model, deepcopy(self.fresh), self.names, self.phase)

    @override
    def loss(self, model: nn.Module, batch: Batch, classes: int) -> Tensor:
        teacher = self.teacher.model.to(batch.pixels.device)
        if self.phase == "distil":
            return distillation(teacher, model, batch.pixels)
        pairs = pair_up(teacher, model, self.names)
        with torch.no_grad(), listening(pairs) as calls:
            teacher(batch.pixels)
        return attention_errors(model, pairs, calls, batch.pixels).mean()

    @override
    def meter(self, source: Source, accelerator: Accelerator) -> "StudentMeter":
        return StudentMeter(self.teacher, self.names, labelled=self.labelled)


class StudentMeter(Meter):
    """How far a student says what its teacher says; and what is right of it, where classes of pictures are known.

    Args:
        labelled: whether targets are numbers of the teacher's classes.
    """

    def __init__(self, teacher: Teacher, names: Sequence[str], *, labelled: bool) -> None:
        self.teacher, self.names, self.labelled = teacher, names, labelled
        self.pictures = self.looked_into = 0
        self.agreed = self.right = 0.0
        self.errors = torch.zeros(len(names))

    @override
    def observe(self, model: nn.Module, batch: Batch) -> None:
        if not int(batch.valid.sum()):
            return
        pixels = batch.pixels[batch.valid]
        teacher = self.teacher.model.to(pixels.device)
        pairs = pair_up(teacher, model, self.names)
        with listening(pairs) as calls:
            wanted = answer(teacher, pixels)
        if self.looked_into < LOOKED_INTO:
            self.errors += len(pixels) * attention_errors(model, pairs, calls, pixels).cpu()
            self.looked_into += len(pixels)
        said = answer(model, pixels)
        if self.teacher.classes:
            self.agreed += float((said.argmax(-1) == wanted.argmax(-1)).sum())
        else:
            self.agreed += float(F.cosine_similarity(said.float(), wanted.float(), -1).flatten(1).mean(1).sum())
        if self.labelled:
            self.right += float((said.argmax(-1) == batch.targets[batch.valid]).sum())
        self.pictures += len(pixels)

    @override
    def numbers(self) -> dict[str, float | None]:
        return {
            "agreement": 100 * self.agreed / self.pictures,
            "top1": 100 * self.right / self.pictures if self.labelled else None,
            "error": float(self.errors.mean()) / self.looked_into,
        }

    @override
    def details(self) -> dict[str, Any]:
        """The error of each attention, by its name."""
        return {"layers": dict(zip(self.names, (self.errors / self.looked_into).tolist(), strict=True))}
