"""A model made ready for one size of picture: what can be done once is done once, and what is faster compiled is compiled."""

from collections.abc import Callable
from copy import deepcopy
from time import perf_counter

import torch
from timm.layers import to_2tuple
from torch import Tensor, nn

from .backbone import Backbone

TOLERANCE = 1e-5
"""How far outputs may be off, as a share of the largest of them."""
ROUNDS = 5


class Optimized(nn.Module):
    """A copy of a model for inference. Batches like the one that it was made for take the fast way, all others the plain one.

    Attributes:
        model: the copy, in evaluation mode.
        report: what was done, a sentence a line.
    """

    def __init__(self, model: nn.Module, fast: Callable[[Tensor], Tensor], made_for: Tensor, report: list[str]) -> None:
        super().__init__()
        self.model = model
        self.report = "\n".join(report)
        self._fast, self._made_for = fast, (made_for.shape, made_for.dtype, made_for.device)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Pictures (B, in_chans, H, W) -> what the model gives."""
        out: Tensor = (self._fast if (x.shape, x.dtype, x.device) == self._made_for else self.model)(x)
        return out

    def extra_repr(self) -> str:
        """What `print(model)` shows."""
        return self.report


def optimize(model: nn.Module, size: int | tuple[int, int] | None = None, *, batch: int = 1) -> Optimized:
    """A faster copy of a model for inference on pictures of one size, with the same outputs to 1e-5; the model stays as it is.

    Position embeddings are resampled for the size. Then the copy is compiled (`torch.compile`, which takes up to a minute), run
    beside the plain one on made-up pictures, and the compiled form is kept if it gives the same and is faster here. `report`
    says what was done, and with which times.

    Args:
        model: this package's or any other that takes pictures (B, in_chans, H, W).
        size: height and width, one number for a square; None for the size that the model is made for.
        batch: how many pictures will come at once.
    """
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    copy = deepcopy(model).eval().requires_grad_(False)
    height, width = to_2tuple(getattr(copy, "img_size", 224) if size is None else size)
    report = []
    if isinstance(copy, Backbone) and (height, width) != copy.img_size:
        copy.check_size(height, width)
        copy.set_input_size((height, width))
        report.append(f"Made for {height} x {width} pixels: position embeddings, if any, are resampled once.")
    like = next(copy.parameters())
    pictures = torch.randn(batch, getattr(copy, "in_chans", 3), height, width, device=like.device, dtype=like.dtype)
    fast, said = _compiled(copy, pictures)
    return Optimized(copy, fast, pictures, [*report, said])


@torch.no_grad()
def _compiled(model: nn.Module, pictures: Tensor) -> tuple[Callable[[Tensor], Tensor], str]:
    """The compiled model, or the model itself where that is no better; and why."""
    plain = model(pictures)
    compiled = torch.compile(model, dynamic=False)
    try:
        fast = compiled(pictures)
    except Exception as error:  # whatever a compiler or its absence may raise: the plain model is always there
        cause = next(iter(str(error).strip().splitlines()), type(error).__name__)
        return model, f"Not compiled: torch.compile failed ({cause})."
    off = float((fast - plain).abs().max() / plain.abs().max().clamp(min=torch.finfo(plain.dtype).tiny))
    if not off <= TOLERANCE:
        return model, f"Not compiled: outputs would differ by {off:.1e} of the largest."
    before, after = _best(model, compiled, pictures)
    times = f"{1e3 * after:.1f} ms instead of {1e3 * before:.1f} ms for {_described(pictures)}"
    if after >= before:
        return model, f"Not compiled: it would take {times}."
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
