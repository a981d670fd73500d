"""A block with a mixer in the place of timm's Swin block, which cuts its windows outside of its attention.

Shapes: maps (B, H, W, C), tokens (B, H * W, C).
"""

from typing import Any

import torch
from timm.layers import to_2tuple
from torch import Tensor, nn

from ..layers import Mixer, SoftmaxAttention
from ..layers.position_bias import resample_table
from ..ops.windows import Window
from .swap_mixer import Hindrance, MixerMaker, check_linear, check_widths, stacked


class SwinBlock(nn.Module):
    """timm's block with a mixer that gets the whole map; all other parts are the block's own.

    Args:
        block: timm's.
        mixer: what mixes the tokens, in windows or not.
    """

    def __init__(self, block: Any, mixer: Mixer) -> None:
        super().__init__()
        self.norm1 = block.norm1
        self.attn = mixer
        self.drop_path1 = block.drop_path1
        self.norm2 = block.norm2
        self.mlp = block.mlp
        self.drop_path2 = block.drop_path2
        self.shifts = any(block.target_shift_size)
        """Whether its windows are shifted on a map that is larger than they are."""
        self.training = block.training

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) -> the same."""
        grid = (x.shape[1], x.shape[2])
        tokens = x.flatten(1, 2)
        tokens = tokens + self.drop_path1(self.attn(self.norm1(tokens), grid))
        tokens = tokens + self.drop_path2(self.mlp(self.norm2(tokens)))
        return tokens.unflatten(1, grid)

    def set_input_size(
        self, feat_size: tuple[int, int], window_size: int | tuple[int, int], always_partition: bool | None = None
    ) -> None:
        """Other windows, if there are some, no larger than the map. timm's model calls it from its own `set_input_size`."""
        if not self.attn.windows:
            return
        height, width = (min(side, size) for side, size in zip(feat_size, to_2tuple(window_size), strict=True))
        self.attn.windows = (Window(height, width, self.shifts and (height, width) != tuple(feat_size)),)
        if isinstance(self.attn, SoftmaxAttention) and self.attn.position is not None:
            table = self.attn.position.table
            self.attn.position.table = nn.Parameter(resample_table(table.detach(), (height, width)), table.requires_grad)


def is_swin_block(module: nn.Module) -> bool:
    """By name: timm does not export the class."""
    kind = type(module)
    return (kind.__module__, kind.__name__) == ("timm.models.swin_transformer", "SwinTransformerBlock")


def window_of(block: Any) -> Window:
    """What each token of the block sees."""
    height, width = block.window_size
    return Window(height, width, shifted=any(block.shift_size))


def from_swin(block: Any, maker: MixerMaker) -> Mixer:
    """The mixer with the projections of the block's attention, over the whole map unless windows are kept.

    Its table of relative positions fits softmax in the same windows only. Where windows do not divide the map, timm's tokens
    see the zeros that fill them up; those of a mixer do not.
    """
    attention = block.attn
    check_linear(qkv=attention.qkv, proj=attention.proj)
    dim = attention.qkv.in_features
    check_widths(attention.qkv.out_features // 3, attention.proj.out_features, dim=dim)
    options: dict[str, Any] = {}
    if maker.keep_windows:
        if any(shift not in (0, size // 2) for shift, size in zip(block.shift_size, block.window_size, strict=True)):
            raise Hindrance(f"its windows are shifted by {block.shift_size}, and not by half of {block.window_size}")
        options["windows"] = (window_of(block),)
        if maker.mixer == "softmax":
            options["position_bias"] = True
    taken = {
        "q": stacked((attention.qkv, slice(dim))),
        "kv": stacked((attention.qkv, slice(dim, None))),
        "proj": attention.proj,
        "proj_drop": attention.proj_drop,
    }
    drop, training = attention.attn_drop.p, attention.training
    mixer = maker.make(taken, attention.qkv.weight, dim, attention.num_heads, attn_drop=drop, training=training, **options)
    if isinstance(mixer, SoftmaxAttention) and mixer.position is not None:
        table = attention.relative_position_bias_table
        with torch.no_grad():
            mixer.position.table.copy_(table.view_as(mixer.position.table))
        mixer.position.table.requires_grad_(table.requires_grad)
    return mixer
