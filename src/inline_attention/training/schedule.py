"""Steps, batches and learning rates of a run: the plan, the optimizer, its schedule and the moving average."""

from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from timm.optim import create_optimizer_v2, get_optimizer_info, list_optimizers
from timm.scheduler import CosineLRScheduler, MultiStepLRScheduler, PolyLRScheduler
from timm.utils import ModelEmaV3
from torch import nn

from ..data.loader import BatchPlan
from .config import Recipe, nearest

Scheduler = CosineLRScheduler | MultiStepLRScheduler | PolyLRScheduler


@dataclass(frozen=True)
class Plan(BatchPlan):
    """What follows from a recipe, a number of images and a number of processes.

    A step's batch is split into micro-batches of equal size. Each has a number of its own, which seeds everything random in
    it: whether one process works through four, or four processes through one each, the sum is the same.
    """

    falling_steps: int
    """Steps over which the rate falls."""
    warmup_steps: int
    shape: str
    power: float
    drops: tuple[int, ...]
    """Steps from which the rate is divided by ten."""
    lr: float
    warmup_lr: float
    min_lr: float
    ema_decay: float

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step, over all processes."""
        return self.processes * self.accumulation

    def epoch_ends(self, step: int) -> bool:
        """Whether an epoch, or the run, is over after so many steps."""
        return step % self.steps_per_epoch == 0 or step == self.steps

    def epoch_of(self, step: int) -> int:
        """Number of epochs begun after so many steps."""
        return ceil(step / self.steps_per_epoch)


def make_plan(recipe: Recipe, images: int, processes: int) -> Plan:
    """Split the global batch over processes and time; scale the learning rates by it."""
    optim, schedule, augment = recipe.optim, recipe.schedule, recipe.augment
    batch = optim.batch
    if images < batch:
        raise ValueError(f"{images} training images do not fill a batch of {batch}: take --optim.batch {images} or less")
    if batch % processes:
        raise ValueError(f"optim.batch must be a multiple of the {processes} processes, got {batch}")
    share = batch // processes
    micro = next(size for size in range(min(share, optim.device_batch), 0, -1) if share % size == 0)
    if (augment.mixup or augment.cutmix) and micro % 2:
        raise ValueError(
            f"mixup and cutmix pair images: {batch} over {processes} processes gives batches of {micro}, an odd number"
        )
    factor = batch / optim.rate_batch
    per_epoch = images // batch
    steps = schedule.steps or (schedule.epochs + schedule.cooldown) * per_epoch
    warmup = schedule.warmup_steps or schedule.warmup * per_epoch
    drops = tuple(drop * per_epoch for drop in schedule.drops)
    if warmup > steps:
        raise ValueError(f"the warm-up of {warmup} steps is longer than the run's {steps}: take a shorter one, or a longer run")
    if drops and drops[-1] >= steps:
        raise ValueError(f"schedule.drops {schedule.drops}: the last one is not within the run's {steps} steps")
    return Plan(
        images=images,
        batch=batch,
        micro_batch=micro,
        processes=processes,
        accumulation=share // micro,
        steps_per_epoch=per_epoch,
        steps=steps,
        falling_steps=schedule.steps or schedule.epochs * per_epoch,
        warmup_steps=warmup,
        shape=schedule.shape,
        power=schedule.power,
        drops=drops,
        lr=optim.lr * factor,
        warmup_lr=optim.warmup_lr * factor,
        min_lr=optim.min_lr * factor,
        ema_decay=recipe.ema.decay ** (batch / recipe.ema.rate_batch),
    )


def build_optimizer(model: nn.Module, recipe: Recipe, plan: Plan) -> torch.optim.Optimizer:
    """timm's optimizer, with parameter groups without weight decay, and groups of layers with a lower rate."""
    optim = recipe.optim
    if optim.name.lower() not in list_optimizers():
        raise ValueError(f"unknown optimizer {optim.name!r}{nearest(optim.name, list_optimizers())}")
    info, default = get_optimizer_info(optim.name.lower()), type(optim)()
    extra: dict[str, Any] = {}
    for name, has in (("betas", info.has_betas and info.num_betas == 2), ("eps", info.has_eps)):
        if has:
            extra[name] = getattr(optim, name)
        elif getattr(optim, name) != getattr(default, name):
            raise ValueError(f"optim.{name}: {optim.name} has none, got {getattr(optim, name)}")
    decay = None if optim.layer_decay == 1 else optim.layer_decay
    optimizer = create_optimizer_v2(
        model, opt=optim.name, lr=plan.lr, weight_decay=optim.weight_decay, layer_decay=decay, **extra
    )
    if getattr(optimizer, "is_second_order", False):
        raise ValueError(f"optim.name: {optim.name} needs second derivatives, which this loop does not take")
    return optimizer


def build_scheduler(optimizer: torch.optim.Optimizer, plan: Plan) -> Scheduler:
    """timm's scheduler; `step_update(t)` sets the learning rate of step t, counted from the first step of the run.

    Warm-up in a straight line; after it, with T = `falling_steps`:

    cosine: lr(t) = min + (lr - min) (1 + cos(pi t / T)) / 2, then the lowest rate
    poly:   lr(t) = min + (lr - min) (1 - t / T)^power, then the lowest rate
    drops:  lr(t) = lr / 10^(number of drops up to t)
    """
    shared: dict[str, Any] = {"warmup_t": plan.warmup_steps, "warmup_lr_init": plan.warmup_lr, "t_in_epochs": False}
    shared["warmup_prefix"] = False  # the warm-up is part of the steps, not before them
    if plan.shape == "drops":  # timm's scheduler is one step ahead
        return MultiStepLRScheduler(optimizer, decay_t=[drop + 1 for drop in plan.drops], decay_rate=0.1, **shared)
    falling: dict[str, Any] = {"t_initial": plan.falling_steps, "lr_min": plan.min_lr, **shared}
    if plan.shape == "poly":
        return PolyLRScheduler(optimizer, power=plan.power, **falling)
    return CosineLRScheduler(optimizer, **falling)


def learning_rate(optimizer: Any) -> float:
    """The optimizer's learning rate, before `optim.layer_decay` scales it for a group."""
    groups = optimizer.param_groups
    base = next((group for group in groups if group.get("lr_scale", 1.0) == 1.0), None)
    # if all layers at the full rate are frozen, it follows from any other group, up to rounding
    return float(groups[0]["lr"] / groups[0]["lr_scale"] if base is None else base["lr"])


def build_average(model: nn.Module, plan: Plan) -> ModelEmaV3 | None:
    """A moving average of the weights, if the recipe has one."""
    return ModelEmaV3(model, decay=plan.ema_decay) if plan.ema_decay else None
