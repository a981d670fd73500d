"""`inline train --dry-run`: what a run would be."""

import json
import os
from dataclasses import asdict

from rich.console import Console

from ..training.recipe import flat, to_toml
from ..training.task import Task
from .arguments import usable_device


def tell(task: Task, device: str, *, as_json: bool) -> None:
    """Print the recipe with all its fields, then what follows from it and from a few steps on its first pictures."""
    import torch

    from ..training.estimate import estimate

    there = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    recipe = task.recipe
    found = estimate(task, processes, usable_device(str(there or "cpu") if device == "auto" else device))
    if as_json:
        print(json.dumps({"recipe": flat(recipe), "estimate": asdict(found)}, indent=1))
        return
    states, activations = found.state_bytes / 2**20, found.activation_bytes / 2**20
    minutes, seconds = divmod(round(found.seconds), 60)
    time = f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 60 else f"{minutes} min {seconds:02} s"
    rate = f"learning rate up to {found.lr:.2e} ({recipe.optim.lr:.2e} for {recipe.optim.rate_batch} pictures)"
    parts = f" in {found.accumulation} parts of {found.micro_batch}" if found.accumulation > 1 else ""
    Console().print(to_toml(recipe), highlight=False, markup=False, soft_wrap=True)
    for line in (
        f"{found.parameters:,} parameters, {found.trained:,} of them trained, {found.classes} classes",
        f"{found.pictures:,} pictures, batches of {found.batch}{parts}, {found.steps_per_epoch:,} steps per epoch, "
        f"{found.steps:,} steps, {rate}",
        f"about {states + activations:,.0f} MB: {states:,.0f} of weights, gradients and moments, {activations:,.0f} of "
        "activations; torch itself comes on top",
        f"about {time} on {found.device}, timed on a few pictures; reading pictures and evaluation come on top",
    ):
        print(line)
