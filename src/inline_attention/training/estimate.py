"""Estimates before a run: parameters, memory and time, from a few steps on the first images."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from ..data.loader import Batch, evaluation_batches, training_batches, worker_count
from ..data.sources import Source
from .model_factory import build_model, is_pretrained
from .schedule import build_optimizer, make_plan
from .task import Task

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
TRIAL_BATCH = 8
"""Images of a timed step, at most; memory and time grow in proportion."""


@dataclass(frozen=True)
class Estimate:
    """Of one process. Activations are the tensors that are saved for the backward pass."""

    classes: int
    parameters: int
    trained: int
    images: int
    steps: int
    steps_per_epoch: int
    batch: int
    micro_batch: int
    accumulation: int
    lr: float
    state_bytes: int
    activation_bytes: int
    seconds: float
    """Of training and evaluation."""
    training_seconds: float
    evaluation_seconds: float
    evaluations: int
    """Of the model, and of its moving average if the recipe has one."""
    validation_images: int
    device: str
    disk_bytes: int = 0
    """Of temporary files, for images that go through the model in parts."""


def estimate(task: Task, processes: int, device: torch.device, source: Source | None = None) -> Estimate:
    """Build the model, and time a training step and an evaluation step on the first images, and reading these.

    Worker processes read while the model computes, so the slower of the two counts; without workers, both do.

    Args:
        source: the recipe's images, if they are open already.
    """
    source = task.open() if source is None else source
    task = task.suited_to(source)
    recipe = task.recipe
    model, _ = build_model(task, source.classes, resume=is_pretrained(recipe.model))  # a dry run downloads nothing
    plan = make_plan(recipe, len(source.train), processes)
    model = model.to(device).train()
    tried = min(TRIAL_BATCH, plan.micro_batch)
    small = replace(plan, batch=tried, micro_batch=tried, processes=1, accumulation=1)
    options: dict[str, Any] = {"seed": recipe.run.seed, "rank": 0, "start": 0, "channels": recipe.data.channels, "workers": 0}
    batch, reading = _read(training_batches(source.train, task.transform(training=True), small, **options))
    workers = worker_count(recipe.data.workers, processes, len(source.train))
    if batch.bad and not recipe.data.skip_bad:
        raise ValueError(f"{batch.bad[0]} (--skip-bad goes on without such images)")

    trial = task.trial(batch, model, source)

    def loss() -> Tensor:
        return task.loss(model, trial.batch.to(device), len(source.classes))

    half = torch.autocast(device.type, HALF.get(recipe.run.precision), enabled=recipe.run.precision in HALF)
    with half:
        activations = activation_bytes(model, loss)
        step = min(_step_seconds(model, loss) for _ in range(3)) * trial.times
        per_image = together(step / tried, reading / tried, workers)
        evaluating = _evaluation_seconds(model, task, source, tried, workers, device)
    training = per_image * plan.micro_batch * plan.accumulation * plan.steps
    evaluations = -(-plan.epochs // recipe.run.evaluate) * (2 if plan.ema_decay else 1)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    optimizer = build_optimizer(model, recipe, plan)
    optimizer.step()
    moments = sum(v.nbytes for state in optimizer.state.values() for v in state.values() if isinstance(v, Tensor) and v.ndim)
    copies = parameters + trained + (parameters if plan.ema_decay else 0)
    return Estimate(
        classes=len(source.classes),
        parameters=parameters,
        trained=trained,
        images=plan.images,
        steps=plan.steps,
        steps_per_epoch=plan.steps_per_epoch,
        batch=plan.batch,
        micro_batch=plan.micro_batch,
        accumulation=plan.accumulation,
        lr=plan.lr,
        state_bytes=4 * copies + moments,
        activation_bytes=int(activations * trial.memory) * plan.micro_batch // tried,
        seconds=training + evaluations * evaluating / processes,
        training_seconds=training,
        evaluation_seconds=evaluations * evaluating / processes,
        evaluations=evaluations,
        validation_images=len(source.val),
        device=str(device),
        disk_bytes=trial.disk_bytes,
    )


def together(computing: float, reading: float, workers: int) -> float:
    """Seconds of an image: workers read at the same time as the model computes, and share the reading."""
    return max(computing, reading / workers) if workers else computing + reading


def _read(batches: Iterator[Batch]) -> tuple[Batch, float]:
    """The first batch, and the seconds it took."""
    start = perf_counter()
    return next(batches), perf_counter() - start


@torch.no_grad()
def _evaluation_seconds(model: nn.Module, task: Task, source: Source, tried: int, workers: int, device: torch.device) -> float:
    """Seconds of one evaluation in one process: of reading, predicting and counting all validation images."""
    count = min(tried, len(source.val))
    shared: dict[str, Any] = {"rank": 0, "processes": 1, "channels": task.recipe.data.channels, "workers": 0}
    batch, reading = _read(evaluation_batches(source.val, task.transform(training=False), count, **shared))
    trial = task.trial(batch, model, source)
    accelerator: Any = SimpleNamespace(device=device)  # all that a meter needs before it computes
    model.eval()
    times = []
    for _ in range(2):
        start = perf_counter()
        task.meter(source, accelerator).update(model, trial.batch.to(device))
        if device.type != "cpu":
            torch.accelerator.synchronize()
        times.append(perf_counter() - start)
    model.train()
    return together(min(times) * trial.times / count, reading / count, workers) * len(source.val)


def activation_bytes(model: nn.Module, loss: Callable[[], Tensor]) -> int:
    """Bytes of the tensors that are saved for the backward pass, each counted once, without the weights."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        loss().backward()
    return sum(saved.values())


def _step_seconds(model: nn.Module, loss: Callable[[], Tensor]) -> float:
    model.zero_grad()
    start = perf_counter()
    found = loss()
    found.backward()
    if found.device.type != "cpu":
        torch.accelerator.synchronize()
    return perf_counter() - start
