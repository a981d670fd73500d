"""Making a trained softmax model linear: a copy with another attention is matched to it, then distilled from it.

Three phases, each a run of its own that can be stopped and resumed; `distillation.py` has the losses. The folder holds a
run for each phase, and, when all are done, `best.safetensors` and `recipe.toml`, as a run's folder does.
"""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor, nn
from typing_extensions import override

from ..compat import separate_accelerate_state
from ..data.config import AugmentConfig, DataConfig
from ..data.loader import Batch, Purpose, reseed, worker_count
from ..data.sources import Source, folder_names, open_unlabelled
from ..deploy.verify import check_sizes
from ..models.finite import check_outputs
from ..models.swap import swap
from . import distillation
from .checkpoint import write_atomically
from .classify import Classify
from .config import ModelConfig, OptimConfig, Recipe, RunConfig, ScheduleConfig
from .distillation import (
    attention_errors,
    distillation_loss,
    model_output,
    pair_attention,
    record_calls,
    set_trainable,
)
from .distributed import make_accelerator
from .engine import Reporter
from .folder_lock import lock_folder
from .model_factory import make_model
from .recipe import check, to_inline
from .run import run_training
from .run_folder import DATA, RunFolder, upgrade_names
from .task import Meter, evaluate_source

PHASES = tuple(name for name in distillation.PHASES if name != "swapped")
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
        """A copy with another attention, and the names of the modules that were swapped."""
        model = deepcopy(self.model)
        return model, list(swap(model, **swap_options).changed)


class Linearize(Classify):
    """One phase of the training: the student learns from the teacher; labels are used for the accuracy only.

    Args:
        recipe: as for every task; its model is the teacher's.
        teacher: is not changed.
        swap_options: arguments of `swap`.
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


PHASE_SHARES = (0.02, 0.04, 0.94)
"""Share of the steps of each phase: a short match and a long distillation kept the most accuracy."""
BEFORE, RECORD = "before.json", "linearize.json"
DERIVED_ARGUMENTS = ("num_classes", "in_chans", "img_size", "swap")
"""Arguments of models that the recipe derives from the data, or that are not timm's."""


