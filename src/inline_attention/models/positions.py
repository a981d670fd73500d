"""Learned position embeddings that keep the shape of the grid they were learned on."""

from typing import Literal

import torch
import torch.nn.functional as F
from timm.layers import resample_abs_pos_embed_nhwc, trunc_normal_
from torch import Tensor, nn

from ..ops.checks import Grid
from ..ops.padding import known


class PositionEmbedding(nn.Module):
    """A vector for each place of the grid, and for a class token in front if there is one.

    `grid` is (1, H, W, C): its shape records the grid. On any other grid the embedding is resampled as it is used.
    Shapes: a map (B, H, W, C) -> tokens (B, prefix + H * W, C).
    """

    def __init__(
        self, dim: int, grid: Grid, *, class_token: bool = False, mode: Literal["bilinear", "bicubic"] = "bicubic"
    ) -> None:
        super().__init__()
        self.mode = mode
        self.grid = nn.Parameter(torch.empty(1, *grid, dim))
        self.cls_token = nn.Parameter(torch.empty(1, 1, dim)) if class_token else None
        self.cls_position = nn.Parameter(torch.empty(1, 1, dim)) if class_token else None
        self.reset_parameters()

    @property
    def num_prefix_tokens(self) -> int:
        """1 with a class token, 0 without."""
        return 0 if self.cls_token is None else 1

    def reset_parameters(self) -> None:
        """Normal, of deviation 0.02."""
        for parameter in self.parameters():
            trunc_normal_(parameter, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Add positions, put the class token in front."""
        tokens = (x + self.resampled((x.shape[1], x.shape[2]))).flatten(1, 2)
        prefix = self.prefix()
        return tokens if prefix is None else torch.cat([prefix.expand(x.shape[0], -1, -1), tokens], 1)

    def resampled(self, grid: Grid) -> Tensor:
        """(1, H, W, C) for this grid."""
        return resample(self.grid, grid, self.mode)

    def rows(self, grid: Grid, start: int, stop: int) -> Tensor:
        """(1, stop - start, W, C): these rows of `resampled(grid)`, without making the others."""
        if tuple(grid) == self.grid.shape[1:3]:
            return self.grid[:, start:stop]
        down = _weights(self.grid.shape[1], grid[0], self.mode, self.grid.device)[start:stop]
        across = _weights(self.grid.shape[2], grid[1], self.mode, self.grid.device)
        rows = torch.einsum("yi,bijc->byjc", down, self.grid.float())
        return torch.einsum("xj,byjc->byxc", across, rows).to(self.grid.dtype)

    def prefix(self) -> Tensor | None:
        """(1, 1, C): the class token as it enters the first block; None without one."""
        return None if self.cls_token is None or self.cls_position is None else self.cls_token + self.cls_position

    @torch.no_grad()
    def set_grid(self, grid: Grid) -> None:
        """Resample for good."""
        self.grid = nn.Parameter(self.resampled(grid), requires_grad=self.grid.requires_grad)


def resample(embedding: Tensor, grid: Grid, mode: str) -> Tensor:
    """(1, H, W, C) from one grid to another, corners not aligned; the embedding itself if the grids are the same."""
    if not known(*grid):  # in an exported graph, where to the same grid it changes nothing either
        picture = F.interpolate(embedding.float().permute(0, 3, 1, 2), tuple(grid), mode=mode, align_corners=False)
        return picture.permute(0, 2, 3, 1).to(embedding.dtype)
    resampled: Tensor = resample_abs_pos_embed_nhwc(embedding, list(grid), interpolation=mode, antialias=False)
    return resampled


def _weights(old: int, new: int, mode: str, device: torch.device) -> Tensor:
    """(new, old), fp32: how torch resamples one side; both sides together are the product of two such."""
    basis = torch.eye(old, device=device).view(1, old, old, 1)
    return F.interpolate(basis, (new, 1), mode=mode, align_corners=False).view(old, new).T
