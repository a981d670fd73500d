"""One pre-norm block around any mixer."""

from collections.abc import Callable
from math import prod
from typing import Any

from timm.layers import DropPath
from torch import Tensor, nn

from ..ops.checks import Grid
from ..ops.masking import zero_masked
from .inline import InLineAttention
from .mixer import Mixer
from .mlp import DepthwiseMlp, Mlp
from .residual import is_watched
from .summary import Summary


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
        x = zero_masked(x, mask)
        where: dict[str, Any] = {"num_prefix_tokens": num_prefix_tokens, "mask": mask}
        x = self._add(x, self.mixer, self.norm1(x), grid, **where, local_input=x if self.raw_local else None)
        if isinstance(self.mlp, DepthwiseMlp):
            return self._add(x, self.mlp, self.norm2(x), grid, **where)
        return self._add(x, self.mlp, self.norm2(x))

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
