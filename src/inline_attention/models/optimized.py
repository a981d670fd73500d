"""A model made ready for one size of picture: compiled, where that is faster and gives the same."""

from collections.abc import Callable
from copy import deepcopy
from time import perf_counter

import torch
from torch import Tensor, nn
from typing_extensions import Self

from ..ops.precision import autocast_is_on
from .counting import picture_shape

TOLERANCE = 1e-5
"""How far outputs may be off, as a share of the largest of them."""
ROUNDS = 5


class Optimized(nn.Module):
    """A copy of a model for inference. Batches like the one that it was made for take the fast way, all others the plain one.

    It stays in evaluation mode. Moved to another device or precision, it takes the plain way always: optimize it there.

    Attributes:
        model: the copy, for `forward_features` and whatever else it can do.
        report: what was done, in a sentence.
    """

    def __init__(self, model: nn.Module, fast: Callable[[Tensor], Tensor] | None, made_for: Tensor, report: str) -> None:
        super().__init__()
        self.model = model
        self.report = report
        self.pretrained_cfg = getattr(model, "pretrained_cfg", {})
        self.num_classes = getattr(model, "num_classes", None)
        self._fast: tuple[Callable[[Tensor], Tensor], ...] = (
            () if fast is None else (fast,)
        )  # in a tuple: it is no second module with the same weights
        self._made_for = _kind(made_for)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Pictures (B, in_chans, H, W) -> what the model gives."""
        alike = self._fast and _kind(x) == self._made_for and not autocast_is_on(x.device)
        out: Tensor = self._fast[0](x) if alike else self.model(x)
        return out

    def train(self, mode: bool = True) -> Self:
        """Nothing: it is for inference."""
        return self

    def extra_repr(self) -> str:
        """What `print(model)` shows."""
        return self.report


def _kind(x: Tensor) -> tuple[object, ...]:
    return x.shape, x.stride(), x.dtype, x.device


def optimize(model: nn.Module, size: int | tuple[int, int] | None = None, *, batch: int = 1) -> Optimized:
    """A faster copy of a model for inference on pictures of one size, with the same outputs to 1e-5; the model stays as it is.

    The copy is compiled (`torch.compile`, which takes up to a minute) and run beside the plain one on made-up pictures; the
    compiled form is kept if it gives the same and is faster here. In half precision it hardly ever gives the same.
    `report` says what was done, and with which times.

    Args:
        model: this package's or any other that takes pictures (B, in_chans, H, W) and gives one tensor.
        size: height and width, one number for a square; None for the size that the model is made for.
        batch: how many pictures will come at once.
    """
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    copy = deepcopy(model).eval().requires_grad_(False)
    like = next(copy.parameters())
    pictures = torch.randn(batch, *picture_shape(copy, size), device=like.device, dtype=like.dtype)
    fast, said = _compiled(copy, pictures)
    return Optimized(copy, fast, pictures, said)


@torch.no_grad()
def _compiled(model: nn.Module, pictures: Tensor) -> tuple[Callable[[Tensor], Tensor] | None, str]:
    """The compiled model, if it is better; and a sentence about it."""
    plain = model(pictures)
    if not isinstance(plain, Tensor):
        raise ValueError(f"optimize needs a model that gives one tensor, got a {type(plain).__name__}")
    compiled = torch.compile(model, dynamic=False)
    try:
        fast = compiled(pictures)
    except Exception as error:  # whatever a compiler or its absence may raise: the plain model is always there
        cause = next(iter(str(error).strip().splitlines()), type(error).__name__)
        return None, f"Not compiled: torch.compile failed ({cause})."
    off = float((fast - plain).abs().max() / plain.abs().max().clamp(min=torch.finfo(plain.dtype).tiny))
    if not off <= TOLERANCE:
        return None, f"Not compiled: outputs would differ by {off:.1e} of the largest."
    before, after = _best(model, compiled, pictures)
    times = f"{1e3 * after:.1f} ms instead of {1e3 * before:.1f} ms for {_described(pictures)}"
    if after >= before:
        return None, f"Not compiled: it would take {times}."
    return compiled, f"Compiled: {times}; outputs differ by {off:.1e} of the largest."


def _best(first: Callable[[Tensor], Tensor], second: Callable[[Tensor], Tensor], pictures: Tensor) -> tuple[float, float]:
    """Seconds of both, in turn, the best of some rounds."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for call, taken in zip((first, second), times, strict=True):
            start = perf_counter()
            call(pictures)
            if not pictures.is_cpu:
                torch.accelerator.synchronize(pictures.device)
            taken.append(perf_counter() - start)
    return min(times[0]), min(times[1])


def _described(pictures: Tensor) -> str:
    count, _, height, width = pictures.shape
    return f"{count} picture{'s' if count > 1 else ''} of {height} x {width}"
