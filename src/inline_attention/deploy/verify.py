"""Compares the outputs of an exported file with the model's."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from ..lite.decode import first_line
from ..models.finite import nonfinite

TOLERANCE = 1e-4
"""Largest difference of an output of a float32 file."""
RELATIVE_TOLERANCE = 1e-3
"""The same as a share of the largest output, for models whose outputs are small."""
BATCHES = (1, 2, 5)
SIZES = ((224, 224), (256, 320), (160, 96))
ODD_SIZES = ((101, 67), (137, 251))
"""Where OpenVINO has been wrong: at sides that are no multiple of anything, maps are padded and positions resized."""


@dataclass(frozen=True)
class Case:
    """One comparison: a batch of one size, and the difference of the outputs."""

    batch: int
    height: int
    width: int
    difference: float
    """Largest of all outputs."""
    scale: float
    """Largest output of the model."""
    outputs: int
    """Classes that the outputs are for."""

    def __str__(self) -> str:
        return f"{self.batch} x {self.height} x {self.width}"

    def as_dict(self) -> dict[str, float]:
        """For JSON."""
        return asdict(self)


@torch.no_grad()
def check_sizes(model: nn.Module, channels: int, sizes: Iterable[tuple[int, int]]) -> None:
    """Raise unless the model accepts images of all these sizes, before any work is done."""
    for height, width in sizes:
        try:
            model(torch.zeros(1, channels, height, width))
        except (ValueError, TypeError, IndexError, RuntimeError, AssertionError) as error:
            message = f"{type(model).__name__} does not take images of {height} x {width}"
            raise ValueError(f"{message}: {first_line(error)}") from error


@torch.no_grad()
def compare_outputs(
    model: nn.Module,
    run: Callable[[Tensor], Tensor],
    *,
    channels: int = 3,
    batches: Sequence[int] = BATCHES,
    sizes: Iterable[tuple[int, int]] = SIZES,
    seed: int = 0,
) -> Iterable[Case]:
    """Run the model and the file on random images, every batch at every size; yields each case as it is done.

    Other shapes and numbers that are not finite raise; how large a difference may be is for the caller to decide.
    """
    generator = torch.Generator().manual_seed(seed)
    for height, width in sizes:
        for batch in batches:
            images = torch.randn(batch, channels, height, width, generator=generator)
            expected, got = model(images), run(images)
            here = f"{batch} x {height} x {width}"
            if got.shape != expected.shape:
                raise ValueError(f"at {here} the file gives {tuple(got.shape)}, the model {tuple(expected.shape)}: not written")
            difference = float((got - expected).abs().max())
            if nonfinite(expected) or nonfinite(got):
                whose = "model" if nonfinite(expected) else "file"
                raise FloatingPointError(f"at {here} the {whose} gives numbers that are not finite: not written")
            yield Case(batch, height, width, difference, float(expected.abs().max()), expected.shape[1])
