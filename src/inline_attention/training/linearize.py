"""Making a trained softmax model linear: a copy with another attention is matched to it, then distilled from it.

Three phases, each a run of its own that can be stopped and resumed; `distillation.py` has the losses. The folder holds a
run for each phase, and, when all are done, `best.safetensors` and `recipe.toml`, as a run's folder does.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from ..compat import separate_accelerate_state
from ..data.loader import worker_count
from ..data.sources import Source
from ..deploy.verify import check_sizes
from ..lite.json_file import read_object
from .checkpoint import write_atomically
from .choose_blocks import choose_blocks, wanted_blocks
from .distributed import make_accelerator
from .engine import Reporter
from .folder_lock import lock_folder
from .kept_errors import StoppedError
from .linearize_config import PHASES, LinearizeConfig
from .linearize_task import Linearize, Teacher
from .recipe import check
from .run import run_training
from .run_folder import DATA, RunFolder, upgrade_names
from .task import evaluate_source

KEEP, BEFORE, RECORD = "keep.json", "before.json", "linearize.json"


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
    kept: dict[str, Any] = {}
    if config.keep is not None:
        try:
            kept = {"keep": _stored_choice(teacher, config, source, out, reporter, stop, where)}
        except StoppedError:
            return None
        config = replace(config, swap_options=kept["keep"]["swap"])
    before = _score_before(config.task(teacher, PHASES[0], 1), source, out, reporter, where)
    phases = []
    weights: Path | None = None
    for phase, steps in zip(PHASES, lengths, strict=True):
        task = config.task(teacher, phase, steps, weights)
        trained = task.count_trained()
        if not steps or not trained:
            reporter.message(f"{phase}: nothing to do")
            continue
        folder = _phase_folder(out, phase)
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
        **kept,
        **before,
        "phases": phases,
    }
    RunFolder(out).write(RECORD, json.dumps(record, indent=1) + "\n")
    return record


def _phase_folder(out: Path, phase: str) -> Path:
    return out / f"{PHASES.index(phase) + 1}-{phase}"


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
    task = config.task(teacher, PHASES[0], 1)
    check(task.recipe)
    if config.keep is not None:
        wanted_blocks(task, config.keep)
    else:
        _refuse_unused(config)
    if config.keep_images < 1 or config.keep_cost < 0:
        raise ValueError(f"keep_images must be positive, keep_cost not negative, got {config.keep_images}, {config.keep_cost}")
    check_sizes(teacher.model, config.data.channels, [config.data.size])
    source = task.open()
    if len(source.train) < config.batch:
        count = f"{len(source.train)} of {len(source.train) + len(source.val)} images are for training"
        raise ValueError(f"{count}, which do not fill a batch of {config.batch}: take --batch {len(source.train)} or less")
    lengths = config.phase_steps(len(source.train))
    if not any(steps and config.task(teacher, phase, 1).count_trained() for phase, steps in zip(PHASES, lengths, strict=True)):
        raise ValueError(f"no phase has both steps and parameters to train: the steps of the phases are {lengths}")
    return source


def _refuse_unused(config: LinearizeConfig) -> None:
    """Raise for options of the choice of blocks when none are to be kept."""
    usual = LinearizeConfig(config.data)
    for name in ("keep_images", "keep_cost"):
        if getattr(config, name) != getattr(usual, name):
            raise ValueError(
                f"{name} {getattr(config, name)} is for keep, which is not given: leave it out, or say what to keep"
            )


def _stored_choice(
    teacher: Teacher,
    config: LinearizeConfig,
    source: Source,
    out: Path,
    reporter: Reporter,
    stop: Callable[[], bool],
    device: str,
) -> dict[str, Any]:
    """The record of `choose_blocks`; computed once, and stored."""
    path = out / KEEP
    identity = {
        "images": source.fingerprint(),
        "teacher": teacher.digest(),
        **{name: getattr(config, name) for name in ("keep", "keep_images", "seed", "batch")},
        "swap": config.swap_options,
        "matching": [config.rates[1], config.phase_steps(len(source.train))[1]],
    }
    stored = read_object(path) if path.is_file() else {}
    if all(isinstance(stored.get(part), dict) for part in ("swap", "begun_with")):
        return _begun_with(identity, stored, out)
    if (out / BEFORE).exists() or any(_phase_folder(out, phase).exists() for phase in PHASES):
        raise ValueError(f"{path} holds no choice of blocks, and what follows from it is there: begin anew in another folder")
    if path.is_file():
        raise ValueError(f"{path} holds no choice of blocks: remove it, and the choice is made again")
    found = choose_blocks(teacher, config, source, reporter=reporter, stop=stop, device=device)
    RunFolder(out).write(KEEP, json.dumps({**found, "begun_with": identity}, indent=1) + "\n")
    return found


def _begun_with(identity: Mapping[str, Any], stored: dict[str, Any], out: Path) -> dict[str, Any]:
    """What was stored with an identity that must be the same now."""
    for what, was in upgrade_names(stored.pop("begun_with")).items():
        if was != identity.get(what):
            kind = "weights or images" if what in ("teacher", "images") else "options"
            raise ValueError(f"{out} was begun with other {kind} ({what}): begin anew in another folder")
    return stored


@separate_accelerate_state()
def _score_before(task: Linearize, source: Source, out: Path, reporter: Reporter, device: str) -> dict[str, Any]:
    """Scores of the teacher and of the untrained student; computed once, and stored."""
    path = out / BEFORE
    identity = {"images": source.fingerprint(), "teacher": task.teacher.digest(), "swap": task.swap_options}
    if path.is_file():
        return _begun_with(identity, dict(json.loads(path.read_text())), out)
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
