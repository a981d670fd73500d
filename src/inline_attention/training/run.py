"""A training run from beginning to end: a straight script over the parts of this room."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from accelerate import Accelerator, DistributedType
from accelerate.utils import broadcast_object_list
from timm.layers import convert_sync_batchnorm

from ..compat import separate_accelerate_state
from ..data.loader import training_batches, worker_count
from ..data.sources import Source
from ..data.splits import canonical
from ..models.backbone import Backbone
from ..models.finite import check_weights
from .checkpoint import Checkpoint, last_checkpoint
from .config import Recipe
from .distributed import OptimizerState, make_accelerator, restore, restore_optimizer
from .engine import Engine, Progress, Reporter, SilentReporter
from .folder_lock import lock_folder
from .model_factory import block_classes, build_model
from .recipe import changes, check, to_toml
from .run_folder import RunFolder, RunWriter, environment, upgrade_names
from .schedule import build_average, build_optimizer, build_scheduler, make_plan
from .task import Task, evaluate_source


@dataclass(frozen=True)
class TrainingResult:
    """What a run gave."""

    folder: Path
    """The run's folder: `best.safetensors`, `metrics.csv`, `recipe.toml`, checkpoints."""
    finished: bool
    """False if it was stopped before the end; it can be resumed."""
    best: dict[str, Any]
    """Metrics of the best weights, their epoch and step, and details such as the confusion matrix."""
    classes: tuple[str, ...]
    rows: list[dict[str, Any]]
    """All lines of metrics: of training and of evaluation, by their `kind`."""
    bad: tuple[str, ...]
    """A line for each image that could not be read, and was left out."""
    source: Source = field(repr=False, compare=False)
    """The images."""

    @property
    def metrics(self) -> dict[str, Any]:
        """The last evaluation; empty if there was none yet."""
        return next((row for row in reversed(self.rows) if row["kind"] == "evaluation"), {})


@separate_accelerate_state()
def run_training(
    task: Task,
    out: Path,
    *,
    source: Source | None = None,
    resume: bool = False,
    reporter: Reporter | None = None,
    stop: Callable[[], bool] = lambda: False,
    device: str = "auto",
) -> TrainingResult:
    """Train by the task's recipe, into a folder; or resume what is there. The folder is locked against other processes.

    Args:
        task: what is learned.
        out: the folder of the run.
        source: the recipe's images, if they are open already.
        resume: go on from the last intact checkpoint.
        reporter: receives what happens.
        stop: asked after every step whether to save and stop.
        device: 'auto', 'cpu', or the accelerator that must be there.
    """
    reporter, folder = reporter or SilentReporter(), RunFolder(out)
    check(task.recipe)
    source = task.open() if source is None else source
    task = task.suited_to(source)
    recipe = task.recipe
    if canonical(source.split.partition("[")[0]) == "test" and not resume:  # as of test[:50%]
        raise ValueError(
            f"training does not look at test images: leave out data.val {recipe.data.val}, and score the run on them by "
            "`inline eval RUN --split test`"
        )
    transform = task.transform(training=True)
    with ExitStack() as locks:
        engine = _make_engine(task, source, folder, device, reporter, stop, locks, resume=resume)
        progress, accelerator = engine.progress, engine.accelerator
        batches = training_batches(
            source.train,
            transform,
            engine.plan,
            seed=recipe.run.seed,
            rank=accelerator.process_index,
            start=progress.step,
            channels=recipe.data.channels,
            workers=worker_count(recipe.data.workers, accelerator.num_processes, len(source.train)),
        )
        finished = engine.run(batches)
        accelerator.end_training()
        if finished and accelerator.is_main_process:
            result = {**source.scored, **progress.best, "classes": source.classes, "seconds": progress.seconds}
            folder.write("result.json", json.dumps(result) + "\n")
    return TrainingResult(out, finished, progress.best, source.classes, folder.rows(), tuple(progress.bad), source)


