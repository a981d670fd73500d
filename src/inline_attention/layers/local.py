"""Parts of a mixer that look at neighbours: depthwise convolutions of the values on a grid.

A local part is a module with `kernels(x_mean)`, which gives (B or 1, C, *kernel_size), and `grid_of(grid, ...)`, which
says on which tokens the kernels are laid. The mixer convolves, and can write the same thing as dense rows.

Shapes: x_mean (B, C), the mean of the layer's input over its valid tokens; values (B, N, C).
"""

from abc import ABC, abstractmethod
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops.checks import Grid
from .grouped_linear import GroupedLinear


class LocalPart(nn.Module, ABC):
    """Kernels over the grid tokens; prefix tokens are not on the grid and get nothing."""

    @abstractmethod
    def kernels(self, x_mean: Tensor) -> Tensor:
        """(B, C) -> (B or 1, C, *kernel_size)."""

    def constant(self) -> Tensor | None:
        """(1, C), added to every token on the grid, if anything is."""
        return None

    def grid_of(self, grid: Grid, num_prefix_tokens: int) -> tuple[Grid, int]:
        """The grid that the kernels are laid on, and how many tokens before it are left out."""
        return grid, num_prefix_tokens


class LocalResidual(LocalPart):
    """The paper's local residual: 3x3 kernels made from the mean of the input, one for each channel of each picture.

        kernels = W_2 GELU(W_1 x_bar + b_1) + b_2,       C -> C -> 9 C, both grouped by heads

    The kernels depend on the picture and not on the place. They work on a grid of 1, 2 or 3 sides.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        kernel_size: int | tuple[int, ...] = 3,
        grid_dims: int = 2,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.kernel_size = (kernel_size,) * grid_dims if isinstance(kernel_size, int) else tuple(kernel_size)
        if len(self.kernel_size) != grid_dims or min(self.kernel_size) < 1:
            raise ValueError(f"kernel size {kernel_size} does not fit a grid of {grid_dims} sides")
        self.num_heads = num_heads
        self.hidden = GroupedLinear(dim, dim, num_heads, device=device, dtype=dtype)
        self.taps = GroupedLinear(dim, dim * prod(self.kernel_size), num_heads, device=device, dtype=dtype)

    def kernels(self, x_mean: Tensor) -> Tensor:
        """(B, C) -> (B, C, *kernel_size); taps of a channel are row-major."""
        by_head = x_mean.unflatten(1, (self.num_heads, -1)).transpose(0, 1)
        taps: Tensor = self.taps(F.gelu(self.hidden(by_head)))  # (heads, B, d * taps of a channel)
        return taps.transpose(0, 1).reshape(*x_mean.shape, *self.kernel_size)

    def extra_repr(self) -> str:
        """What `print(model)` shows."""
        return f"kernel_size={self.kernel_size}"
