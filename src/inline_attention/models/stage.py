"""One stage of a backbone: an embedding to a smaller map, position embeddings, blocks.

Images and maps are (B, C, H, W), embedded maps (B, H', W', C'), tokens (B, prefix + H' * W', C'). A side that the stride does
not divide is padded with zeros to the right and below: H' = ceil(H / stride), always.
"""

from collections.abc import Collection, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from timm.layers import resample_abs_pos_embed_nhwc, resample_patch_embed, trunc_normal_
from timm.models import checkpoint
from torch import Tensor, nn

from ..layers import Block
from ..ops.checks import Grid
from ..ops.masks import with_prefix
from ..ops.shifted_windows import known, missing, pad_image, pad_map
from ..ops.sums import zero_masked


class Stage(nn.Module):
    """(B, C, H, W) -> (B, C', H', W'); with a class token -> tokens (B, 1 + H' * W', C').

    Args:
        embed: makes the map, (B, H', W', C').
        blocks: applied to it one after the other.
        positions: adds position embeddings, and a class token if there is one.
    """

    embed: "ConvEmbed | PatchMerge"
    positions: "PositionEmbedding | None"

    def __init__(
        self, embed: "ConvEmbed | PatchMerge", blocks: Sequence[Block], positions: "PositionEmbedding | None" = None
    ) -> None:
        super().__init__()
        self.embed = embed
        self.positions = positions
        self.blocks = nn.ModuleList(blocks)
        self.num_prefix_tokens = 0 if positions is None else positions.num_prefix_tokens
        self.grad_checkpointing = False

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """The map, or the tokens, after all blocks. Arguments as for `collect`."""
        tokens, grid, _ = self.collect(x, mask=mask)
        return tokens if self.num_prefix_tokens else tokens.unflatten(1, grid).permute(0, 3, 1, 2)

    def collect(
        self, x: Tensor, take: Collection[int] = (), stop: int | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Grid, list[Tensor]]:
        """Tokens after all blocks, or the first `stop`; their grid; and tokens after each block whose number is in `take`.

        `mask` is that of the stage's own tokens, (B, H', W'), True where valid; x is zero where it is masked. Masked tokens are
        zero in what comes out.
        """
        x = self.embed(x)
        grid = (x.shape[1], x.shape[2])
        x = x.flatten(1, 2) if self.positions is None else self.positions(x)
        valid = None if mask is None else with_prefix(mask, self.num_prefix_tokens)
        where: dict[str, Any] = {"num_prefix_tokens": self.num_prefix_tokens, "mask": valid}
        taken = []
        for number, block in enumerate(self.blocks[:stop]):
            x = checkpoint(block, x, grid, **where) if self.grad_checkpointing else block(x, grid, **where)
            if number in take:
                taken.append(zero_masked(x, valid))
        return zero_masked(x, valid), grid, taken


class ConvEmbed(nn.Module):
    """A strided convolution, then an optional norm over channels.

    Args:
        in_chans, dim: channels before and after.
        stride: how many times smaller the result is.
        overlap: whether neighbouring patches share pixels: the kernel is then 2 * stride - 1 wide instead of stride.
        norm: a norm of `dim` channels, or None.
    """

    def __init__(self, in_chans: int, dim: int, stride: int, *, overlap: bool = False, norm: nn.Module | None = None) -> None:
        super().__init__()
        if stride < 1:
            raise ValueError(f"patch_size must be at least 1, got {stride}")
        self.stride, self.overlap = stride, overlap
        self.proj = nn.Conv2d(in_chans, dim, self._kernel(stride), stride, padding=stride // 2 if overlap else 0)
        self.norm = nn.Identity() if norm is None else norm

    def _kernel(self, stride: int) -> int:
        return 2 * stride - 1 if self.overlap else stride

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, H', W', C')."""
        embedded: Tensor = self.norm(self.proj(pad_image(x, self.stride)).permute(0, 2, 3, 1))
        return embedded

    @torch.no_grad()
    def set_stride(self, stride: int) -> None:
        """Another patch size, the kernel resampled to it."""
        old, kernel = self.proj, self._kernel(stride)
        self.stride = stride
        self.proj = nn.Conv2d(
            old.in_channels, old.out_channels, kernel, stride,
            padding=stride // 2 if self.overlap else 0, device=old.weight.device, dtype=old.weight.dtype,
        )  # fmt: skip
        self.proj.weight.copy_(resample_patch_embed(old.weight, [kernel, kernel]))
        if self.proj.bias is not None and old.bias is not None:
            self.proj.bias.copy_(old.bias)
        for new, before in zip(self.proj.parameters(), old.parameters(), strict=True):
            new.requires_grad_(before.requires_grad)
        self.proj.train(old.training)


class PatchMerge(nn.Module):
    """Swin's downsampling: four neighbours concatenated in the channels, a norm, a linear map to half of these."""

    def __init__(self, in_chans: int, dim: int, *, norm: nn.Module) -> None:
        super().__init__()
        self.stride = 2
        self.norm = norm
        self.reduction = nn.Linear(4 * in_chans, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, H', W', C'); neighbours come in the order (0, 0), (1, 0), (0, 1), (1, 1) of (row, column)."""
        x = x.permute(0, 2, 3, 1)
        x = pad_map(x, missing(x.shape[1], 2), missing(x.shape[2], 2))
        batch, height, width, channels = x.shape
        x = x.reshape(batch, height // 2, 2, width // 2, 2, channels).permute(0, 1, 3, 4, 2, 5).flatten(3)
        merged: Tensor = self.reduction(self.norm(x))
        return merged


class PositionEmbedding(nn.Module):
    """Learned position embeddings: a vector for each position of the grid, and for a class token in front if there is one.

    `grid` is (1, H, W, C): its shape records the grid that it was learned on, in checkpoints too. On any other grid the
    embedding is resampled at each forward pass.
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
        """Resample the parameter to another grid."""
        self.grid = nn.Parameter(self.resampled(grid), requires_grad=self.grid.requires_grad)


def resample(embedding: Tensor, grid: Grid, mode: str) -> Tensor:
    """(1, H, W, C) from one grid to another, corners not aligned; the embedding itself if the grids are the same."""
    if not known(*grid):  # in an exported graph, where to the same grid it changes nothing either
        image = F.interpolate(embedding.float().permute(0, 3, 1, 2), tuple(grid), mode=mode, align_corners=False)
        return image.permute(0, 2, 3, 1).to(embedding.dtype)
    resampled: Tensor = resample_abs_pos_embed_nhwc(embedding, list(grid), interpolation=mode, antialias=False)
    return resampled


def _weights(old: int, new: int, mode: str, device: torch.device) -> Tensor:
    """(new, old), fp32: how torch resamples one side; both sides together are the product of two such."""
    basis = torch.eye(old, device=device).view(1, old, old, 1)
    return F.interpolate(basis, (new, 1), mode=mode, align_corners=False).view(old, new).T
