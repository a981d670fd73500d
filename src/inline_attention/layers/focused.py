"""Focused linear attention (Han et al., "FLatten Transformer", ICCV 2023)."""

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from .divided import DividedMixer
from .local_residual import LocalPart
from .mixer import MixerOptions

FOCUS = 3
"""p of the focused map."""


class SharedConvolution(LocalPart):
    """Five taps a side on the grid, one filter for each channel of a head, shared by all heads.

    It has no bias: that of the output projection does the same.
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        grid_dims: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.kernel_size = (5,) * grid_dims
        self.weight = nn.Parameter(torch.empty(head_dim, *self.kernel_size, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform within 1 / sqrt(fan-in), like a convolution."""
        bound = float(self.weight[0].numel()) ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)

    def kernels(self, x_mean: Tensor) -> Tensor:
        """The same for every image: (1, C, 5, 5)."""
        return self.weight.repeat(self.num_heads, *(1 for _ in self.weight.shape[1:])).unsqueeze(0)


class FocusedAttention(DividedMixer):
    """Linear attention with phi(x) = |y| / |y^3| y^3, y = ReLU(x), plus a 5x5 depthwise convolution of the values.

    The cube turns queries and keys towards their largest channels and keeps their length.

    Args:
        dim, num_heads: channels, and heads that divide them.
        local: add the paper's local residual too.
        options: as for every `Mixer`.
    """

    def __init__(self, dim: int, num_heads: int = 8, *, local: bool = False, **options: Unpack[MixerOptions]) -> None:
        super().__init__(dim, num_heads, local=local, **options)
        self.convolution = (
            SharedConvolution(
                num_heads, self.head_dim, self.grid_dims, device=options.get("device"), dtype=options.get("dtype")
            )
            if self.context_dim is None
            else None
        )

    def local_parts(self) -> list[LocalPart]:
        """Its own convolution, and the local residual if chosen."""
        return [*([] if self.convolution is None else [self.convolution]), *super().local_parts()]

    def map_queries(self, q: Tensor) -> Tensor:
        """Sharpened."""
        return focused_map(q)


def focused_map(x: Tensor) -> Tensor:
    """|y| / |y^p| y^p with y = ReLU(x) + 1e-6, lengths over all heads and channels: (B, heads, N, d) -> the same."""
    y = torch.relu(x) + 1e-6
    length = torch.linalg.vector_norm(y, dim=(1, 3), keepdim=True)
    sharp = y**FOCUS
    return sharp * (length / torch.linalg.vector_norm(sharp, dim=(1, 3), keepdim=True))
