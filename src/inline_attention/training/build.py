"""From a recipe to the things that train: model, optimizer, schedule, moving average."""

from collections.abc import Sequence
from typing import Any

import torch
from timm.optim import create_optimizer_v2, get_optimizer_info, list_optimizers
from timm.scheduler import CosineLRScheduler, MultiStepLRScheduler, PolyLRScheduler
from timm.utils import ModelEmaV3, freeze
from torch import nn

from .lay_in import weights_of
from .plan import Plan
from .randomness import Purpose, reseed
from .recipe import Recipe, nearest
from .task import Task

Schedule = CosineLRScheduler | MultiStepLRScheduler | PolyLRScheduler


def build_model(task: Task, classes: Sequence[str], *, resume: bool = False) -> tuple[nn.Module, str | None]:
    """The model to be trained, and what the loader says of the weights it starts from, unless a run goes on."""
    recipe = task.recipe
    reseed(recipe.run.seed, Purpose.WEIGHTS)
    part = recipe.model
    model = task.make(*task.creation(len(classes)), len(classes))
    backbone: Any = task.backbone(model)
    said = None if part.weights is None or resume else task.lay_in(model, weights_of(part.weights))
    if part.checkpointing:
        try:
            backbone.set_grad_checkpointing(True)
        except (AssertionError, AttributeError) as error:
            raise ValueError(f"model.checkpointing: {part.name} cannot recompute its activations") from error
    for name in recipe.optim.freeze:
        if name not in dict(backbone.named_modules()):
            raise ValueError(f"optim.freeze: {part.name} has no {name!r}{nearest(name, dict(backbone.named_modules()))}")
        freeze(backbone, name)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f"optim.freeze: {', '.join(recipe.optim.freeze)} leaves nothing to train")
    return model, said


def build_optimizer(model: nn.Module, recipe: Recipe, plan: Plan) -> torch.optim.Optimizer:
    """timm's optimizer, with groups for what does not decay and for layers that learn more slowly."""
    optim = recipe.optim
    if optim.name.lower() not in list_optimizers():
        raise ValueError(f"unknown optimizer {optim.name!r}{nearest(optim.name, list_optimizers())}")
    info, usual = get_optimizer_info(optim.name.lower()), type(optim)()
    extra: dict[str, Any] = {}
    for name, has in (("betas", info.has_betas and info.num_betas == 2), ("eps", info.has_eps)):
        if has:
            extra[name] = getattr(optim, name)
        elif getattr(optim, name) != getattr(usual, name):
            raise ValueError(f"optim.{name}: {optim.name} has none, got {getattr(optim, name)}")
    decay = None if optim.layer_decay == 1 else optim.layer_decay
    made = create_optimizer_v2(model, opt=optim.name, lr=plan.lr, weight_decay=optim.weight_decay, layer_decay=decay, **extra)
    if getattr(made, "is_second_order", False):
        raise ValueError(f"optim.name: {optim.name} needs second derivatives, which this loop does not take")
    return made


def build_schedule(optimizer: torch.optim.Optimizer, plan: Plan) -> Schedule:
    """The rate of every step; `Plan.rate` is its formula."""
    usual: dict[str, Any] = {"warmup_t": plan.warmup_steps, "warmup_lr_init": plan.warmup_lr, "t_in_epochs": False}
    usual["warmup_prefix"] = False  # the warm-up is part of the steps, not before them
    if plan.shape == "drops":  # timm's looks one step ahead
        return MultiStepLRScheduler(optimizer, decay_t=[drop + 1 for drop in plan.drops], decay_rate=0.1, **usual)
    falling: dict[str, Any] = {"t_initial": plan.falling_steps, "lr_min": plan.min_lr, **usual}
    if plan.shape == "poly":
        return PolyLRScheduler(optimizer, power=plan.power, **falling)
    return CosineLRScheduler(optimizer, **falling)


def build_average(model: nn.Module, plan: Plan) -> ModelEmaV3 | None:
    """A moving average of the weights, if the recipe wants one."""
    return ModelEmaV3(model, decay=plan.ema_decay) if plan.ema_decay else None


def block_classes(model: nn.Module) -> list[str]:
    """Names of the classes that FSDP shards one by one: the blocks."""
    return sorted({type(module).__name__ for module in model.modules() if type(module).__name__.endswith("Block")})
