"""One pre-norm block around any mixer."""

from collections.abc import Callable

from timm.layers import DropPath, Mlp
from torch import Tensor, nn

from ..ops.checks import Grid
from ..ops.masking import zero_masked
from .mixer import Mixer
from .mlp import DepthwiseMlp


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
        mixed = self.mixer(
            self.norm1(x),
            grid,
            num_prefix_tokens=num_prefix_tokens,
            mask=mask,
            local_input=x if self.raw_local else None,
        )
        x = x + self.drop_path(mixed)
        hidden = self.norm2(x)
        if isinstance(self.mlp, DepthwiseMlp):
            hidden = self.mlp(hidden, grid, num_prefix_tokens=num_prefix_tokens, mask=mask)
        else:
            hidden = self.mlp(hidden)
        out: Tensor = x + self.drop_path(hidden)
        return out
