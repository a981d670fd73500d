"""Whether an exported file gives what the model gives."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from ..plain.wording import first_line

TOLERANCE = 1e-4
"""Largest difference of an output of a float32 file."""
SHARE = 1e-3
"""The same as a share of the largest output, for models that say little."""
BATCHES = (1, 2, 5)
SIZES = ((224, 224), (256, 320), (160, 96))


@dataclass(frozen=True)
class Case:
    """A batch that file and model were both shown, and what came of it."""

    batch: int
    height: int
    width: int
    difference: float
    """Largest, of all outputs."""
    scale: float
    """Largest output of the model."""
    outputs: int
    """How many it gives for a picture."""

    def __str__(self) -> str:
        return f"{self.batch} x {self.height} x {self.width}"

    def as_dict(self) -> dict[str, float]:
        """For a file."""
        return asdict(self)


@torch.no_grad()
def see_that_it_takes(model: nn.Module, channels: int, sizes: Iterable[tuple[int, int]]) -> None:
    """Raise unless the model takes pictures of all these sizes, before any work is done."""
    for height, width in sizes:
        try:
            model(torch.zeros(1, channels, height, width))
        except (ValueError, TypeError, IndexError, RuntimeError, AssertionError) as error:
            told = f"{type(model).__name__} does not take pictures of {height} x {width}"
            raise ValueError(f"{told}: {first_line(error)}") from error


@torch.no_grad()
def compare(
    model: nn.Module,
    run: Callable[[Tensor], Tensor],
    *,
    channels: int = 3,
    batches: Sequence[int] = BATCHES,
    sizes: Iterable[tuple[int, int]] = SIZES,
    seed: int = 0,
) -> Iterable[Case]:
    """Every batch at every size, drawn by the seed, as the model and as the file sees it; cases come as they are done.

    A shape or a number that is no number is an error; how large a difference may be is for the caller to say.
    """
    drawn = torch.Generator().manual_seed(seed)
    for height, width in sizes:
        for batch in batches:
            pictures = torch.randn(batch, channels, height, width, generator=drawn)
            expected, got = model(pictures), run(pictures)
            here = f"{batch} x {height} x {width}"
            if got.shape != expected.shape:
                raise ValueError(f"at {here} the file gives {tuple(got.shape)}, the model {tuple(expected.shape)}: not written")
            difference = float((got - expected).abs().max())
            if not torch.isfinite(expected).all() or not torch.isfinite(got).all():
                whose = "file" if torch.isfinite(expected).all() else "model"
                raise FloatingPointError(f"at {here} the {whose} gives numbers that are not finite: not written")
            yield Case(batch, height, width, difference, float(expected.abs().max()), expected.shape[-1])
