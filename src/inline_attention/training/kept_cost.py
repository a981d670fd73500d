"""What kept blocks cost on a large image: multiply-adds and seconds of a model for one image."""

from collections.abc import Mapping
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from ..lite.decode import first_line
from ..models.counting import count

LONGEST = 60.0
"""A model that is expected to take more seconds than this for one image is not timed."""
QUICK, ROUNDS = 5.0, 3
"""Models that take less than these seconds are timed in so many rounds, of which the best counts."""


def costs(models: Mapping[str, nn.Module], side: int, channels: int, device: torch.device) -> dict[str, Any]:
    """`side`, and by name of the model the `flops` (multiply-adds, as papers count them) and `seconds` of one image.

    What cannot be measured is None, and `reason` says why. The models come fastest first: the speed of one tells how long the
    next will take.
    """
    found: dict[str, dict[str, Any]] = {}
    speed = 0.0
    for name, model in models.items():
        row: dict[str, Any] = {"flops": None, "seconds": None}
        try:
            row["flops"] = count(model, side).flops
            expected = row["flops"] / speed if speed else 0.0
            if expected > LONGEST:
                row["reason"] = f"not timed: it would take about {expected:,.0f} s"
            else:
                row["seconds"] = _seconds(model, torch.randn(1, channels, side, side, device=device))
                speed = max(speed, row["flops"] / row["seconds"])
        except (ValueError, TypeError, RuntimeError, AssertionError, MemoryError) as error:  # timm asserts its sizes
            row["reason"] = f"not measured: {first_line(error) or type(error).__name__}"
        found[name] = row
    return {"side": side, "models": found}


@torch.no_grad()
def _seconds(model: nn.Module, image: Tensor) -> float:
    """Seconds of a forward pass: the best of several, unless one takes long."""
    times: list[float] = []
    while not times or (times[0] < QUICK and len(times) < ROUNDS):
        start = perf_counter()
        model(image)
        if not image.is_cpu:
            torch.accelerator.synchronize(image.device)
        times.append(perf_counter() - start)
    return min(times)
