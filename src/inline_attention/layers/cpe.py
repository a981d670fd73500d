"""CPE, convolutional position encoding: a depthwise convolution of the tokens that a block adds to them."""

import torch
from torch import Tensor, nn

from ..ops.checks import Grid, check_grid
from ..ops.local_convolution import local_convolution
from ..ops.sums import zero_masked


class ConvPositions(nn.Module):
    """x + a depthwise convolution of x, with bias, three taps a side. Prefix tokens are left as they are.

    From Chu et al., "Conditional Positional Encodings for Vision Transformers", ICLR 2023. MALA, RALA and ViT^3 have it before
    attention, MILA and NaLa before the MLP too. Shapes: (B, N, C) -> (B, N, C).
    """

    def __init__(
        self, dim: int, grid_dims: int = 2, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim, *(3,) * grid_dims, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform within 1 / sqrt(fan-in), like a convolution."""
        bound = float(self.weight[0].numel()) ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor, grid: Grid | None, *, num_prefix_tokens: int = 0, mask: Tensor | None = None) -> Tensor:
        """Arguments as for `Mixer.forward`; masked tokens are zero before and after. Without a grid all are prefix tokens."""
        if grid is None:
            return x
        check_grid(grid, x.shape[1], num_prefix_tokens)
        x = zero_masked(x, mask)
        prefix, tokens = x[:, :num_prefix_tokens], x[:, num_prefix_tokens:]
        kernels, bias = (parameter.unsqueeze(0).to(x.dtype) for parameter in (self.weight, self.bias))
        placed = tokens + local_convolution(tokens, kernels, grid, bias=bias)
        return zero_masked(torch.cat([prefix, placed], 1) if num_prefix_tokens else placed, mask)
