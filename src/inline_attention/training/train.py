"""A run from beginning to end: a straight script over the parts of this room."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate import Accelerator, DistributedType
from accelerate.utils import broadcast_object_list
from timm.layers import convert_sync_batchnorm
from torch import nn

from ..models.backbone import Backbone
from . import build
from . import recipe as recipes
from .checkpoint import Checkpoint, last_checkpoint
from .engine import Engine, Progress, Report
from .evaluate import Score, evaluate
from .keeper import Keeper
from .launch import make_accelerator
from .loader import evaluation_batches, training_batches, worker_count
from .plan import make_plan
from .recipe import Recipe
from .run_folder import RunFolder, environment
from .source import Source
from .states import OptimizerState, restore, restore_optimizer
from .task import Task


@dataclass(frozen=True)
class Outcome:
    """What a run came to."""

    folder: Path
    finished: bool
    best: dict[str, Any]
    classes: tuple[str, ...]
    rows: list[dict[str, Any]]
    bad: tuple[str, ...]


def train(task: Task, out: Path, *, resume: bool, report: Report, stop: Callable[[], bool], device: str = "auto") -> Outcome:
    """Train what the task's recipe says, into a folder; or go on with what is there.

    Args:
        task: what is learned.
        out: the folder of the run.
        resume: go on from its last checkpoint that is whole.
        report: is told what happens.
        stop: asked after every step whether to save and stop.
        device: 'auto', 'cpu', or the accelerator that must be there.
    """
    recipe = task.recipe
    recipes.check(recipe)
    source = task.open()
    show = task.show(training=True)
    going_on = resume and any(RunFolder(out).checkpoints.glob("step-*"))  # killed before the first one, it begins anew
    model, said = build.build_model(task, source.classes, resume=going_on)
    whole = isinstance(task.backbone(model), Backbone) or recipe.task.name == "classify"  # others may have a head to spare
    accelerator = make_accelerator(recipe.run, device, build.block_classes(model), out, unused=not whole)
    plan = make_plan(recipe, len(source.train), accelerator.num_processes)
    if accelerator.num_processes > 1 and accelerator.device.type == "cuda":  # elsewhere torch has no such norm
        model = convert_sync_batchnorm(model)
    average = build.build_average(model.to(accelerator.device), plan)
    optimizer: Any = build.build_optimizer(model, recipe, plan)
    schedule = build.build_schedule(optimizer, plan)
    folder = RunFolder(out)
    found = _begin(folder, recipe, source, accelerator, report, resume=resume)
    if said:
        report.say(f"{recipe.model.weights}: {said}")

    if recipe.run.fsdp and accelerator.distributed_type != DistributedType.FSDP:
        report.say("run.fsdp: nothing to shard over here; going on with whole weights in every process")
    if recipe.model.compile:
        model.compile()
    model, optimizer = accelerator.prepare(model, optimizer)
    progress = Progress(bad=list(source.bad))
    if found is not None:
        progress = Progress(**found.state["progress"])
        restore_optimizer(model, optimizer.optimizer, OptimizerState(found.tensors("optimizer"), **found.state["optimizer"]))
        restore(model, found.tensors("model"))
        if average is not None:
            average.module.load_state_dict(found.tensors("ema"))
        if accelerator.scaler is not None:
            accelerator.scaler.load_state_dict(found.state["scaler"])

    accelerator.init_trackers("tensorboard", init_kwargs={"tensorboard": {"purge_step": progress.step + 1}})
    workers = worker_count(recipe.data.workers, accelerator.num_processes, len(source.train))
    keeper = Keeper(folder, recipe, task, source.classes, source.fingerprint(), accelerator)

    def score(which: nn.Module) -> Score:
        return score_held_out(which, task, source, accelerator, plan.micro_batch, workers, report)

    engine = Engine(
        recipe,
        task,
        plan,
        len(source.classes),
        accelerator,
        model,
        optimizer,
        schedule,
        average,
        progress,
        report,
        keeper,
        score,
        stop,
    )
    batches = training_batches(
        source.train,
        show,
        plan,
        seed=recipe.run.seed,
        rank=accelerator.process_index,
        start=progress.step,
        channels=recipe.data.channels,
        workers=workers,
    )
    finished = engine.run(batches)
    accelerator.end_training()
    if finished and accelerator.is_main_process:
        result = {**progress.best, "classes": source.classes, "seconds": progress.seconds}
        folder.write("result.json", json.dumps(result) + "\n")
    return Outcome(out, finished, progress.best, source.classes, folder.rows(), tuple(progress.bad))


def _begin(
    folder: RunFolder, recipe: Recipe, source: Source, accelerator: Accelerator, report: Report, *, resume: bool
) -> Checkpoint | None:
    """Make the folder, or find where to go on. Only the main process looks; the others are told."""
    found: list[Any] = [None, ""]
    if accelerator.is_main_process:
        try:
            if resume:
                found[0] = _find(folder, recipe, source, report)
            else:
                folder.begin(recipe, environment(str(accelerator.device), accelerator.num_processes))
        except (ValueError, OSError) as error:
            found[1] = str(error)
    broadcast_object_list(found)
    if found[1]:
        raise ValueError(found[1])
    checkpoint: Checkpoint | None = found[0]
    return checkpoint


def _find(folder: RunFolder, recipe: Recipe, source: Source, report: Report) -> Checkpoint | None:
    if changed := recipes.changes(folder.recipe(), recipe):
        told = "; ".join(changed)
        anew = f"go on without these options, or begin anew with --model.weights {folder.path}"
        raise ValueError(f"{folder.path} is a run of another recipe ({told}): {anew}")
    found = last_checkpoint(folder.checkpoints, report.say)
    if found is None:
        if any(folder.checkpoints.glob("step-*")):
            raise ValueError(f"{folder.path} has no checkpoint that is whole")
        report.say(f"{folder.path} has no checkpoint yet: beginning anew")
    elif found.state["data"] != source.fingerprint():
        raise ValueError(f"{recipe.data.source} does not hold the pictures that {folder.path} was trained on")
    folder.rewind(0 if found is None else found.step)
    folder.write("recipe.toml", recipes.to_toml(recipe))  # where its pictures are may have changed
    return found


def score_held_out(
    model: nn.Module, task: Task, source: Source, accelerator: Accelerator, batch: int, workers: int, report: Report
) -> Score:
    """How good a model is on the pictures held out."""
    data = task.recipe.data
    batches = evaluation_batches(
        source.val,
        task.show(training=False),
        batch,
        rank=accelerator.process_index,
        processes=accelerator.num_processes,
        channels=data.channels,
        workers=workers,
    )
    total = len(source.val)
    return evaluate(
        model,
        batches,
        task.meter(source, accelerator),
        accelerator,
        skip_bad=data.skip_bad,
        progress=lambda done: report.evaluating(min(done, total), total),
    )
