"""One picture, larger and larger: a model against softmax and against the textbook form of itself."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from .models import DEIT, TWIN, build_model, build_rival
from .race import Call, forward, race
from .record import Record
from .textbook import as_textbook


@dataclass(frozen=True)
class ResolutionCase:
    """A forward pass of one square picture, in fp32."""

    model: str
    rival: str
    """The softmax model: one of timm's, or TWIN."""
    size: int
    most: int
    """Pixels a side up to which softmax runs; beyond, it would take too long."""
    textbook: bool = False
    """Whether the textbook form runs too."""


RESOLUTION_CASES = [
    *(ResolutionCase(*DEIT, size, most=1792, textbook=True) for size in (224, 448, 896, 1792, 3584)),
    *(ResolutionCase("inline_pvt_tiny", TWIN, size, most=896) for size in (448, 896, 1792, 3584)),
]
QUICK_RESOLUTION_CASES = [ResolutionCase(*DEIT, size, most=448, textbook=True) for size in (224, 448, 896)]


def measure_resolution(case: ResolutionCase, seconds: float, device: torch.device) -> Record:
    """Times and peak memory of "inline", "softmax" and "textbook"."""
    picture = torch.randn(1, 3, case.size, case.size, device=device)
    builders: dict[str, Callable[[str, str, int], nn.Module]] = {"inline": build_model}
    if case.size <= case.most:
        builders["softmax"] = build_rival
    if case.textbook:
        builders["textbook"] = _build_textbook
    makers = {name: partial(_make, case, picture, build) for name, build in builders.items()}
    return race(makers, "forward", seconds=seconds, dtype=picture.dtype, device=device)


def _build_textbook(model: str, rival: str, size: int) -> nn.Module:
    return as_textbook(build_model(model, rival, size))


def _make(case: ResolutionCase, picture: Tensor, build: Callable[[str, str, int], nn.Module]) -> Call:
    return forward(build(case.model, case.rival, case.size).to(picture.device).eval(), picture)
