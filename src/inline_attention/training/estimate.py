"""What a run will take, before it is begun: parameters, memory and time, from a few steps on noise."""

from dataclasses import dataclass
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from . import build
from .plan import make_plan
from .recipe import Recipe
from .source import open_source

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


def estimate(recipe: Recipe, processes: int, device: torch.device) -> Estimate:
    """Build the model and time a step of it on noise. Reading pictures and evaluation are not in the time."""
    source = open_source(recipe.data)
    model, _ = build.build_model(recipe, source.classes)
    plan = make_plan(recipe, len(source.train), processes)
    model = model.to(device).train()
    tried = min(TRIED, plan.micro_batch)
    pixels = torch.randn(tried, recipe.data.channels, *recipe.data.size, device=device)
    half = torch.autocast(device.type, HALF.get(recipe.run.precision), enabled=recipe.run.precision in HALF)
    with half:
        kept = kept_bytes(model, pixels)
        per_picture = min(_step_seconds(model, pixels) for _ in range(3)) / tried
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


def kept_bytes(model: nn.Module, pixels: Tensor) -> int:
    """Bytes of the tensors that the backward pass keeps, each counted once, weights not."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        model(pixels).sum().backward()
    return sum(kept.values())


def _step_seconds(model: nn.Module, pixels: Tensor) -> float:
    model.zero_grad()
    start = perf_counter()
    classes = torch.zeros(len(pixels), dtype=torch.long, device=pixels.device)
    F.cross_entropy(model(pixels), classes).backward()
    if pixels.device.type != "cpu":
        torch.accelerator.synchronize()
    return perf_counter() - start
