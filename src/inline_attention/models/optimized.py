"""`optimize`: a compiled copy of a model for one image size, where that is faster and gives the same outputs."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from ..ops.sums import autocast_is_on
from .counting import image_shape

TOLERANCE = 1e-5
"""How far outputs may be off, as a share of the largest of them."""
ROUNDS = 5
FORMS: dict[str, dict[str, Any]] = {"Compiled": {}, "Compiled with frozen weights": {"freezing": True}}
"""What is tried: options of torch.compile. Frozen weights are constants of the code, packed once for the machine's products."""


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

    The copy is compiled twice (`torch.compile`, up to a minute each), as it is and with frozen weights. Both are compared with
    the eager copy on random images; the fastest of those that give the same outputs is kept. In half precision hardly any does.
    `report` has what was done, and the times.

    Frozen weights do not change with those of `model` inside the copy, and are in memory twice.

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
    """The fastest compiled form, or None if none is better; and a sentence about it."""
    plain = model(images)
    if not isinstance(plain, Tensor):
        raise ValueError(f"optimize needs a model that gives one tensor, got a {type(plain).__name__}")
    forms: dict[str, Callable[[Tensor], Tensor]] = {}
    differences: dict[str, float] = {}
    refused: dict[str, str] = {}
    for name, options in FORMS.items():
        compiled = torch.compile(model, dynamic=False, options=options or None)
        try:
            fast = compiled(images)
        except Exception as error:  # a compiler, or the lack of one, may raise anything; the eager model always works
            cause = next(iter(str(error).strip().splitlines()), type(error).__name__)
            refused[name] = f"torch.compile failed ({cause})"
            continue
        differences[name] = _difference(fast, plain)
        if differences[name] <= TOLERANCE:
            forms[name] = compiled
        else:
            refused[name] = f"outputs would differ by {differences[name]:.1e} of the largest"
    if not forms:
        return None, f"Not compiled: {'; '.join(dict.fromkeys(refused.values()))}."
    return _choose(model, forms, images, differences, refused)


def _choose(
    model: nn.Module,
    forms: Mapping[str, Callable[[Tensor], Tensor]],
    images: Tensor,
    differences: Mapping[str, float],
    refused: Mapping[str, str],
) -> tuple[Callable[[Tensor], Tensor] | None, str]:
    """The fastest of the compiled forms, or None if the eager model is faster; and a sentence about it."""
    before, *after = _best([model, *forms.values()], images)
    times = dict(zip(forms, after, strict=True))
    best = min(times, key=times.__getitem__)
    said = f"{1e3 * times[best]:.1f} ms instead of {1e3 * before:.1f} ms for {_described(images)}"
    if times[best] >= before:
        return None, f"Not compiled: it would take {said}."
    others = [f"{name.lower()}: {1e3 * time:.1f} ms" for name, time in times.items() if name != best]
    others += [f"{name.lower()}: {reason}" for name, reason in refused.items()]
    rest = f" ({'; '.join(others)})" if others else ""
    return forms[best], f"{best}: {said}{rest}; outputs differ by {differences[best]:.1e} of the largest."


def _difference(one: Tensor, other: Tensor) -> float:
    """The largest difference, as a share of the largest output."""
    return float((one - other).abs().max() / other.abs().max().clamp(min=torch.finfo(other.dtype).tiny))


def _best(calls: list[Callable[[Tensor], Tensor]], images: Tensor) -> list[float]:
    """Seconds of each, the best of several rounds, measured in turn."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for call, taken in zip(calls, times, strict=True):
            start = perf_counter()
            call(images)
            if not images.is_cpu:
                torch.accelerator.synchronize(images.device)
            taken.append(perf_counter() - start)
    return [min(taken) for taken in times]


def _described(images: Tensor) -> str:
    count, _, height, width = images.shape
    return f"{count} image{'s' if count > 1 else ''} of {height} x {width}"
