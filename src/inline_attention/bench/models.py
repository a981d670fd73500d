"""Whole models against the ones that a user of timm would pick instead.

Contenders of a case are timed interleaved: forward passes without gradients, and training steps (forward and backward), whose
peak memory is measured too. timm's models are built for the case's size and run with its fused attention (SDPA).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from timm.models import create_model
from torch import nn

from .memory import peak_memory
from .timing import interleave, settle_allocator

Record = dict[str, Any]


@dataclass(frozen=True)
class ModelCase:
    """A batch of square pictures."""

    inline: str
    rival: str
    size: int
    batch: int
    step: bool = False
    """Measure training steps too."""


DEIT = ("inline_deit_tiny", "deit_tiny_patch16_224")
SWIN = ("inline_swin_tiny", "swin_tiny_patch4_window7_224")
MODEL_CASES = [
    ModelCase(*DEIT, 224, 1),
    ModelCase(*DEIT, 224, 32, step=True),
    ModelCase(*DEIT, 448, 4, step=True),
    ModelCase(*DEIT, 896, 1, step=True),
    ModelCase(*SWIN, 224, 1),
    ModelCase(*SWIN, 224, 8, step=True),
    ModelCase(*SWIN, 448, 2),
    ModelCase(*SWIN, 896, 1),
]
QUICK_MODEL_CASES = [ModelCase(*DEIT, 224, 1, step=True), ModelCase(*SWIN, 224, 1)]

COLUMNS = ["model", "size", "batch", "ms", "speed", "step ms", "step speed", "step memory"]
LEGEND = (
    "Milliseconds of a forward pass of a batch, and how many times as fast as its rival the model is; the same of a training "
    "step; and its peak memory over the rival's. Rivals are timm's deit_tiny_patch16_224 and swin_tiny_patch4_window7_224."
)


def measure_models(cases: Sequence[ModelCase], *, seconds: float, device: torch.device, seed: int) -> Iterator[Record]:
    """One record a case."""
    settle_allocator()
    for case in cases:
        torch.manual_seed(seed)
        yield _measure(case, seconds, device)


def _measure(case: ModelCase, seconds: float, device: torch.device) -> Record:
    pictures = torch.randn(case.batch, 3, case.size, case.size, device=device)
    models = {name: create_model(name, img_size=case.size).to(device).eval() for name in (case.inline, case.rival)}
    forwards = {name: _forward(model, pictures) for name, model in models.items()}
    record: Record = {**asdict(case), "forward": _timed(forwards, seconds, device)}
    if case.step:
        steps = {name: _step(model.train(), pictures) for name, model in models.items()}
        record["training"] = _timed(steps, seconds, device)
        record["memory"] = {name: peak_memory(run, device) for name, run in steps.items()}
    return record


def _timed(calls: dict[str, Callable[[], object]], seconds: float, device: torch.device) -> dict[str, Any]:
    return {name: asdict(timing) for name, timing in interleave(calls, seconds=seconds, device=device).items()}


def _forward(model: nn.Module, pictures: torch.Tensor) -> Callable[[], object]:
    return torch.no_grad()(lambda: model(pictures))


def _step(model: nn.Module, pictures: torch.Tensor) -> Callable[[], object]:
    def run() -> None:
        model(pictures).sum().backward()
        model.zero_grad(set_to_none=True)

    return run


def speed(record: Record, kind: str) -> float:
    """How many times as fast as the rival."""
    ratio: float = record[kind][record["rival"]]["best"] / record[kind][record["inline"]]["best"]
    return ratio


def memory(record: Record) -> float:
    """Peak memory of a training step over the rival's; NaN where it could not be measured."""
    mine, theirs = (record["memory"][record[name]] for name in ("inline", "rival"))
    return mine / theirs if mine and theirs else float("nan")


def rows(records: Sequence[Record]) -> list[list[str]]:
    """The table, a row a case."""
    out = []
    for r in records:
        row = [r["inline"], str(r["size"]), str(r["batch"])]
        row += [f"{1e3 * r['forward'][r['inline']]['best']:.1f}", f"{speed(r, 'forward'):.2f}"]
        if r["step"]:
            row += [f"{1e3 * r['training'][r['inline']]['best']:.1f}", f"{speed(r, 'training'):.2f}", f"{memory(r):.2f}"]
        out.append(row + ["-"] * (len(COLUMNS) - len(row)))
    return out


def sentences(records: Sequence[Record]) -> list[str]:
    """Where the rival wins."""
    steps = [r for r in records if r["step"]]

    def losses(some: Sequence[Record], value: Callable[[Record], float], lost: Callable[[float], bool]) -> str:
        found = [f"{r['inline']} at {r['size']}, batch {r['batch']}: {value(r):.2f}" for r in some if lost(value(r))]
        return "; ".join(found) or "none"

    return [
        f"Forward, the rival is faster than {losses(records, lambda r: speed(r, 'forward'), lambda v: v < 1)}",
        f"Training step, the rival is faster than {losses(steps, lambda r: speed(r, 'training'), lambda v: v < 1)}",
        f"Training step, the rival needs less memory than {losses(steps, memory, lambda v: v > 1)}",
    ]


def draw(records: Sequence[Record], path: Path) -> None:
    """Time of a picture against its size, a panel for each pair of models, the largest batch of each size."""
    pairs = list(dict.fromkeys((r["inline"], r["rival"]) for r in records))
    figure = Figure(figsize=(4.5 * len(pairs), 3.8), layout="constrained")
    axes = figure.subplots(1, len(pairs), squeeze=False)[0]
    for axis, pair in zip(axes, pairs, strict=True):
        largest = {r["size"]: r for r in sorted(records, key=lambda r: r["batch"]) if (r["inline"], r["rival"]) == pair}
        chosen = [largest[size] for size in sorted(largest)]
        for name, colour in zip(pair, ("#1f5fa8", "#c0392b"), strict=True):
            times = [1e3 * r["forward"][name]["best"] / r["batch"] for r in chosen]
            axis.plot([r["size"] for r in chosen], times, "-o", color=colour, label=name, markersize=4)
        for r in chosen:
            place = (r["size"], 1e3 * r["forward"][r["rival"]]["best"] / r["batch"])
            axis.annotate(f"{speed(r, 'forward'):.2f}x", place, textcoords="offset points", xytext=(0, 7), ha="center")
        axis.set(xscale="log", yscale="log", xlabel="side of the picture, pixels", ylabel="forward, ms a picture")
        axis.margins(0.15)
        axis.set_xticks([r["size"] for r in chosen], [str(r["size"]) for r in chosen])
        axis.yaxis.set_major_formatter("{x:g}")
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.savefig(path, dpi=130)
