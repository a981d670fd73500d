"""`inline bench layer`: InLineAttention against softmax attention and against the matrix products of its projections.

Each case is a batch of at least 3,000 tokens. The candidates of a case are timed in turn:

    four products     x @ W four times, N x C x C each: the cost of the projections of any attention layer
    softmax           `MIXERS["softmax"]`, through SDPA
    textbook          InLine written directly from the paper's equations (`textbook.py`)
    inline            InLineAttention, in the form that it chooses and in the other one

The last two are measured with and without the local residual ("global").
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import ceil, isnan, log, log2

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from ..layers import MIXERS, InLineAttention
from .measure import interleave, peak_memory
from .report import GREY, INLINE, SOFTMAX, TEXTBOOK, cases_where, extremes, logarithmic, number
from .result import Record, memory_ratio, peak, ratio, seconds
from .textbook import TextbookInLine


@dataclass(frozen=True)
class LayerCase:
    """A layer of `dim` channels, heads of 32, on a grid of side x side tokens."""

    side: int
    dim: int

    @property
    def tokens(self) -> int:
        """N, the tokens of one image."""
        return self.side**2

    @property
    def batch(self) -> int:
        """The smallest power of two that gives 3,000 tokens or more."""
        return 2 ** max(0, ceil(log2(3000 / self.tokens)))


LAYER_CASES = [LayerCase(side, dim) for dim in (64, 128, 192, 384, 512) for side in (7, 14, 28, 32, 56, 64, 128)]
QUICK_LAYER_CASES = [LayerCase(side, dim) for dim in (64, 192) for side in (7, 28, 56)]


def measure_layer(case: LayerCase, seconds: float, device: torch.device) -> Record:
    """Times of forward and of forward + backward, and peak memory of the latter."""
    x = torch.randn(case.batch, case.tokens, case.dim, device=device)
    candidates, chosen = _candidates(case, x)
    grid = (case.side, case.side)

    def forward(module: nn.Module) -> Callable[[], object]:
        return torch.no_grad()(lambda: module(x, grid))

    def step(module: nn.Module) -> Callable[[], object]:
        leaf, slope = x.clone().requires_grad_(), torch.ones_like(x)

        def run() -> None:
            module(leaf, grid).backward(slope)
            leaf.grad = None
            module.zero_grad(set_to_none=True)

        return run

    steps = {name: step(module) for name, module in candidates.items()}
    forwards = {"four products": four_products(x), **{name: forward(module) for name, module in candidates.items()}}
    return {
        "tokens": case.tokens,
        "batch": case.batch,
        "chosen": chosen,
        "forward": {name: asdict(t) for name, t in interleave(forwards, seconds=seconds, device=device).items()},
        "step": {name: asdict(t) for name, t in interleave(steps, seconds=seconds, device=device).items()},
        "memory": {name: peak_memory(run, device) for name, run in steps.items()},
    }


def _candidates(case: LayerCase, x: Tensor) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """Name -> module; and for InLine with and without the local residual the name of the form that it chooses for x."""
    heads = case.dim // 32
    candidates: dict[str, nn.Module] = {"softmax": MIXERS["softmax"](case.dim, heads)}
    chosen = {}
    for kind, local in (("inline", True), ("inline global", False)):
        layer = InLineAttention(case.dim, heads, local=local)
        candidates[kind.replace("inline", "textbook")] = TextbookInLine(layer)
        for form in ("folded", "heads"):
            twin = InLineAttention(case.dim, heads, local=local, form=form)
            twin.load_state_dict(layer.state_dict())
            candidates[f"{kind}, {form}"] = twin
        chosen[kind] = f"{kind}, {'folded' if layer.folds(x) else 'heads'}"
    return {name: module.to(x.device) for name, module in candidates.items()}, chosen


def four_products(x: Tensor) -> Callable[[], object]:
    """Four products of the tokens and a square matrix."""
    flat = x.flatten(0, 1)
    weight = torch.randn(x.shape[2], x.shape[2], device=x.device)

    def run() -> None:
        for _ in range(4):
            flat @ weight

    return run


COLUMNS = ["N", "C", "ms", "softmax", "textbook", "inline", "global", "vs textbook", "vs softmax", "memory"]
LEGEND = (
    "Forward: the milliseconds of four N x C x C products, and the times of softmax (SDPA), textbook InLine, InLineAttention "
    "and InLineAttention without its local residual (global) as multiples of these. Forward + backward: the speed of "
    "InLineAttention over textbook's and over softmax's, and its peak memory over textbook's."
)


def over_the_better_form(record: Record, kind: str, name: str) -> float:
    """The time of the chosen form over that of the faster form."""
    return max(ratio(record, kind, name, f"{name}, {form}") for form in ("folded", "heads"))


def growth(records: Sequence[Record], kind: str, name: str, dim: int) -> float:
    """The exponent p if the time of one image grows as N^p from 1,024 to 16,384 tokens."""
    one_image = {r["tokens"]: seconds(r, kind, name) / r["batch"] for r in records if r["dim"] == dim}
    return log(one_image[16_384] / one_image[1_024]) / log(16)


def rows(records: Sequence[Record]) -> list[list[str]]:
    """The table: one row per case."""
    return [
        [
            f"{r['tokens']:,}",
            f"{r['dim']}",
            f"{1e3 * seconds(r, 'forward', 'four products'):.2f}",
            *(
                f"{ratio(r, 'forward', name, 'four products'):.2f}"
                for name in ("softmax", "textbook", "inline", "inline global")
            ),
            *(f"{ratio(r, 'step', name, 'inline'):.2f}" for name in ("textbook", "softmax")),
            number(memory_ratio(r, "inline", "textbook")),
        ]
        for r in records
    ]


def sentences(records: Sequence[Record]) -> list[str]:
    """The least and the greatest of each ratio, and the cases in which softmax is faster."""
    out = []
    large = [r for r in records if r["tokens"] >= 784]
    for name, label in (("inline", "InLineAttention"), ("inline global", "InLineAttention(local=False)")):
        textbook = name.replace("inline", "textbook")
        out += [
            f"{label}, 784 tokens and more",
            f"  forward time over four products': {_span(large, ratio, 'forward', name, 'four products')}",
            f"  forward time, softmax's over its own: {_span(large, ratio, 'forward', 'softmax', name)}",
            f"  forward + backward time, textbook's over its own: {_span(large, ratio, 'step', textbook, name)}",
            f"  forward + backward time, softmax's over its own: {_span(large, ratio, 'step', 'softmax', name)}",
            f"  peak memory over textbook's: {_span(large, memory_ratio, name, textbook)}",
            f"  peak memory over softmax's: {_span(large, memory_ratio, name, 'softmax')}",
            f"{label}, all sizes, time of the chosen form over the faster form",
            f"  forward: {_span(records, over_the_better_form, 'forward', name)}",
            f"  forward + backward: {_span(records, over_the_better_form, 'step', name)}",
        ]
        widths = [{r["dim"] for r in records if r["tokens"] == count} for count in (1_024, 16_384)]
        powers = [f"N^{growth(records, 'forward', name, dim):.2f} (C = {dim})" for dim in sorted(widths[0] & widths[1])]
        if powers:
            out.append(f"{label}, forward time of an image from 1,024 to 16,384 tokens grows as {', '.join(powers)}")
    small = [r for r in records if r["tokens"] < 784]
    out.append(
        f"InLineAttention, below 784 tokens, peak memory over softmax's: {_span(small, memory_ratio, 'inline', 'softmax')}"
    )
    for kind, label in (("forward", "Forward"), ("step", "Forward + backward")):
        speed = partial(ratio, kind=kind, name="softmax", other="inline")
        lost = cases_where(records, speed, _describe, lambda value: value < 1)
        out.append(f"{label}, softmax is faster than InLineAttention at {lost or 'no size measured'}")
    return out


def _span(records: Sequence[Record], value: Callable[..., float], *arguments: str) -> str:
    """The least and the greatest value, each with its case."""
    return " to ".join(extremes(records, lambda r: value(r, *arguments), _describe)) if records else "not measured"


def _describe(record: Record) -> str:
    return f"N = {record['tokens']:,}, C = {record['dim']}"


def draw(records: Sequence[Record]) -> Figure:
    """Time and peak memory per token against the number of tokens, for up to three widths."""
    dims = sorted({r["dim"] for r in records})
    dims = dims if len(dims) <= 3 else [dims[0], dims[len(dims) // 2], dims[-1]]
    lines = {
        "softmax": ("softmax (SDPA)", SOFTMAX, "-"),
        "textbook": ("InLine, textbook", TEXTBOOK, "-"),
        "inline": ("InLineAttention", INLINE, "-"),
        "inline global": ("InLineAttention(local=False)", INLINE, "--"),
        "four products": ("four products", GREY, ":"),
    }
    kinds = {
        "forward": "forward, µs per token",
        "step": "forward + backward, µs per token",
        "memory": "peak memory, kB per token",
    }
    figure = Figure(figsize=(4 * len(dims), 9), layout="constrained")
    axes = figure.subplots(3, len(dims), sharex=True, squeeze=False)
    for column, dim in enumerate(dims):
        chosen = sorted((r for r in records if r["dim"] == dim), key=lambda r: r["tokens"])
        tokens = [r["tokens"] for r in chosen]
        ticks = [t for t, before in zip(tokens, [0, *tokens], strict=False) if t > 2 * before]
        for row, (kind, label) in enumerate(kinds.items()):
            axis = axes[row][column]
            for name, (text, colour, style) in lines.items():
                values = [_per_token(r, kind, name) for r in chosen]
                if not all(map(isnan, values)):
                    axis.plot(tokens, values, style, color=colour, label=text, marker="o", markersize=3)
            logarithmic(axis, ticks)
            if column == 0:
                axis.set_ylabel(label)
        axes[0][column].set_title(f"C = {dim}")
        axes[-1][column].set_xlabel("tokens per image")
    axes[0][0].legend(fontsize=8)
    return figure


def _per_token(record: Record, kind: str, name: str) -> float:
    count: int = record["batch"] * record["tokens"]
    return peak(record, name) / count / 1e3 if kind == "memory" else 1e6 * seconds(record, kind, name) / count
