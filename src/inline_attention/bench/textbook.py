"""InLine written directly from the paper's equations: the form that the folded one is measured against."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..layers import InLineAttention
from ..ops.checks import Grid
from ..ops.kernels import identity


class TextbookInLine(nn.Module):
    """The same function as `layer`, with queries, keys and values for every head and one convolution of B * C groups.

    Shapes: (B, N, C) -> (B, N, C).
    """

    def __init__(self, layer: InLineAttention) -> None:
        super().__init__()
        if (
            layer.windows
            or layer.lepe is not None
            or layer.reduction is not None
            or layer.kernel is not identity
            or layer.base != "mean"
        ):
            raise ValueError(
                f"the textbook form has no windows, no LePE, no reduction, no kernel and no other base, got {layer}"
            )
        self.num_heads, self.scale, self.local = layer.num_heads, layer.factor(), layer.local
        self.qkv = nn.Linear(layer.dim, 3 * layer.dim)
        self.proj = layer.proj
        with torch.no_grad():
            self.qkv.weight.copy_(torch.cat([layer.q.weight, layer.kv.weight]))
            self.qkv.bias.copy_(torch.cat([layer.q.bias, layer.kv.bias]))

    def forward(
        self,
        x: Tensor,
        grid: Grid,
        *,
        num_prefix_tokens: int = 0,
        mask: None = None,
        local_input: None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        """The equations one by one, with the signature that a block calls; `mask` and `local_input` must be None."""
        batch, tokens, channels = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        k_mean, v_mean = k.mean(2, keepdim=True), v.mean(2, keepdim=True)
        out = q @ (k.mT @ v * (self.scale / tokens)) - (q @ k_mean.mT * self.scale - 1) * v_mean
        out = out.transpose(1, 2).reshape(batch, tokens, channels)
        if self.local is not None:
            kernels = self.local.kernels(x.mean(1)).reshape(batch * channels, 1, *self.local.kernel_size)
            images = v[:, :, num_prefix_tokens:].transpose(2, 3).reshape(1, batch * channels, *grid)
            local = F.conv2d(images, kernels, padding=1, groups=batch * channels).view(batch, channels, -1).mT
            out = out + (F.pad(local, (0, 0, num_prefix_tokens, 0)) if num_prefix_tokens else local)
        mixed: Tensor = self.proj(out)
        return mixed if residual is None else residual + mixed


def as_textbook(model: nn.Module) -> nn.Module:
    """Replace each InLineAttention of the model by its textbook form, in place; returns the model."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, InLineAttention):
                setattr(parent, name, TextbookInLine(child))
    return model
