"""InLine as one would write it from the paper: the form that the folded one is measured against."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..layers import InLineAttention
from ..ops.checks import Grid


class TextbookInLine(nn.Module):
    """Queries, keys and values for every head, and one convolution with B * C groups; the same function as the layer given.

    Shapes: (B, N, C) -> (B, N, C).
    """

    def __init__(self, layer: InLineAttention) -> None:
        super().__init__()
        self.num_heads, self.scale, self.local = layer.num_heads, layer.scale, layer.local
        self.qkv = nn.Linear(layer.dim, 3 * layer.dim)
        self.proj = layer.proj
        with torch.no_grad():
            self.qkv.weight.copy_(torch.cat([layer.q.weight, layer.kv.weight]))
            self.qkv.bias.copy_(torch.cat([layer.q.bias, layer.kv.bias]))

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Equation by equation."""
        batch, tokens, channels = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        k_mean, v_mean = k.mean(2, keepdim=True), v.mean(2, keepdim=True)
        out = q @ (k.mT @ v * (self.scale / tokens)) - (q @ k_mean.mT * self.scale - 1) * v_mean
        out = out.transpose(1, 2).reshape(batch, tokens, channels)
        if self.local is not None:
            kernels = self.local.kernels(x.mean(1)).reshape(batch * channels, 1, *self.local.kernel_size)
            pictures = v.transpose(2, 3).reshape(1, batch * channels, *grid)
            local = F.conv2d(pictures, kernels, padding=1, groups=batch * channels)
            out = out + local.view(batch, channels, tokens).mT
        mixed: Tensor = self.proj(out)
        return mixed
