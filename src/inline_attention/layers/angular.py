"""Linear angular attention (You et al., "Castling-ViT", CVPR 2023)."""

from math import pi, prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Unpack

from ..ops.checks import Grid
from ..ops.reference import angular_weights
from ..ops.sums import count_valid, zero_masked
from .local_residual import LocalPart
from .mixer import Mixer, MixerOptions


class TokenConvolution(LocalPart):
    """Nine taps along the token axis, prefix tokens included, one filter for each head.

    It has no bias: that of the output projection does the same.
    """

    on_grid = False

    def __init__(
        self, num_heads: int, head_dim: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.kernel_size = (9,)
        self.weight = nn.Parameter(torch.empty(num_heads, 9, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform within 1 / sqrt(fan-in), like a convolution."""
        nn.init.uniform_(self.weight, -1 / 3, 1 / 3)

    def kernels(self, x_mean: Tensor) -> Tensor:
        """The same for every image: (1, C, 9)."""
        return self.weight.repeat_interleave(self.head_dim, 0).unsqueeze(0)

    def grid_of(self, grid: Grid, num_prefix_tokens: int) -> tuple[Grid, int]:
        """All tokens in one row."""
        return (num_prefix_tokens + prod(grid),), 0


class AngularAttention(Mixer):
    """out_i = (1/N) sum_j (1/2 + q_i.k_j / pi) v_j for q and k of unit length, plus nine taps along the token axis.

    Args:
        dim, num_heads: channels, and heads that divide them.
        local: add the paper's local residual too.
        options: as for every `Mixer`.
    """

    def __init__(self, dim: int, num_heads: int = 8, *, local: bool = False, **options: Unpack[MixerOptions]) -> None:
        super().__init__(dim, num_heads, local=local, **options)
        self.convolution = (
            TokenConvolution(num_heads, self.head_dim, device=options.get("device"), dtype=options.get("dtype"))
            if self.context_dim is None
            else None
        )

    def local_parts(self) -> list[LocalPart]:
        """Its own convolution, and the local residual if chosen."""
        return [*([] if self.convolution is None else [self.convolution]), *super().local_parts()]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Half the mean value, plus a read-out of the keys' and values' outer product."""
        count = count_valid(k, mask)[:, None, None, None].clamp(min=1)
        k, v = zero_masked(F.normalize(k, dim=-1), mask), zero_masked(v, mask)
        return v.sum(2, keepdim=True) / (2 * count) + F.normalize(q, dim=-1) @ (k.mT @ v / (pi * count))

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """An affine function of the cosine."""
        return angular_weights(F.normalize(q, dim=-1), F.normalize(k, dim=-1), mask=mask)
