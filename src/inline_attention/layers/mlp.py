"""The other half of a block: an MLP for each token, and one that looks at neighbours as well."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops.checks import Grid, check_grid
from ..ops.local import local_convolution
from ..ops.masking import zero_masked
from .residual import add_linear, is_watched

LARGEST = 2**22
"""Hidden numbers that are made at once where no gradient needs them: 16 MB, which allocators keep and caches can hold."""


class Mlp(nn.Module):
    """Linear, GELU, linear: (B, N, C) -> (B, N, C). Without gradients it goes through the tokens piece by piece.

    Args:
        in_features, hidden_features: channels of the tokens and in between.
        drop: dropout after both linear maps.
    """

    def __init__(self, in_features: int, hidden_features: int, *, drop: float = 0.0) -> None:
        super().__init__()
        self.fc1 = nn.Linear(in_features, hidden_features)
        self.act = nn.GELU()
        self.drop1 = nn.Dropout(drop)
        self.fc2 = nn.Linear(hidden_features, in_features)
        self.drop2 = nn.Dropout(drop)

    def forward(self, x: Tensor, *, residual: Tensor | None = None) -> Tensor:
        """Add what is made of x to the residual, if there is one."""
        if residual is None or (self.drop2.training and self.drop2.p):
            out: Tensor = self.drop2(self.fc2(self.drop1(self.act(self.fc1(x)))))
            return out if residual is None else residual + out
        at_once = LARGEST // self.fc1.out_features
        if self._whole() or x.numel() // x.shape[-1] <= at_once:
            return add_linear(residual, self.drop1(self.act(self.fc1(x))), self.fc2)
        out = torch.empty_like(residual, memory_format=torch.contiguous_format)
        pieces = (tokens.flatten(0, -2).split(at_once) for tokens in (x, residual, out))
        for piece, on, into in zip(*pieces, strict=True):
            into.copy_(add_linear(on, self.drop1(self.act(self.fc1(piece))), self.fc2))
        return out

    def _whole(self) -> bool:
        """Whether all tokens have to go at once: for gradients, for a graph, or because someone is watching."""
        return torch.is_grad_enabled() or torch.compiler.is_compiling() or any(map(is_watched, self.children()))


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

    def forward(
        self,
        x: Tensor,
        grid: Grid,
        *,
        num_prefix_tokens: int = 0,
        mask: Tensor | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        """The grid says where the tokens after the prefix lie; masked tokens, (B, N), are no one's neighbours."""
        check_grid(grid, x.shape[1], num_prefix_tokens)
        hidden = zero_masked(self.fc1(zero_masked(x, mask)), mask)
        kernels, bias = self.weight.unsqueeze(0).to(hidden.dtype), self.bias.unsqueeze(0).to(hidden.dtype)
        convolved = local_convolution(hidden[:, num_prefix_tokens:], kernels, grid, bias=bias)
        hidden = torch.cat([hidden[:, :num_prefix_tokens], convolved], 1)
        out: Tensor = self.drop(self.fc2(self.drop(F.gelu(hidden))))
        return out if residual is None else residual + out
