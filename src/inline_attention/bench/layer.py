"""The layer against what a user would pick instead, and against the matrix products that it cannot do without.

Each case is a batch of at least 3,000 tokens. Contenders of a case are timed interleaved:

    four products     x @ W four times, N x C x C each: what the projections of any attention layer cost
    softmax           `MIXERS["softmax"]`, through SDPA
    textbook          InLine as one would write it from the paper (`textbook.py`)
    inline            InLineAttention: the form that it chooses, and the other one

The last two come with and without the local residual ("global").
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import ceil, log2

import torch
from torch import Tensor, nn

from ..layers import MIXERS, InLineAttention
from .memory import peak_memory
from .record import Record
from .textbook import TextbookInLine
from .timing import interleave


@dataclass(frozen=True)
class LayerCase:
    """A layer of `dim` channels, heads of 32, on a grid of side x side tokens."""

    side: int
    dim: int

    @property
    def tokens(self) -> int:
        """N."""
        return self.side**2

    @property
    def batch(self) -> int:
        """The least power of two that makes 3,000 tokens or more."""
        return 2 ** max(0, ceil(log2(3000 / self.tokens)))


LAYER_CASES = [LayerCase(side, dim) for dim in (64, 128, 192, 384, 512) for side in (7, 14, 28, 32, 56, 64, 128)]
QUICK_LAYER_CASES = [LayerCase(side, dim) for dim in (64, 192) for side in (7, 28, 56)]


def measure_layer(case: LayerCase, seconds: float, device: torch.device) -> Record:
    """Times of forward and of forward + backward, and peak memory of the latter."""
    x = torch.randn(case.batch, case.tokens, case.dim, device=device)
    contenders, chosen = _contenders(case, x)
    grid = (case.side, case.side)

    def forward(module: nn.Module) -> Callable[[], object]:
        return torch.no_grad()(lambda: module(x, grid))

    def step(module: nn.Module) -> Callable[[], object]:
        given, slope = x.clone().requires_grad_(), torch.ones_like(x)

        def run() -> None:
            module(given, grid).backward(slope)
            given.grad = None
            module.zero_grad(set_to_none=True)

        return run

    steps = {name: step(module) for name, module in contenders.items()}
    forwards = {"four products": _products(x), **{name: forward(module) for name, module in contenders.items()}}
    return {
        "tokens": case.tokens,
        "batch": case.batch,
        "chosen": chosen,
        "forward": {name: asdict(t) for name, t in interleave(forwards, seconds=seconds, device=device).items()},
        "step": {name: asdict(t) for name, t in interleave(steps, seconds=seconds, device=device).items()},
        "memory": {name: peak_memory(run, device) for name, run in steps.items()},
    }


def _contenders(case: LayerCase, x: Tensor) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """Name -> module; and for both kinds of InLine the name of the form that it chooses here."""
    heads = case.dim // 32
    contenders: dict[str, nn.Module] = {"softmax": MIXERS["softmax"](case.dim, heads)}
    chosen = {}
    for kind, local in (("inline", True), ("inline global", False)):
        layer = InLineAttention(case.dim, heads, local=local)
        contenders[kind.replace("inline", "textbook")] = TextbookInLine(layer)
        for form in ("folded", "heads"):
            twin = InLineAttention(case.dim, heads, local=local, form=form)
            twin.load_state_dict(layer.state_dict())
            contenders[f"{kind}, {form}"] = twin
        chosen[kind] = f"{kind}, {'folded' if layer.folds(x) else 'heads'}"
    return {name: module.to(x.device) for name, module in contenders.items()}, chosen


def _products(x: Tensor) -> Callable[[], object]:
    flat = x.flatten(0, 1)
    weight = torch.randn(x.shape[2], x.shape[2], device=x.device)

    def run() -> None:
        for _ in range(4):
            flat @ weight

    return run
