"""`inline train --dry-run`: what a run would be."""

import json
import os
from dataclasses import asdict

from rich.console import Console

from ..training.recipe import Recipe, flat, to_toml


def tell(recipe: Recipe, *, as_json: bool) -> None:
    """Print the recipe with all its fields, then what follows from it and from a few steps on noise."""
    import torch

    from ..training.estimate import estimate

    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    found = estimate(recipe, processes, device or torch.device("cpu"))
    if as_json:
        print(json.dumps({"recipe": flat(recipe), "estimate": asdict(found)}, indent=1))
        return
    states, activations = found.state_bytes / 2**20, found.activation_bytes / 2**20
    hours, minutes = divmod(round(found.seconds / 60), 60)
    parts = f" in {found.accumulation} parts of {found.micro_batch}" if found.accumulation > 1 else ""
    Console().print(to_toml(recipe), highlight=False, markup=False, soft_wrap=True)
    for line in (
        f"{found.parameters:,} parameters, {found.trained:,} of them trained, {found.classes} classes",
        f"{found.pictures:,} pictures, batches of {found.batch}{parts}, {found.steps_per_epoch:,} steps per epoch, "
        f"{found.steps:,} steps, learning rate up to {found.lr:.2e}",
        f"about {states + activations:,.0f} MB: {states:,.0f} of weights, gradients and moments, {activations:,.0f} of "
        "activations; torch itself comes on top",
        f"about {hours} h {minutes:02} min on {found.device}, timed on noise; reading pictures and evaluation come on top",
    ):
        print(line)
