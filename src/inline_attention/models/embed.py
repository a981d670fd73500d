"""From pictures to tokens, and from a map to one half as large. Pictures and maps are (B, C, H, W), results (B, H', W', C').

A side that the stride does not divide is padded with zeros to the right and below: H' = ceil(H / stride), always.
"""

import torch
from timm.layers import resample_patch_embed
from torch import Tensor, nn

from ..ops.padding import missing, pad_map, pad_picture


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
        embedded: Tensor = self.norm(self.proj(pad_picture(x, self.stride)).permute(0, 2, 3, 1))
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
    """Swin's way down: four neighbours side by side in the channels, a norm, a linear map to half of these."""

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