@dataclass(frozen=True)
class LinearizeConfig:
    """What decides the result.

    Args:
        data, augment: which images, and how they are transformed.
        swap_options: arguments of `swap`.
        epochs: passes over the images, of all phases together.
        steps: of each phase, in place of epochs; a phase without steps is left out.
        rates: highest learning rate of each phase, at this batch.
        batch: images per step.
        seed: of new parameters, order and augmentation.
        unlabelled: use all images below the folder, whatever folders they are in.
    """

    data: DataConfig
    augment: AugmentConfig = field(default_factory=lambda: AugmentConfig(scale=(0.5, 1.0)))
    swap_options: dict[str, Any] = field(default_factory=lambda: {"mixer": "inline"})
    epochs: float = 2.5
    steps: tuple[int, int, int] | None = None
    rates: tuple[float, float, float] = (1e-3, 1e-3, 5e-4)
    batch: int = 64
    seed: int = 0
    unlabelled: bool = False

    def phase_steps(self, images: int) -> tuple[int, ...]:
        """Steps of each phase."""
        if self.steps is not None:
            return self.steps
        total = self.epochs * images / self.batch
        return tuple(max(1, round(share * total)) for share in PHASE_SHARES)

    def task(self, teacher: Teacher, phase: str, steps: int, weights: Path | None = None) -> Linearize:
        """One phase."""
        return Linearize(
            self._recipe(teacher, phase, steps, weights), teacher, self.swap_options, phase, unlabelled=self.unlabelled
        )

    def _recipe(self, teacher: Teacher, phase: str, steps: int, weights: Path | None) -> Recipe:
        rate = self.rates[PHASES.index(phase)]
        arguments = {name: value for name, value in teacher.arguments.items() if name not in DERIVED_ARGUMENTS}
        return Recipe(
            model=ModelConfig(
                name=teacher.name,
                args=to_inline(arguments),
                swap=to_inline(self.swap_options),
                weights=None if weights is None else str(weights),
            ),
            data=self.data,
            augment=self.augment,
            optim=OptimConfig(
                batch=self.batch,
                rate_batch=self.batch,
                lr=rate,
                warmup_lr=rate / 100,
                min_lr=rate / 50,
                weight_decay=0.05 if phase == "distil" else 0.0,
                clip=1.0,
            ),
            schedule=ScheduleConfig(steps=steps, warmup=0, warmup_steps=steps // 20),
            run=RunConfig(seed=self.seed, log=20, save=200, evaluate=1_000_000),  # once, at the end
        )


def linearize(
    teacher: Teacher,
    config: LinearizeConfig,
    out: Path,
    *,
    reporter: Reporter,
    stop: Callable[[], bool],
    device: str = "auto",
    begin: Callable[[], None] = lambda: None,
) -> dict[str, Any] | None:
    """Train a linear copy of a model, or resume what is in the folder.

    Args:
        teacher: a trained model; it is not changed.
        config: what to do; a folder with some of it done must have been made by the same.
        out: the folder.
        reporter: receives what happens.
        stop: asked after every step whether to save and stop.
        device: 'auto', 'cpu', or the accelerator that must be there.
        begin: called when the folder is locked against other processes, before anything is written.

    Returns:
        The record, which is also in `linearize.json`; None if it was stopped before the end.
    """
    source = check_config(teacher, config)
    out = out.resolve()
    with lock_folder(out):
        begin()
        return _linearize(teacher, config, out, source, reporter, stop, device)


def _linearize(
    teacher: Teacher,
    config: LinearizeConfig,
    out: Path,
    source: Source,
    reporter: Reporter,
    stop: Callable[[], bool],
    where: str,
) -> dict[str, Any] | None:
    lengths = config.phase_steps(len(source.train))
    before = _score_before(config.task(teacher, PHASES[0], 1), source, out, reporter, where)
    phases = []
    weights: Path | None = None
    for phase, steps in zip(PHASES, lengths, strict=True):
        task = config.task(teacher, phase, steps, weights)
        trained = task.count_trained()
        if not steps or not trained:
            reporter.message(f"{phase}: nothing to do")
            continue
        folder = out / f"{PHASES.index(phase) + 1}-{phase}"
        if (folder / "result.json").is_file():
            reporter.message(f"{phase}: done already")
        else:
            reporter.message(f"{phase}: {steps:,} steps, {trained:,} parameters learn")
            if not _run_phase(task, source, folder, reporter, stop, where):
                return None
        found = json.loads((folder / "result.json").read_text())
        phases.append({"phase": phase, "steps": steps, "parameters": trained, **_numbers(found, "seconds")})
        weights = folder / "best.safetensors"
    if weights is None:
        raise ValueError(f"no phase has both steps and parameters to train: the steps of the phases are {lengths}")
    for name in ("recipe.toml", DATA):
        if (weights.parent / name).is_file():
            shutil.copyfile(weights.parent / name, out / name)
    write_atomically(out / "best.safetensors", weights.read_bytes())
    record = {
        "model": teacher.name,
        "swap": config.swap_options,
        "images": {
            "source": config.data.source,
            "training": len(source.train),
            "validation": len(source.val),
            **{key: value for key, value in source.scored.items() if key != "images"},
        },
        "classes": len(teacher.classes),
        "labelled": source.labelled,
        **before,
        "phases": phases,
    }
    RunFolder(out).write(RECORD, json.dumps(record, indent=1) + "\n")
    return record


def _run_phase(
    task: Linearize, source: Source, folder: Path, reporter: Reporter, stop: Callable[[], bool], device: str
) -> bool:
    """Train a phase, or resume it. False if it was stopped."""
    resume = any((folder / "checkpoints").glob("step-*"))
    if resume:  # from the weights that it began with, wherever the folder was then
        weights = RunFolder(folder).recipe().model.weights
        task.recipe = replace(task.recipe, model=replace(task.recipe.model, weights=weights))
    elif folder.exists():  # killed before there was anything to resume
        shutil.rmtree(folder)
    return run_training(task, folder, source=source, resume=resume, reporter=reporter, stop=stop, device=device).finished


def check_config(teacher: Teacher, config: LinearizeConfig) -> Source:
    """Raise, before anything is written, for what would fail later; return the images."""
    teacher.model.eval().requires_grad_(False)
    check(config.task(teacher, PHASES[0], 1).recipe)
    check_sizes(teacher.model, config.data.channels, [config.data.size])
    source = config.task(teacher, PHASES[0], 1).open()
    if len(source.train) < config.batch:
        count = f"{len(source.train)} of {len(source.train) + len(source.val)} images are for training"
        raise ValueError(f"{count}, which do not fill a batch of {config.batch}: take a batch of {len(source.train)} or less")
    lengths = config.phase_steps(len(source.train))
    if not any(steps and config.task(teacher, phase, 1).count_trained() for phase, steps in zip(PHASES, lengths, strict=True)):
        raise ValueError(f"no phase has both steps and parameters to train: the steps of the phases are {lengths}")
    return source


@separate_accelerate_state()
def _score_before(task: Linearize, source: Source, out: Path, reporter: Reporter, device: str) -> dict[str, Any]:
    """Scores of the teacher and of the untrained student; computed once, and stored."""
    path = out / BEFORE
    identity = {"images": source.fingerprint(), "teacher": task.teacher.digest()}
    if path.is_file():
        kept = dict(json.loads(path.read_text()))
        for what, was in upgrade_names(kept.pop("begun_with")).items():
            if was != identity[what]:
                raise ValueError(f"{out} was begun with other weights or images ({what}): begin anew in another folder")
        return kept
    accelerator = make_accelerator(task.recipe.run, device)
    workers = worker_count(task.recipe.data.workers, 1, len(source.val))
    found = {}
    for name, model in (("teacher", task.teacher.model), ("swapped", task.student)):
        reporter.message(f"evaluating on {len(source.val):,} validation images: {name}")
        on_device: nn.Module = model.to(accelerator.device)
        batch = task.recipe.optim.batch
        score = evaluate_source(
            on_device, task, source, accelerator, batch=batch, workers=workers, progress=reporter.evaluating
        )
        found[name] = {**score.metrics, **score.details}
    RunFolder(out).write(BEFORE, json.dumps({**found, "begun_with": identity}) + "\n")
    return found


def _numbers(found: dict[str, Any], *more: str) -> dict[str, Any]:
    """The metrics of a phase's result."""
    return {name: found[name] for name in (*Linearize.columns, "layers", *more)}
