"""LePE: CSWin's depthwise convolution of the values, as a local part of a mixer."""

import torch
from torch import Tensor, nn

from .local_residual import LocalPart


class LocalEncoding(LocalPart):
    """LePE, locally enhanced positional encoding: a 3x3 depthwise convolution of the values, with bias, learned.

    From Dong et al., "CSWin Transformer", CVPR 2022. The kernels are the same for every image.
    """

    def __init__(
        self, dim: int, grid_dims: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.kernel_size = (3,) * grid_dims
        self.weight = nn.Parameter(torch.empty(dim, *self.kernel_size, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform within 1 / sqrt(fan-in), like a convolution."""
        bound = float(self.weight[0].numel()) ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def kernels(self, x_mean: Tensor) -> Tensor:
        """(1, C, 3, 3)."""
        return self.weight.unsqueeze(0)

    def constant(self) -> Tensor:
        """(1, C)."""
        return self.bias.unsqueeze(0)
