"""One phase of making a softmax model linear, as a task: the linear copy learns from the softmax model."""

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

from ..data.loader import Batch, Purpose, reseed
from ..data.sources import Source, folder_names, open_unlabelled
from ..models.finite import check_outputs
from .classify import Classify
from .config import Recipe
from .distillation import (
    attention_errors,
    distillation_loss,
    model_output,
    pair_attention,
    record_calls,
    set_trainable,
)
from .model_factory import make_model, swap_as_stored
from .task import Meter

COMPARED_IMAGES = 512
"""Images of an evaluation on which attention outputs are compared."""


@dataclass(frozen=True)
class Teacher:
    """The trained softmax model, and how to make another like it."""

    model: nn.Module
    name: str
    arguments: Mapping[str, Any]
    """Arguments of `make_model`."""
    classes: tuple[str, ...]
    """Names of its classes; empty for a model that outputs features."""

    def digest(self) -> str:
        """A hash of its weights."""
        found = blake2b(digest_size=16)
        for name, tensor in sorted(self.model.state_dict().items()):
            found.update(name.encode())
            found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        return found.hexdigest()

    def student(self, swap_options: Mapping[str, Any]) -> tuple[nn.Module, list[str]]:
        """A copy with another attention, and the names of the modules that were swapped, in the model's order."""
        model = deepcopy(self.model)
        changed = swap_as_stored(model, swap_options).changed
        return model, [name for name, _ in model.named_modules() if name in changed]


class Linearize(Classify):
    """One phase of the training: the student learns from the teacher; labels are used for the accuracy only.

    Args:
        recipe: as for every task; its model is the teacher's.
        teacher: is not changed.
        swap_options: of `swap_as_stored`.
        phase: a name from `PHASES`. It starts from the recipe's weights, or else from the teacher's.
        unlabelled: use all images below the folder, whatever folders they are in.
    """

    columns: ClassVar[Mapping[str, str]] = {"agreement": "agreement %", "top1": "top-1 %", "error": "attention error"}

    def __init__(
        self, recipe: Recipe, teacher: Teacher, swap_options: Mapping[str, Any], phase: str, *, unlabelled: bool = False
    ) -> None:
        super().__init__(recipe)
        self.teacher, self.swap_options, self.phase, self.unlabelled = teacher, dict(swap_options), phase, unlabelled
        reseed(recipe.run.seed, Purpose.WEIGHTS)
        self.student, self.names = teacher.student(swap_options)

    @override
    def open(self) -> Source:
        """Images in class folders, or all below a folder without any. Labels count only if they are the teacher's classes."""
        folder = Path(self.recipe.data.source).expanduser()
        flat = folder.is_dir() and not any(entry.is_dir() for entry in folder.iterdir() if not entry.name.startswith("."))
        try:
            found = open_unlabelled(self.recipe.data) if flat or self.unlabelled else super().open()
        except ValueError as error:
            hint = " (unlabelled takes all images below it)" if folder.is_dir() and not self.unlabelled and not flat else ""
            raise ValueError(f"{error}{hint}") from error
        known = folder_names(self.teacher.classes, found.classes)
        labelled = bool(known) and found.classes == known
        return replace(found, classes=self.teacher.classes or ("all",), labelled=labelled)

    @override
    def model_spec(self, classes: int) -> tuple[str, dict[str, Any]]:
        before = self.teacher.arguments.get("swap", [])
        return self.teacher.name, {**self.teacher.arguments, "swap": [*before, self.swap_options]}

    @override
    def make_model(self, name: str, arguments: dict[str, Any], classes: int) -> nn.Module:
        student = deepcopy(self.student) if self.recipe.model.weights is None else make_model(name, arguments)
        set_trainable(self.teacher.model, student, self.names, self.phase)
        return student

    def count_trained(self) -> int:
        """Number of parameters that this phase trains."""
        return set_trainable(self.teacher.model, deepcopy(self.student), self.names, self.phase)

    @override
    def loss(self, model: nn.Module, batch: Batch, classes: int) -> Tensor:
        teacher = self.teacher.model.to(batch.pixels.device)
        if self.phase == "distil":
            return distillation_loss(teacher, model, batch.pixels)
        pairs = pair_attention(teacher, model, self.names)
        with torch.no_grad(), record_calls(pairs) as calls:
            teacher(batch.pixels)
        return attention_errors(model, pairs, calls, batch.pixels).mean()

    @override
    def meter(self, source: Source, accelerator: Accelerator) -> "StudentMeter":
        return StudentMeter(self.teacher, self.names, labelled=source.labelled)


class StudentMeter(Meter):
    """Agreement of a student with its teacher, and its accuracy where labels are the teacher's classes.

    Args:
        labelled: whether targets are indices of the teacher's classes.
    """

    def __init__(self, teacher: Teacher, names: Sequence[str], *, labelled: bool) -> None:
        self.teacher, self.names, self.labelled = teacher, names, labelled
        self.images = self.compared = 0
        self.agreed = self.correct = 0.0
        self.errors = torch.zeros(len(names))

    @override
    def update(self, model: nn.Module, batch: Batch) -> None:
        if not int(batch.valid.sum()):
            return
        pixels = batch.pixels[batch.valid]
        teacher = self.teacher.model.to(pixels.device)
        pairs = pair_attention(teacher, model, self.names)
        with record_calls(pairs) as calls:
            expected = model_output(teacher, pixels)
        if self.compared < COMPARED_IMAGES:
            self.errors += len(pixels) * attention_errors(model, pairs, calls, pixels).cpu()
            self.compared += len(pixels)
        predicted = model_output(model, pixels)
        names = [name for name, valid in zip(batch.names, batch.valid.tolist(), strict=False) if valid]
        for which, outputs in (("the teacher", expected), ("the student", predicted)):
            check_outputs(outputs, names, which)
        if self.teacher.classes:
            self.agreed += float((predicted.argmax(-1) == expected.argmax(-1)).sum())
        else:
            self.agreed += float(F.cosine_similarity(predicted.float(), expected.float(), -1).flatten(1).mean(1).sum())
        if self.labelled:
            self.correct += float((predicted.argmax(-1) == batch.targets[batch.valid]).sum())
        self.images += len(pixels)

    @override
    def compute(self) -> dict[str, float | None]:
        return {
            "agreement": 100 * self.agreed / self.images,
            "top1": 100 * self.correct / self.images if self.labelled else None,
            "error": float(self.errors.mean()) / self.compared,
        }

    @override
    def details(self) -> dict[str, Any]:
        """The error of each attention module, by its name."""
        return {"layers": dict(zip(self.names, (self.errors / self.compared).tolist(), strict=True))}
