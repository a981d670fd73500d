"""An MLP that looks at neighbours: the other half of enhanced linear attention."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops.checks import Grid, check_grid
from ..ops.local import local_convolution
from ..ops.masking import zero_masked


class DepthwiseMlp(nn.Module):
    """Linear, depthwise convolution of three taps a side, GELU, linear. Prefix tokens pass by the convolution.

    Shapes: (B, N, C) -> (B, N, C).
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        *,
        drop: float = 0.0,
        grid_dims: int = 2,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.fc1 = nn.Linear(in_features, hidden_features, device=device, dtype=dtype)
        self.weight = nn.Parameter(torch.empty(hidden_features, *(3,) * grid_dims, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(hidden_features, device=device, dtype=dtype))
        self.fc2 = nn.Linear(hidden_features, in_features, device=device, dtype=dtype)
        self.drop = nn.Dropout(drop)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Kernels and bias uniform within 1 / sqrt(fan-in), as convolutions start."""
        bound = float(self.weight[0].numel()) ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor, grid: Grid, *, num_prefix_tokens: int = 0, mask: Tensor | None = None) -> Tensor:
        """The grid says where the tokens after the prefix lie; masked tokens, (B, N), are no one's neighbours."""
        check_grid(grid, x.shape[1], num_prefix_tokens)
        hidden = zero_masked(self.fc1(zero_masked(x, mask)), mask)
        kernels, bias = self.weight.unsqueeze(0).to(hidden.dtype), self.bias.unsqueeze(0).to(hidden.dtype)
        convolved = local_convolution(hidden[:, num_prefix_tokens:], kernels, grid, bias=bias)
        hidden = torch.cat([hidden[:, :num_prefix_tokens], convolved], 1)
        out: Tensor = self.drop(self.fc2(self.drop(F.gelu(hidden))))
        return out
