"""What a run will take, before it is begun: parameters, memory and time, from a few steps on the first pictures."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from . import build
from .loader import training_batches
from .plan import make_plan
from .task import Task

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
TRIED = 8
"""Pictures that are tried at once, at most; memory and time grow in proportion."""


@dataclass(frozen=True)
class Estimate:
    """Of one process. Activations are counted as the tensors that the backward pass keeps."""

    classes: int
    parameters: int
    trained: int
    pictures: int
    steps: int
    steps_per_epoch: int
    batch: int
    micro_batch: int
    accumulation: int
    lr: float
    state_bytes: int
    activation_bytes: int
    seconds: float
    device: str


def estimate(task: Task, processes: int, device: torch.device) -> Estimate:
    """Build the model and time a step of it on the first pictures. Reading pictures and evaluation are not in the time."""
    recipe, source = task.recipe, task.open()
    model, _ = build.build_model(task, source.classes)
    plan = make_plan(recipe, len(source.train), processes)
    model = model.to(device).train()
    tried = min(TRIED, plan.micro_batch)
    few = replace(plan, batch=tried, micro_batch=tried, processes=1, accumulation=1)
    how: dict[str, Any] = {"seed": recipe.run.seed, "rank": 0, "start": 0, "channels": recipe.data.channels, "workers": 0}
    batch = next(iter(training_batches(source.train, task.show(training=True), few, **how)))
    if batch.bad and not recipe.data.skip_bad:
        raise ValueError(f"{batch.bad[0]} (--skip-bad goes on without such pictures)")

    def loss() -> Tensor:
        return task.loss(model, batch.to(device), len(source.classes))

    half = torch.autocast(device.type, HALF.get(recipe.run.precision), enabled=recipe.run.precision in HALF)
    with half:
        kept = kept_bytes(model, loss)
        per_picture = min(_step_seconds(model, loss) for _ in range(3)) / tried
    parameters = sum(parameter.numel() for parameter in model.parameters())
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    optimizer = build.build_optimizer(model, recipe, plan)
    optimizer.step()
    moments = sum(v.nbytes for state in optimizer.state.values() for v in state.values() if isinstance(v, Tensor) and v.ndim)
    copies = parameters + trained + (parameters if plan.ema_decay else 0)
    return Estimate(
        classes=len(source.classes),
        parameters=parameters,
        trained=trained,
        pictures=plan.pictures,
        steps=plan.steps,
        steps_per_epoch=plan.steps_per_epoch,
        batch=plan.batch,
        micro_batch=plan.micro_batch,
        accumulation=plan.accumulation,
        lr=plan.lr,
        state_bytes=4 * copies + moments,
        activation_bytes=kept * plan.micro_batch // tried,
        seconds=per_picture * plan.micro_batch * plan.accumulation * plan.steps,
        device=str(device),
    )


def kept_bytes(model: nn.Module, loss: Callable[[], Tensor]) -> int:
    """Bytes of the tensors that the backward pass keeps, each counted once, weights not."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        loss().backward()
    return sum(kept.values())


def _step_seconds(model: nn.Module, loss: Callable[[], Tensor]) -> float:
    model.zero_grad()
    start = perf_counter()
    found = loss()
    found.backward()
    if found.device.type != "cpu":
        torch.accelerator.synchronize()
    return perf_counter() - start
