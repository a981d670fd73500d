"""A race: contenders are built, warmed up, timed in turn beside a matrix product, and their peak memory is taken.

One that cannot be built, compiled or run is left out, and the record says why in one line.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict

import torch
from torch import Tensor, nn

from .memory import peak_memory
from .product import product
from .record import Record
from .timing import interleave

Call = Callable[[], object]


def race(
    makers: Mapping[str, Callable[[], Call]], kind: str, *, seconds: float, dtype: torch.dtype, device: torch.device
) -> Record:
    """Times under `kind`, "memory" and "errors"; the matrix product is a contender of its own, "product"."""
    calls: dict[str, Call] = {}
    errors: dict[str, str] = {}
    for name, make in makers.items():
        try:
            call = make()
            call()  # compiles, if anything does
        except Exception as error:
            errors[name] = _one_line(error)
        else:
            calls[name] = call
    timings = interleave({**calls, "product": product(dtype, device)}, seconds=seconds, device=device)
    return {
        kind: {name: asdict(timing) for name, timing in timings.items()},
        "memory": {name: peak_memory(call, device) for name, call in calls.items()},
        "errors": errors,
    }


def forward(model: nn.Module, pictures: Tensor) -> Call:
    """A forward pass without gradients."""
    return torch.no_grad()(lambda: model(pictures))


def step(model: nn.Module, pictures: Tensor) -> Call:
    """Forward and backward."""

    def run() -> None:
        model(pictures).sum().backward()
        model.zero_grad(set_to_none=True)

    return run


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
