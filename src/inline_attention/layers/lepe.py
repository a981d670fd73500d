"""Locally enhanced positional encoding (Dong et al., "CSWin Transformer", CVPR 2022)."""

import torch
from torch import Tensor, nn

from .local import LocalPart


class LocalEncoding(LocalPart):
    """LePE: a 3x3 depthwise convolution of the values, with bias, the same for every picture."""

    def __init__(
        self, dim: int, grid_dims: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim, *(3,) * grid_dims, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform within 1 / sqrt(fan-in), as convolutions start."""
        bound = float(self.weight[0].numel()) ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def kernels(self, x_mean: Tensor) -> Tensor:
        """(1, C, 3, 3)."""
        return self.weight.unsqueeze(0)

    def constant(self) -> Tensor:
        """(1, C)."""
        return self.bias.unsqueeze(0)
