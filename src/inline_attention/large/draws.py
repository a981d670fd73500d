"""Random draws of one pass through a model in parts: the same ones when a part is computed again.

Drop path drops a branch of a block for the whole image, so it is drawn once for each block, in the order of a usual forward
pass: with the same seed the same branches are dropped. Dropout is drawn for each band from a seed of its own.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from timm.layers import DropPath
from torch import Tensor, nn

from ..layers import Block, Mixer

PART_SEEDS = 2**20
"""Seeds of a block: more than an image has bands, and so many parts of windows."""


class Draws:
    """The draws for one image.

    Args:
        blocks: of the model, in their order. What they draw follows from the state of torch's generator now.
        like: a tensor of the device and the precision of the tokens.
    """

    def __init__(self, blocks: Sequence[Block], like: Tensor) -> None:
        self.device = like.device
        self._paths = [_path_factors(block, like) for block in blocks]
        random = any(map(_has_dropout, blocks))
        self._seed = int(torch.randint(2**40, ()).item()) if random else None

    @contextmanager
    def of(self, block: Block, number: int, part: int) -> Iterator[None]:
        """A context in which a block draws what it has to for one part of the image.

        Args:
            block: whose number in the model is `number`.
            number: of the block.
            part: of the image: any number that only this part has.
        """
        drop_path, factors = block.drop_path, self._paths[number]
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices, enabled=self._seed is not None):
            if self._seed is not None:
                torch.manual_seed(self._seed + number * PART_SEEDS + part)
            if factors is not None:
                block.drop_path = _DrawnPath(factors)  # type: ignore[assignment]
            try:
                yield
            finally:
                block.drop_path = drop_path


class _DrawnPath(nn.Module):
    """Drop path whose draws are known: the mixer's, then the MLP's."""

    def __init__(self, factors: Sequence[Tensor]) -> None:
        super().__init__()
        self._factors, self._calls = factors, 0

    def forward(self, x: Tensor) -> Tensor:
        """x or zeros, scaled as by `DropPath`."""
        self._calls += 1
        return x * self._factors[(self._calls - 1) % len(self._factors)].to(x.dtype)


def _path_factors(block: Block, like: Tensor) -> list[Tensor] | None:
    """What both branches are multiplied by; None if nothing is dropped."""
    path = block.drop_path
    if not isinstance(path, DropPath) or not (path.training and path.drop_prob):
        return None
    return [path(torch.ones(1, 1, 1, dtype=like.dtype, device=like.device)) for _ in range(2)]


def _has_dropout(block: Block) -> bool:
    return any(
        module.training and (module.p if isinstance(module, nn.Dropout) else getattr(module, "attn_drop", 0.0)) > 0
        for module in block.modules()
        if isinstance(module, nn.Dropout | Mixer)
    )
