"""Fewer keys and values: spatial reduction (Wang et al., "Pyramid Vision Transformer", ICCV 2021)."""

import torch
from torch import Tensor, nn

from ..ops.checks import Grid
from ..ops.padding import pad_picture


class SpatialReduction(nn.Module):
    """A convolution whose kernel is its stride, then LayerNorm: one token from each ratio x ratio of them.

    A grid that the ratio does not divide is padded with zeros to the right and below.
    Shapes: (B, N, C) on a grid (H, W) -> (B, ceil(H / ratio) * ceil(W / ratio), C).
    """

    def __init__(
        self, dim: int, ratio: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.ratio = ratio
        self.conv = nn.Conv2d(dim, dim, ratio, ratio, device=device, dtype=dtype)
        self.norm = nn.LayerNorm(dim, device=device, dtype=dtype)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Tokens to fewer tokens."""
        picture = pad_picture(x.unflatten(1, grid).permute(0, 3, 1, 2), self.ratio)
        reduced: Tensor = self.norm(self.conv(picture).flatten(2).mT)
        return reduced
