"""One pre-norm block around any mixer."""

import operator
from collections.abc import Callable
from functools import reduce
from math import prod
from typing import Any

import torch
from timm.layers import DropPath
from torch import Tensor, nn

from ..ops.checks import Grid
from ..ops.masking import zero_masked
from ..ops.precision import autocast_is_on
from .inline import InLineAttention
from .mixer import Mixer
from .mlp import DepthwiseMlp, Mlp
from .residual import is_watched
from .summary import Summary

LARGE = 2**23
"""Numbers in the tokens of a picture, 32 MB of them, from which on a block without gradients works in bands: in memory that the
allocator keeps and caches can hold, where larger tensors would be handed back to the system and fetched anew each time."""
BAND = 8192
"""Tokens of a band, or one row."""


class Block(nn.Module):
    """x + mixer(norm(x)), then x + mlp(norm(x)); shapes (B, N, C) -> (B, N, C).

    Args:
        mixer: the attention, one of `MIXERS`; it says how many channels the block has.
        mlp_ratio: hidden channels of the MLP over channels.
        drop: dropout in the MLP.
        drop_path: stochastic depth of both branches.
        norm_layer: makes a norm from a number of channels.
        raw_local: make the kernels of the local residual from the block's input as it is, and not after its norm (CSwin).
    """

    def __init__(
        self,
        mixer: Mixer,
        *,
        mlp_ratio: float = 4.0,
        drop: float = 0.0,
        drop_path: float = 0.0,
        norm_layer: Callable[[int], nn.Module] = nn.LayerNorm,
        raw_local: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(mixer, Mixer):
            raise ValueError(f"mixer must be an instance of one of MIXERS, such as InLineAttention(192, 6), got {mixer!r}")
        dim, hidden = mixer.dim, int(mixer.dim * mlp_ratio)
        self.norm1 = norm_layer(dim)
        self.mixer = mixer
        self.norm2 = norm_layer(dim)
        self.mlp: nn.Module
        if mixer.depthwise_mlp:
            self.mlp = DepthwiseMlp(dim, hidden, drop=drop, grid_dims=mixer.grid_dims)
        else:
            self.mlp = Mlp(dim, hidden, drop=drop)
        self.drop_path = DropPath(drop_path)
        self.raw_local = raw_local

    def forward(self, x: Tensor, grid: Grid, *, num_prefix_tokens: int = 0, mask: Tensor | None = None) -> Tensor:
        """Arguments as for `Mixer.forward`. Masked tokens are zeroed, so that not even a NaN gets from them into gradients."""
        if mask is None and self._works_in_bands(x):
            return self._in_bands(x, grid, num_prefix_tokens)
        x = zero_masked(x, mask)
        where: dict[str, Any] = {"num_prefix_tokens": num_prefix_tokens, "mask": mask}
        x = self._add(x, self.mixer, self.norm1(x), grid, **where, local_input=x if self.raw_local else None)
        if isinstance(self.mlp, DepthwiseMlp):
            return self._add(x, self.mlp, self.norm2(x), grid, **where)
        return self._add(x, self.mlp, self.norm2(x))

    def _works_in_bands(self, x: Tensor) -> bool:
        """Whether to take a picture band by band: a large one, through InLine, without gradients, with no one watching."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or autocast_is_on(x.device):
            return False
        if x.shape[1] * x.shape[2] < LARGE or not isinstance(self.mixer, InLineAttention) or not self.mixer.folds(x):
            return False
        parts = list(self.modules())[1:]
        return type(self.mlp) is Mlp and not any(is_watched(part) or part.training for part in parts)

    def _in_bands(self, x: Tensor, grid: Grid, num_prefix_tokens: int) -> Tensor:
        """`forward` by `summarize` and `respond`."""
        prefix, width, (above, below) = x[:, :num_prefix_tokens], prod(grid[1:]), self.reach()
        rows, height = x[:, num_prefix_tokens:], max(1, BAND // width)
        bands = [(start, min(start + height, grid[0])) for start in range(0, grid[0], height)]
        summary = reduce(operator.add, (self.summarize(rows[:, start * width : stop * width]) for start, stop in bands))
        out = torch.empty_like(x)
        if num_prefix_tokens:
            summary = summary + self.summarize(prefix)
            out[:, :num_prefix_tokens] = self.respond(prefix, summary)
        for start, stop in bands:
            first, last = max(0, start - above), min(grid[0], stop + below)
            around, halo = rows[:, first * width : last * width], (start - first, last - stop)
            answer = self.respond(around, summary, (last - first, *grid[1:]), halo=halo)
            out[:, num_prefix_tokens + start * width : num_prefix_tokens + stop * width] = answer
        return out

    # The same in two steps, for pictures that are not all in one place

    def reach(self) -> tuple[int, int]:
        """How many rows above and below a token the local parts see."""
        sides = [3] if self.mixer.lepe is not None else []
        if self.mixer.local is not None:
            sides.append(self.mixer.local.kernel_size[0])
        return max(((side - 1) // 2 for side in sides), default=0), max((side // 2 for side in sides), default=0)

    def summarize(self, x: Tensor, *, mask: Tensor | None = None) -> Summary:
        """What an InLine block has to know of these tokens, as its mixer has it."""
        return self._inline().summarize(self.norm1(x), mask=mask, local_input=x if self.raw_local else None)

    def respond(self, x: Tensor, summary: Summary, grid: Grid | None = None, *, halo: tuple[int, int] = (0, 0)) -> Tensor:
        """`forward` of an InLine block for a part of a picture, from the summary of all of it; see its mixer."""
        width = 1 if grid is None else prod(grid[1:])
        mixed = self._inline().respond(self.norm1(x), summary, grid, halo=halo)
        x = x[:, halo[0] * width : x.shape[1] - halo[1] * width] + self.drop_path(mixed)
        return self._add(x, self.mlp, self.norm2(x))

    def _inline(self) -> InLineAttention:
        if not isinstance(self.mixer, InLineAttention) or self.mixer.windows:
            raise ValueError(f"only InLine over the whole map works part by part, got {type(self.mixer).__name__}")
        return self.mixer

    def _add(self, x: Tensor, branch: nn.Module, *arguments: Any, **options: Any) -> Tensor:
        """x + branch(...), which the branch does by itself unless someone drops it or looks at what goes in or comes out."""
        ours = isinstance(branch, Mixer | Mlp | DepthwiseMlp) and not is_watched(branch)
        dropped = not isinstance(self.drop_path, DropPath) or (self.drop_path.training and self.drop_path.drop_prob)
        if dropped or not ours:
            total: Tensor = x + self.drop_path(branch(*arguments, **options))
        else:
            total = branch(*arguments, **options, residual=x)
        return total