def _make_engine(
    task: Task,
    source: Source,
    folder: RunFolder,
    device: str,
    reporter: Reporter,
    stop: Callable[[], bool],
    locks: ExitStack,
    *,
    resume: bool,
) -> Engine:
    """Model, optimizer and the rest of a run, at its first step or at its last checkpoint; `locks` receives the folder's."""
    recipe = task.recipe
    resumable = resume and any(folder.checkpoints.glob("step-*"))  # killed before the first one, it begins anew
    model, loaded = build_model(task, source.classes, resume=resumable)
    # heads of other libraries' models may have parameters that a dense task does not use
    whole = isinstance(task.backbone(model), Backbone) or recipe.task.name == "classify"
    accelerator = make_accelerator(recipe.run, device, block_classes(model), folder.path, unused_parameters=not whole)
    plan = make_plan(recipe, len(source.train), accelerator.num_processes)
    if accelerator.num_processes > 1 and accelerator.device.type == "cuda":  # elsewhere torch has no such norm
        model = convert_sync_batchnorm(model)
    average = build_average(model.to(accelerator.device), plan)
    optimizer: Any = build_optimizer(model, recipe, plan)
    scheduler = build_scheduler(optimizer, plan)
    checkpoint = _begin(folder, recipe, source, accelerator, reporter, locks, resume=resume)
    reporter.message(f"scored on {len(source.val):,} images of the split {source.split_text}")
    if about := task.describe(source):
        reporter.message(about)
    if loaded:
        reporter.message(loaded)
    if recipe.run.fsdp and accelerator.distributed_type != DistributedType.FSDP:
        reporter.message("run.fsdp: nothing to shard over here; going on with whole weights in every process")
    if recipe.model.compile:
        model.compile()
    model, optimizer = accelerator.prepare(model, optimizer)
    progress = Progress(bad=list(source.bad))
    if checkpoint is not None:
        progress = _restore(checkpoint, model, optimizer, average, accelerator)
    accelerator.init_trackers("tensorboard", init_kwargs={"tensorboard": {"purge_step": progress.step + 1}})
    workers = worker_count(recipe.data.workers, accelerator.num_processes, len(source.train))
    shared: dict[str, Any] = {"task": task, "accelerator": accelerator}
    evaluating: dict[str, Any] = {"source": source, "batch": plan.micro_batch, "workers": workers}
    return Engine(
        **shared,
        plan=plan,
        classes=len(source.classes),
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        average=average,
        progress=progress,
        reporter=reporter,
        writer=RunWriter(folder, task, source.classes, source.fingerprint(), source.scored, accelerator),
        evaluate=partial(evaluate_source, **shared, **evaluating, progress=reporter.evaluating),
        stop=stop,
    )


def _restore(checkpoint: Checkpoint, model: Any, optimizer: Any, average: Any, accelerator: Accelerator) -> Progress:
    """Load a checkpoint into the parts of a run."""
    saved, weights = checkpoint.state, checkpoint.tensors("model")
    check_weights(weights, str(checkpoint.path))
    restore_optimizer(model, optimizer.optimizer, OptimizerState(checkpoint.tensors("optimizer"), **saved["optimizer"]))
    restore(model, weights)
    if average is not None:
        average.module.load_state_dict(checkpoint.tensors("ema"))
    if accelerator.scaler is not None:
        accelerator.scaler.load_state_dict(saved["scaler"])
    return Progress(**{**saved["progress"], "best": upgrade_names(saved["progress"]["best"])})


def _begin(
    folder: RunFolder,
    recipe: Recipe,
    source: Source,
    accelerator: Accelerator,
    reporter: Reporter,
    locks: ExitStack,
    *,
    resume: bool,
) -> Checkpoint | None:
    """Lock the folder; begin it, or find the checkpoint to resume. Only the main process does, and tells the others."""
    found: list[Any] = [None, ""]
    if accelerator.is_main_process:
        try:
            locks.enter_context(lock_folder(folder.path))
            if resume:
                found[0] = _find_checkpoint(folder, recipe, source, reporter)
                folder.record_data(source)
            else:
                folder.begin(recipe, environment(str(accelerator.device), accelerator.num_processes), source)
        except (ValueError, OSError) as error:
            found[1] = str(error)
    broadcast_object_list(found)
    if found[1]:
        raise ValueError(found[1])
    checkpoint: Checkpoint | None = found[0]
    return checkpoint


def _find_checkpoint(folder: RunFolder, recipe: Recipe, source: Source, reporter: Reporter) -> Checkpoint | None:
    if changed := changes(folder.recipe(), recipe):
        anew = f"go on with its own recipe, or begin anew with model.weights {folder.path}"
        raise ValueError(f"{folder.path} is a run of another recipe ({'; '.join(changed)}): {anew}")
    found = last_checkpoint(folder.checkpoints, reporter.message)
    if found is None:
        if any(folder.checkpoints.glob("step-*")):
            raise ValueError(f"{folder.path} has no intact checkpoint")
        reporter.message(f"{folder.path} has no checkpoint yet: beginning anew")
    elif found.state["data"] != source.fingerprint():
        raise ValueError(f"{recipe.data.source} does not hold the images that {folder.path} was trained on")
    folder.rewind(0 if found is None else found.step)
    folder.write("recipe.toml", to_toml(recipe))  # where its images are may have changed
    return found
