"""LePE: a depthwise convolution of the values with learned kernels, as a local part of a mixer."""

import torch
from torch import Tensor, nn

from .local_residual import LocalPart


class LocalEncoding(LocalPart):
    """LePE, locally enhanced positional encoding: a depthwise convolution of the values, with bias, learned.

    From Dong et al., "CSWin Transformer", CVPR 2022, with 3 taps a side. The kernels are the same for every image.

    Args:
        dim: channels of the values.
        grid_dims: sides of the grid.
        size: taps along each side, an odd number.
        heads: give each channel of a head one kernel, shared by so many heads, as PolaFormer does; 1 for a kernel of its own
            for each of the C channels.
    """

    def __init__(
        self,
        dim: int,
        grid_dims: int,
        size: int = 3,
        heads: int = 1,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.kernel_size, self.heads = (size,) * grid_dims, heads
        self.weight = nn.Parameter(torch.empty(dim // heads, *self.kernel_size, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(dim // heads, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform within 1 / sqrt(fan-in), like a convolution."""
        bound = float(self.weight[0].numel()) ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def kernels(self, x_mean: Tensor) -> Tensor:
        """(1, C, *kernel_size)."""
        return self._of_all(self.weight).unsqueeze(0)

    def constant(self) -> Tensor:
        """(1, C)."""
        return self._of_all(self.bias).unsqueeze(0)

    def _of_all(self, parameter: Tensor) -> Tensor:
        """For all channels, those of one head repeated."""
        return parameter if self.heads == 1 else parameter.repeat(self.heads, *(1 for _ in parameter.shape[1:]))
