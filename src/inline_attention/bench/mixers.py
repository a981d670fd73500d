"""`inline bench mixers`: every kind of attention against the matrix products of its projections.

A case is a batch of at least 3,000 tokens of 192 channels. Its candidates are timed in turn: four products x @ W, the cost of
the projections of any attention layer; and each of `MIXERS` without gate, LePE and positions. InLine is measured with its local
residual too ("inline local"), so that it can be compared with those that have a convolution of their own.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import ceil, isnan, log2
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from ..layers import MIXERS
from .layer import four_products
from .measure import interleave, peak_memory
from .report import GREY, INLINE, SOFTMAX, TEXTBOOK, logarithmic, number
from .result import Record, peak, ratio, seconds

DIM, HEADS = 192, 6
CANDIDATES: dict[str, dict[str, Any]] = {
    **{name: {"local": False} if name == "inline" else {} for name in MIXERS},
    "inline local": {"local": True},
}
"""Name -> arguments of the mixer, whose name is the first word."""
COLORS = {"inline": INLINE, "inline local": INLINE, "softmax": SOFTMAX, "linear": TEXTBOOK}


@dataclass(frozen=True)
class MixerCase:
    """A grid of side x side tokens."""

    side: int

    @property
    def tokens(self) -> int:
        """N, the tokens of one image."""
        return self.side**2

    @property
    def batch(self) -> int:
        """The smallest power of two that gives 3,000 tokens or more."""
        return 2 ** max(0, ceil(log2(3000 / self.tokens)))


MIXER_CASES = [MixerCase(side) for side in (14, 32, 128)]
QUICK_MIXER_CASES = [MixerCase(14)]


def measure_mixers(case: MixerCase, seconds: float, device: torch.device) -> Record:
    """Times of forward and of forward + backward, and peak memory of both."""
    x, grid = torch.randn(case.batch, case.tokens, DIM, device=device), (case.side, case.side)
    mixers = {
        name: MIXERS[name.split()[0]](DIM, HEADS, **arguments, **MIXERS[name.split()[0]].size_options(grid, 0)).to(device)
        for name, arguments in CANDIDATES.items()
    }
    forwards = {"four products": four_products(x), **{name: _forward(mixer, x, grid) for name, mixer in mixers.items()}}
    steps = {name: _step(mixer, x, grid) for name, mixer in mixers.items()}
    return {
        "tokens": case.tokens,
        "batch": case.batch,
        "parameters": {name: sum(p.numel() for p in mixer.parameters()) for name, mixer in mixers.items()},
        "forward": {name: asdict(t) for name, t in interleave(forwards, seconds=seconds, device=device).items()},
        "step": {name: asdict(t) for name, t in interleave(steps, seconds=seconds, device=device).items()},
        "memory": {name: peak_memory(run, device) for name, run in steps.items()},
    }


def _forward(mixer: nn.Module, x: Tensor, grid: tuple[int, int]) -> Callable[[], object]:
    return torch.no_grad()(lambda: mixer(x, grid))


def _step(mixer: nn.Module, x: Tensor, grid: tuple[int, int]) -> Callable[[], object]:
    leaf, slope = x.clone().requires_grad_(), torch.ones_like(x)

    def run() -> None:
        mixer(leaf, grid).backward(slope)
        leaf.grad = None
        mixer.zero_grad(set_to_none=True)

    return run


COLUMNS = ["mixer", "N", "parameters", "forward", "forward + backward", "memory, MB"]
LEGEND = (
    "C = 192 in 6 heads. Times are multiples of four N x C x C products, the cost of the projections of any attention; memory "
    "is the peak of forward + backward in megabytes. All are without gate, LePE and positions; angular, focused, agent and "
    "vit3 have a convolution or biases that belong to them."
)


def rows(records: Sequence[Record]) -> list[list[str]]:
    """The table: a row for each mixer and number of tokens."""
    return [
        [
            name,
            f"{r['tokens']:,}",
            f"{r['parameters'][name]:,}",
            f"{ratio(r, 'forward', name, 'four products'):.2f}",
            f"{seconds(r, 'step', name) / seconds(r, 'forward', 'four products'):.2f}",
            number(peak(r, name) / 1e6),
        ]
        for name in CANDIDATES
        for r in records
    ]


def sentences(records: Sequence[Record]) -> list[str]:
    """The fastest and the slowest at each number of tokens, and how much more a token costs in a large image."""
    out = []
    for r in records:
        times = {name: ratio(r, "forward", name, "four products") for name in CANDIDATES}
        ordered = sorted(times, key=lambda name, times=times: times[name])  # type: ignore[misc]
        listed = ", ".join(f"{name} {times[name]:.2f}" for name in ordered)
        out.append(f"{r['tokens']:,} tokens, forward time over four products': {listed}")
    if len(records) > 1:
        first, last = records[0], records[-1]
        growth = {
            name: seconds(last, "forward", name) / last["batch"] / last["tokens"]
            / (seconds(first, "forward", name) / first["batch"] / first["tokens"])
            for name in CANDIDATES
        }  # fmt: skip
        listed = ", ".join(f"{name} {value:.2f}" for name, value in sorted(growth.items(), key=lambda item: item[1]))
        out.append(f"Time of a token among {last['tokens']:,} over that among {first['tokens']:,}: {listed}")
    return out


def draw(records: Sequence[Record]) -> Figure:
    """Time and peak memory per token against the number of tokens."""
    kinds = {"forward": "forward, µs per token", "step": "forward + backward, µs per token", "memory": "peak, kB per token"}
    figure = Figure(figsize=(12, 5), layout="constrained")
    axes = figure.subplots(1, 3)
    tokens = [r["tokens"] for r in records]
    for axis, (kind, label) in zip(axes, kinds.items(), strict=True):
        for place, name in enumerate(["four products", *CANDIDATES]):
            values = [_per_token(r, kind, name) for r in records]
            if not all(map(isnan, values)):
                style = ":" if name == "four products" else "--" if name == "inline" else "-"
                axis.plot(tokens, values, style, color=COLORS.get(name, GREY), marker=MARKS[place], markersize=4, label=name)
        logarithmic(axis, tokens)
        axis.set(xlabel="tokens per image", title=label)
    axes[-1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


MARKS = ".ov^<>12348spP*hHXDd"


def _per_token(record: Record, kind: str, name: str) -> float:
    count: int = record["batch"] * record["tokens"]
    return peak(record, name) / count / 1e3 if kind == "memory" else 1e6 * seconds(record, kind, name) / count
