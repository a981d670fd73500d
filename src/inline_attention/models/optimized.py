"""`optimize`: a compiled copy of a model for one image size, where that is faster and gives the same outputs."""

from collections.abc import Callable
from copy import deepcopy
from time import perf_counter

import torch
from torch import Tensor, nn
from typing_extensions import Self

from ..ops.sums import autocast_is_on
from .counting import image_shape

TOLERANCE = 1e-5
"""How far outputs may be off, as a share of the largest of them."""
ROUNDS = 5


class Optimized(nn.Module):
    """A copy of a model for inference. Batches of the shape that it was optimized for run compiled, all others eagerly.

    It stays in evaluation mode. On another device or in another precision it always runs eagerly: optimize it there.

    Attributes:
        model: the copy, for `forward_features` and its other methods.
        report: a sentence about what was done.
    """

    def __init__(self, model: nn.Module, fast: Callable[[Tensor], Tensor] | None, example: Tensor, report: str) -> None:
        super().__init__()
        self.model = model
        self.report = report
        self.pretrained_cfg = getattr(model, "pretrained_cfg", {})
        self.num_classes = getattr(model, "num_classes", None)
        self._fast: tuple[Callable[[Tensor], Tensor], ...] = (
            () if fast is None else (fast,)
        )  # in a tuple: it is no second module with the same weights
        self._example = _kind(example)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Images (B, in_chans, H, W) -> the model's output."""
        alike = self._fast and _kind(x) == self._example and not autocast_is_on(x.device)
        out: Tensor = self._fast[0](x) if alike else self.model(x)
        return out

    def train(self, mode: bool = True) -> Self:
        """Do nothing: it is for inference."""
        return self

    def extra_repr(self) -> str:
        """Printed by `print(model)`."""
        return self.report


def _kind(x: Tensor) -> tuple[object, ...]:
    return x.shape, x.stride(), x.dtype, x.device


def optimize(model: nn.Module, size: int | tuple[int, int] | None = None, *, batch: int = 1) -> Optimized:
    """A faster copy of a model for inference on images of one size, with the same outputs to 1e-5; the model is unchanged.

    The copy is compiled (`torch.compile`, which takes up to a minute) and compared with the eager one on random images; the
    compiled form is kept if it gives the same outputs and is faster here. In half precision it hardly ever gives the same.
    `report` has what was done, and the times.

    Args:
        model: this package's or any other that takes images (B, in_chans, H, W) and returns one tensor.
        size: height and width, one number for a square; None for the model's default size.
        batch: the batch size.
    """
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {model!r}")
    copy = deepcopy(model).eval().requires_grad_(False)
    like = next(copy.parameters())
    images = torch.randn(batch, *image_shape(copy, size), device=like.device, dtype=like.dtype)
    fast, report = _compiled(copy, images)
    return Optimized(copy, fast, images, report)


@torch.no_grad()
def _compiled(model: nn.Module, images: Tensor) -> tuple[Callable[[Tensor], Tensor] | None, str]:
    """The compiled model, or None if it is not better; and a sentence about it."""
    plain = model(images)
    if not isinstance(plain, Tensor):
        raise ValueError(f"optimize needs a model that gives one tensor, got a {type(plain).__name__}")
    compiled = torch.compile(model, dynamic=False)
    try:
        fast = compiled(images)
    except Exception as error:  # a compiler, or the lack of one, may raise anything; the eager model always works
        cause = next(iter(str(error).strip().splitlines()), type(error).__name__)
        return None, f"Not compiled: torch.compile failed ({cause})."
    off = float((fast - plain).abs().max() / plain.abs().max().clamp(min=torch.finfo(plain.dtype).tiny))
    if not off <= TOLERANCE:
        return None, f"Not compiled: outputs would differ by {off:.1e} of the largest."
    before, after = _best(model, compiled, images)
    times = f"{1e3 * after:.1f} ms instead of {1e3 * before:.1f} ms for {_described(images)}"
    if after >= before:
        return None, f"Not compiled: it would take {times}."
    return compiled, f"Compiled: {times}; outputs differ by {off:.1e} of the largest."


def _best(first: Callable[[Tensor], Tensor], second: Callable[[Tensor], Tensor], images: Tensor) -> tuple[float, float]:
    """Seconds of both, the best of several rounds, measured in turn."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for call, taken in zip((first, second), times, strict=True):
            start = perf_counter()
            call(images)
            if not images.is_cpu:
                torch.accelerator.synchronize(images.device)
            taken.append(perf_counter() - start)
    return min(times[0]), min(times[1])


def _described(images: Tensor) -> str:
    count, _, height, width = images.shape
    return f"{count} image{'s' if count > 1 else ''} of {height} x {width}"
