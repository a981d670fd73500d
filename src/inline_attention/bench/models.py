"""`inline bench models`: whole models against comparable models of timm, and against themselves with softmax attention.

timm's models are built for the case's image size and run with fused attention (SDPA). In a compiled case both are compiled.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from timm.models import create_model
from torch import Tensor, nn

from ..models.counting import count
from .measure import PRODUCT_FLOPS, Call, forward, measure_candidates, step
from .report import GREY, INLINE, SOFTMAX, TEXTBOOK, cases_where, extremes, number
from .result import Record, memory_ratio, ratio, seconds, spread

TWIN = "twin"
"""The name of the rival that is the same model with softmax attention."""


@dataclass(frozen=True)
class ModelCase:
    """A batch of square images."""

    model: str
    rival: str
    """The model to compare with: a name of timm's, or TWIN."""
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
    """Times and peak memory of "model" and "rival", and the multiply-adds of one image in the model's forward pass."""
    torch.compiler.reset()  # frees the graphs of the case before
    dtype: torch.dtype = getattr(torch, case.dtype)
    images = torch.randn(case.batch, 3, case.size, case.size, device=device).to(dtype)
    makers = {"model": partial(_make, case, images, build_model), "rival": partial(_make, case, images, build_rival)}
    with torch.device("meta"):
        flops = count(create_model(case.model, img_size=case.size), case.size).flops
    return {"flops": flops, **measure_candidates(makers, case.mode, seconds=seconds, dtype=dtype, device=device)}


def build_model(model: str, rival: str, size: int) -> nn.Module:
    """The model itself, built for images of this size."""
    return create_model(model, img_size=size)


def build_rival(model: str, rival: str, size: int) -> nn.Module:
    """The model that it is compared with, built for the same size."""
    return create_model(model, img_size=size, mixer="softmax") if rival == TWIN else create_model(rival, img_size=size)


def _make(case: ModelCase, images: Tensor, build: Callable[[str, str, int], nn.Module]) -> Call:
    model = build(case.model, case.rival, case.size).to(images.device, images.dtype).train(case.mode == "step")
    if case.compiled:
        model.compile(dynamic=False)
    return (step if case.mode == "step" else forward)(model, images)


COLUMNS = ["model", "rival", "size", "batch", "mode", "ms", "spread", "speed", "memory", "share"]
LEGEND = (
    "Milliseconds per batch in the best round (ms); the median round over the best one (spread); the speed of the model over "
    "its rival's (speed); its peak memory over the rival's (memory); and its multiply-adds per second, by the paper's count, "
    "over those of a 1024 x 1024 x 1024 matrix product (share). Rivals are timm's deit_tiny_patch16_224 and "
    "swin_tiny_patch4_window7_224, and the same model with softmax attention (twin). Modes: a forward pass; a forward pass "
    "with both models compiled by torch.compile; and a training step, forward and backward, which counts as three forward "
    "passes in the share."
)


def speed(record: Record) -> float:
    """The model's speed over its rival's."""
    return ratio(record, record["mode"], "rival", "model")


def memory(record: Record) -> float:
    """The model's peak memory over its rival's."""
    return memory_ratio(record, "model", "rival")


def share(record: Record) -> float:
    """The model's multiply-adds per second over those of the matrix product."""
    mode: str = record["mode"]
    passes = 3 if mode == "step" else 1  # a backward pass has two products for each one of the forward pass
    flops: int = 2 * record["flops"] * record["batch"] * passes
    return flops / seconds(record, mode, "model") / (PRODUCT_FLOPS / seconds(record, mode, "product"))


def rows(records: Sequence[Record]) -> list[list[str]]:
    """The table: one row per case."""
    return [
        [
            r["model"],
            r["rival"] if r["rival"] == TWIN else "timm",
            f"{r['size']}",
            f"{r['batch']}",
            _mode(r),
            number(1e3 * seconds(r, r["mode"], "model"), 1),
            *map(number, (spread(r, r["mode"], "model"), speed(r), memory(r), share(r))),
        ]
        for r in records
    ]


def sentences(records: Sequence[Record]) -> list[str]:
    """The worst numbers for each mode and kind of rival, the cases in which the rival is better, and what failed."""
    out = []
    for mode in dict.fromkeys(map(_mode, records)):
        for twin, label in ((False, "timm"), (True, "softmax twins")):
            group = [r for r in records if _mode(r) == mode and (r["rival"] == TWIN) == twin]
            if not group:
                continue
            slower = cases_where(group, speed, _describe, lambda value: value < 1)
            larger = cases_where(group, memory, _describe, lambda value: value > 1)
            out += [
                f"{mode.capitalize()}, against {label}",
                f"  least speed over the rival's: {extremes(group, speed, _describe)[0]}",
                f"  greatest memory over the rival's: {extremes(group, memory, _describe)[1]}",
                f"  least share of the matrix product's rate: {extremes(group, share, _describe)[0]}",
                f"  the rival is faster than: {slower or 'none'}",
                f"  the rival needs less memory than: {larger or 'none'}",
            ]
    failed = [f"Failed: {name} of {_describe(r)}, {_mode(r)}: {why}" for r in records for name, why in r["errors"].items()]
    return out + failed


def draw(records: Sequence[Record]) -> Figure:
    """Speed over the rival's: one bar per case."""
    colours = defaultdict(lambda: GREY, {"forward": INLINE, "compiled": SOFTMAX, "step": TEXTBOOK})
    figure = Figure(figsize=(8, 1.2 + 0.28 * len(records)), layout="constrained")
    axis = figure.subplots()
    names = [f"{r['model']} / {r['rival']}, {r['size']}, batch {r['batch']}" for r in records]
    bars = axis.barh(range(len(records)), [speed(r) for r in records], color=[colours[_mode(r)] for r in records])
    axis.bar_label(bars, [number(speed(r)) for r in records], padding=3, fontsize=8)
    axis.axvline(1, color="black", linewidth=1)
    axis.set_yticks(range(len(records)), names, fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel("speed over the rival's")
    axis.margins(x=0.1, y=0.01)
    modes = dict.fromkeys(map(_mode, records))
    axis.legend(handles=[Patch(color=colours[mode], label=mode) for mode in modes], fontsize=8)
    return figure


def _mode(record: Record) -> str:
    dtype = "" if record["dtype"] == "float32" else f" {record['dtype']}"
    if not record["compiled"]:
        return f"{record['mode']}{dtype}"
    return ("compiled" if record["mode"] == "forward" else "compiled step") + dtype


def _describe(record: Record) -> str:
    return f"{record['model']} at {record['size']}, batch {record['batch']}"
