"""Making a trained model linear from beginning to end: look, swap, three phases of learning, and a record of each.

The folder holds a run of its own for each phase, and, when all are done, `best.safetensors` and `recipe.toml`, as a run does.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from ..deploy.verify import see_that_it_takes
from ..training import recipe as recipes
from ..training.checkpoint import write_whole
from ..training.engine import Report
from ..training.launch import make_accelerator
from ..training.loader import worker_count
from ..training.recipe import AugmentPart, DataPart, ModelPart, OptimPart, Recipe, RunPart, SchedulePart, to_inline
from ..training.run_folder import RunFolder
from ..training.source import Source
from ..training.train import score_held_out, train
from .linearize import PHASES, Linearize, Teacher

SHARES = (0.02, 0.04, 0.94)
"""Of all steps, for each phase: a short match and a long distillation kept the most."""
BEFORE, RECORD = "before.json", "linearize.json"
TOLD_OTHERWISE = ("num_classes", "in_chans", "img_size", "swap")
"""Arguments of models that follow from the data, or are not timm's."""


@dataclass(frozen=True)
class Lesson:
    """What decides the outcome.

    Args:
        data, augment: which pictures, and how they are shown.
        swapped: arguments of `swap`.
        epochs: passes over the pictures, of all phases together.
        steps: of each phase, in place of epochs; a phase without steps is left out.
        rates: highest learning rate of each phase, at this batch.
        batch: pictures a step.
        seed: of what is new, order and augmentation.
        unlabelled: take all pictures below the folder, whatever folders they are in.
    """

    data: DataPart
    augment: AugmentPart = field(default_factory=lambda: AugmentPart(scale=(0.5, 1.0)))
    swapped: dict[str, Any] = field(default_factory=lambda: {"mixer": "inline"})
    epochs: float = 2.5
    steps: tuple[int, int, int] | None = None
    rates: tuple[float, float, float] = (1e-3, 1e-3, 5e-4)
    batch: int = 64
    seed: int = 0
    unlabelled: bool = False

    def lengths(self, pictures: int) -> tuple[int, ...]:
        """Steps of each phase."""
        if self.steps is not None:
            return self.steps
        whole = self.epochs * pictures / self.batch
        return tuple(max(1, round(share * whole)) for share in SHARES)

    def task(self, teacher: Teacher, phase: str, steps: int, weights: Path | None = None) -> Linearize:
        """One phase."""
        return Linearize(self._recipe(teacher, phase, steps, weights), teacher, self.swapped, phase, unlabelled=self.unlabelled)

    def _recipe(self, teacher: Teacher, phase: str, steps: int, weights: Path | None) -> Recipe:
        rate = self.rates[PHASES.index(phase)]
        said = {name: value for name, value in teacher.arguments.items() if name not in TOLD_OTHERWISE}
        return Recipe(
            model=ModelPart(
                name=teacher.name,
                args=to_inline(said),
                swap=to_inline(self.swapped),
                weights=None if weights is None else str(weights),
            ),
            data=self.data,
            augment=self.augment,
            optim=OptimPart(
                batch=self.batch,
                rate_batch=self.batch,
                lr=rate,
                warmup_lr=rate / 100,
                min_lr=rate / 50,
                weight_decay=0.05 if phase == "distil" else 0.0,
                clip=1.0,
            ),
            schedule=SchedulePart(steps=steps, warmup=0, warmup_steps=steps // 20),
            run=RunPart(seed=self.seed, log=20, save=200, evaluate=1_000_000),  # once, at the end
        )


def linearize(
    teacher: Teacher, lesson: Lesson, out: Path, *, report: Report, stop: Callable[[], bool], device: str = "auto"
) -> dict[str, Any] | None:
    """Teach, or go on with what is in the folder.

    Args:
        teacher: a trained model; it is not changed.
        lesson: what to do; a folder that holds some of it already must have been made by the same.
        out: the folder.
        report: is told what happens.
        stop: asked after every step whether to save and stop.
        device: 'auto', 'cpu', or the accelerator that must be there.

    Returns:
        The record, which is also in `linearize.json`; None if it was stopped before the end.
    """
    source = check(teacher, lesson)
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    lengths = lesson.lengths(len(source.train))
    first = lesson.task(teacher, PHASES[0], 1)
    before = _before(first, out, report, device)
    phases = []
    weights: Path | None = None
    for phase, steps in zip(PHASES, lengths, strict=True):
        task = lesson.task(teacher, phase, steps, weights)
        changing = task.learning()
        if not steps or not changing:
            report.say(f"{phase}: nothing to do")
            continue
        folder = out / f"{PHASES.index(phase) + 1}-{phase}"
        if not (folder / "result.json").is_file():
            report.say(f"{phase}: {steps:,} steps, {changing:,} parameters learn")
            resume = any((folder / "checkpoints").glob("step-*"))
            if resume:  # by the weights that it began with, wherever the folder was then
                begun = RunFolder(folder).recipe().model.weights
                task.recipe = replace(task.recipe, model=replace(task.recipe.model, weights=begun))
            elif folder.exists():  # killed before there was anything to go on from
                shutil.rmtree(folder)
            outcome = train(task, folder, resume=resume, report=report, stop=stop, device=device)
            if not outcome.finished:
                return None
        else:
            report.say(f"{phase}: done already")
        found = json.loads((folder / "result.json").read_text())
        phases.append({"phase": phase, "steps": steps, "parameters": changing, **_numbers(found, "seconds")})
        weights = folder / "best.safetensors"
    if weights is None:
        raise ValueError(f"nothing learned: no parameter is new, and the steps of the phases are {lengths}")
    shutil.copyfile(weights.parent / "recipe.toml", out / "recipe.toml")
    write_whole(out / "best.safetensors", weights.read_bytes())
    record = {
        "model": teacher.name,
        "swap": lesson.swapped,
        "pictures": {"source": lesson.data.source, "training": len(source.train), "held_out": len(source.val)},
        "classes": len(teacher.classes),
        "labelled": first.labelled,
        **before,
        "phases": phases,
    }
    RunFolder(out).write(RECORD, json.dumps(record, indent=1) + "\n")
    return record


def check(teacher: Teacher, lesson: Lesson) -> Source:
    """Raise, before anything is written, for what would fail later; the pictures."""
    teacher.model.eval().requires_grad_(False)
    recipes.check(lesson.task(teacher, PHASES[0], 1).recipe)
    see_that_it_takes(teacher.model, lesson.data.channels, [lesson.data.size])
    source = lesson.task(teacher, PHASES[0], 1).open()
    if len(source.train) < lesson.batch:
        count = f"{len(source.train)} of {len(source.train) + len(source.val)} pictures are to learn from"
        raise ValueError(f"{count}, which do not fill a batch of {lesson.batch}: take --batch {len(source.train)} or less")
    lengths = lesson.lengths(len(source.train))
    if not any(steps and lesson.task(teacher, phase, 1).learning() for phase, steps in zip(PHASES, lengths, strict=True)):
        raise ValueError(f"nothing learned: the steps of the phases are {lengths}, and phases without new parameters need none")
    return source


def _before(task: Linearize, out: Path, report: Report, device: str) -> dict[str, Any]:
    """The teacher, and the student when it has learned nothing yet; looked at once, and kept."""
    path = out / BEFORE
    source = task.open()
    identity = {"pictures": source.fingerprint(), "teacher": task.teacher.digest()}
    if path.is_file():
        kept = dict(json.loads(path.read_text()))
        for what, was in kept.pop("begun_with").items():
            if was != identity[what]:
                raise ValueError(f"{out} was begun with other weights or pictures ({what}): begin anew with another --out")
        return kept
    accelerator = make_accelerator(task.recipe.run, device, [], out)
    workers = worker_count(task.recipe.data.workers, 1, len(source.val))
    found = {}
    for name, model in (("teacher", task.teacher.model), ("swapped", task.fresh)):
        report.say(f"looking at {len(source.val):,} held-out pictures: {name}")
        on_device: nn.Module = model.to(accelerator.device)
        score = score_held_out(on_device, task, source, accelerator, task.recipe.optim.batch, workers, report)
        found[name] = {**score.numbers, **score.details}
    RunFolder(out).write(BEFORE, json.dumps({**found, "begun_with": identity}) + "\n")
    return found


def _numbers(found: dict[str, Any], *more: str) -> dict[str, Any]:
    """What is kept of a phase's result."""
    return {name: found[name] for name in (*Linearize.columns, "layers", *more)}
