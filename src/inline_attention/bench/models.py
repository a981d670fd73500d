"""Whole models against the ones that a user of timm would pick instead, and against their own softmax twins.

timm's models are built for the case's size and run with its fused attention (SDPA). In a compiled case both are compiled.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from timm.models import create_model
from torch import Tensor, nn

from ..models.counting import count
from .race import Call, forward, race, step
from .record import Record

TWIN = "twin"
"""A rival that is the model itself with softmax for attention."""


@dataclass(frozen=True)
class ModelCase:
    """A batch of square pictures."""

    model: str
    rival: str
    """A model of timm's, or TWIN."""
    size: int
    batch: int
    mode: Literal["forward", "step"] = "forward"
    """A step is forward and backward."""
    compiled: bool = False
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"


DEIT = ("inline_deit_tiny", "deit_tiny_patch16_224")
SWIN = ("inline_swin_tiny", "swin_tiny_patch4_window7_224")
TWINS = [(model, TWIN) for model in ("inline_swin_tiny", "inline_cswin_tiny", "inline_pvt_tiny")]
MODEL_CASES = [
    *(ModelCase(*DEIT, size, batch) for size, batch in ((224, 1), (224, 16), (448, 4), (896, 1), (1792, 1))),
    *(ModelCase(*DEIT, size, batch, compiled=True) for size, batch in ((224, 16), (448, 4), (896, 1))),
    *(ModelCase(*DEIT, size, batch, "step") for size, batch in ((224, 16), (448, 4), (896, 1))),
    *(ModelCase(*SWIN, size, batch) for size, batch in ((224, 8), (896, 1))),
    *(ModelCase(*pair, 224, 8) for pair in TWINS),
    *(ModelCase(*pair, 224, 8, compiled=True) for pair in TWINS),
    *(ModelCase(*pair, 224, 8, "step") for pair in TWINS),
    ModelCase("inline_pvt_tiny", TWIN, 448, 2),
]
QUICK_MODEL_CASES = [
    ModelCase(*DEIT, 224, 1),
    ModelCase(*DEIT, 224, 1, compiled=True),
    ModelCase(*DEIT, 448, 1, "step"),
    ModelCase("inline_pvt_tiny", TWIN, 224, 1),
]


def measure_model(case: ModelCase, seconds: float, device: torch.device) -> Record:
    """Times and peak memory of model and rival, and the multiply-adds of the model's forward pass of one picture."""
    torch.compiler.reset()  # frees what the case before compiled
    dtype: torch.dtype = getattr(torch, case.dtype)
    pictures = torch.randn(case.batch, 3, case.size, case.size, device=device).to(dtype)
    makers = {"model": partial(_make, case, pictures, build_model), "rival": partial(_make, case, pictures, build_rival)}
    with torch.device("meta"):
        flops = count(create_model(case.model, img_size=case.size), case.size).flops
    return {"flops": flops, **race(makers, case.mode, seconds=seconds, dtype=dtype, device=device)}


def build_model(model: str, rival: str, size: int) -> nn.Module:
    """The model itself, for pictures of that size."""
    return create_model(model, img_size=size)


def build_rival(model: str, rival: str, size: int) -> nn.Module:
    """Its rival."""
    return create_model(model, img_size=size, mixer="softmax") if rival == TWIN else create_model(rival, img_size=size)


def _make(case: ModelCase, pictures: Tensor, build: Callable[[str, str, int], nn.Module]) -> Call:
    model = build(case.model, case.rival, case.size).to(pictures.device, pictures.dtype).train(case.mode == "step")
    if case.compiled:
        model.compile(dynamic=False)
    return (step if case.mode == "step" else forward)(model, pictures)
