"""The paper's local residual, and what all local parts of a mixer share: depthwise convolutions of the values on the grid.

A local part makes kernels, (B or 1, C, *kernel_size). `add_local` convolves the values with them; `local_rows` writes the same
convolution as dense attention weights.

Shapes: x_mean (B, C), the mean of the layer's input over its valid tokens; values (B, N, C).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import prod, sqrt
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops.checks import Grid
from ..ops.local_convolution import local_convolution
from ..ops.reference import local_weights
from ..ops.sums import to_fp32


class LocalPart(nn.Module, ABC):
    """Kernels over the grid tokens. Prefix tokens are not on the grid and get nothing."""

    kernel_size: tuple[int, ...]
    """Taps along each side of the grid."""
    on_grid: ClassVar[bool] = True
    """Whether it convolves on the grid, so that a band of an image needs no more than the rows next to it."""

    @abstractmethod
    def kernels(self, x_mean: Tensor) -> Tensor:
        """(B, C) -> (B or 1, C, *kernel_size)."""

    def constant(self) -> Tensor | None:
        """(1, C), added to every token on the grid; None for nothing."""
        return None

    def grid_of(self, grid: Grid, num_prefix_tokens: int) -> tuple[Grid, int]:
        """The grid that the convolution runs on, and how many tokens before it are left out."""
        return grid, num_prefix_tokens


class LocalResidual(LocalPart):
    """The paper's local residual: 3x3 kernels made from the mean of the input, one for each channel of each image.

        kernels = W_2 GELU(W_1 x_bar + b_1) + b_2,       C -> C -> 9 C, both grouped by heads

    The kernels depend on the image and not on the position. They work on a grid of 1, 2 or 3 sides.
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
        """Shown by `print(model)`."""
        return f"kernel_size={self.kernel_size}"


class GroupedLinear(nn.Module):
    """A linear map for each group of channels, (groups, B, features / groups) -> the same: a grouped 1x1 convolution.

    On the single vector of an image this takes a fraction of the time of `nn.Conv1d`. `weight` is
    (groups, out_features / groups, in_features / groups); it is initialised like the convolution.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        groups: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        size = (groups, out_features // groups, in_features // groups)
        self.weight = nn.Parameter(torch.empty(size, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform within 1 / sqrt(fan-in), like `nn.Conv1d`."""
        bound = 1 / sqrt(self.weight.shape[2])
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """(groups, B, in_features / groups) -> (groups, B, out_features / groups)."""
        groups, outputs, _ = self.weight.shape
        return torch.baddbmm(self.bias.view(groups, 1, outputs), x, self.weight.mT)

    def extra_repr(self) -> str:
        """Shown by `print(model)`."""
        groups, outputs, inputs = self.weight.shape
        return f"in_features={groups * inputs}, out_features={groups * outputs}, groups={groups}"


def add_local(
    out: Tensor,
    parts: Sequence[LocalPart],
    x_mean: Tensor,
    values: Tensor,
    grid: Grid,
    num_prefix_tokens: int = 0,
    channels: slice = slice(None),
) -> Tensor:
    """`out` plus the convolution of the values by each part, (B, N, C).

    Args:
        values: (B, N, C), or only the `channels` of them that `out` has.
    """
    for part in parts:
        part_grid, skip = part.grid_of(grid, num_prefix_tokens)
        kernels, constant = part.kernels(x_mean)[:, channels].to(values.dtype), part.constant()
        bias = None if constant is None else constant[:, channels].to(values.dtype)
        convolved = local_convolution(values[:, skip:], kernels, part_grid, bias=bias)
        out = out + (F.pad(convolved, (0, 0, skip, 0)) if skip else convolved)
    return out


def local_rows(parts: Sequence[LocalPart], x_mean: Tensor, grid: Grid, num_prefix_tokens: int, queries: Tensor) -> Tensor:
    """The convolutions of all parts as dense weights of chosen queries, (B, C, queries, N), in fp32 or better."""
    batch, dim = x_mean.shape
    rows = to_fp32(x_mean).new_zeros(batch, dim, len(queries), num_prefix_tokens + prod(grid))
    for part in parts:
        part_grid, skip = part.grid_of(grid, num_prefix_tokens)
        kernels = to_fp32(part.kernels(x_mean)).expand(batch, *(-1 for _ in range(1 + len(part_grid))))
        on_grid = queries >= skip
        rows[:, :, on_grid, skip:] += local_weights(kernels, part_grid, queries[on_grid] - skip)
    return rows
