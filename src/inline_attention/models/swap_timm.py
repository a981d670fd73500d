"""Mixers in the place of timm's attention: ViT, DeiT, DINOv2, CLIP, SigLIP; with rotary positions DINOv3, EVA-02; Swin's block.

timm's Swin block cuts its windows outside of its attention, so the whole block is replaced by one that passes the map on.
Shapes: maps (B, H, W, C), tokens (B, N, C).
"""

from typing import Any

import torch
from timm.layers import Attention, AttentionRope, to_2tuple
from torch import Tensor, nn

from ..layers import Mixer, SoftmaxAttention
from ..layers.rope import Rotation
from ..ops.shifted_windows import Window
from .swap_grid import TokenGrid, mix
from .swap_mixer import MixerMaker, SwapSkipped, check_linear, check_widths, plain_linear, stacked


class TimmAttention(nn.Module):
    """Called as timm's is, (B, N, C) -> (B, N, C).

    Args:
        mixer: the mixer.
        token_grid: the grid of its tokens; None if it is unknown.
        prefix: how many tokens the rotary positions leave out.
        rotate_half: how these pair channels, see `Rotation`.
    """

    def __init__(self, mixer: Mixer, token_grid: TokenGrid | None, *, prefix: int = 0, rotate_half: bool = False) -> None:
        super().__init__()
        self.mixer = mixer
        self.token_grid = token_grid
        self.prefix, self.rotate_half = prefix, rotate_half

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False, rope: Tensor | None = None
    ) -> Tensor:
        """Mix all tokens; `rope` is the model's table of rotary positions, (..., tokens on the grid, 2 d)."""
        if attn_mask is not None or is_causal:
            given = "is_causal=True" if is_causal else f"attn_mask of shape {tuple(getattr(attn_mask, 'shape', ()))}"
            raise ValueError(f"swapped attention takes no mask, got {given}: leave it out, or leave this attention as it was")
        rotation = None if rope is None else Rotation.from_table(rope, num_prefix_tokens=self.prefix, half=self.rotate_half)
        return mix(self.mixer, x, self.token_grid, rotation)


def is_rotary(module: nn.Module) -> bool:
    """Whether it is one of timm's two classes that are called with rotary positions; timm does not export the second."""
    kind = type(module)
    return kind is AttentionRope or (kind.__module__, kind.__name__) == ("timm.models.eva", "EvaAttention")


def is_timm(module: nn.Module) -> bool:
    """Whether it is exactly one of timm's classes: a subclass may compute anything."""
    return type(module) is Attention or is_rotary(module)


def from_timm(attention: Any, maker: MixerMaker) -> Mixer:
    """The mixer with timm's projections, norms and dropout."""
    if getattr(attention, "num_kv_groups", 1) > 1:
        raise SwapSkipped(f"{attention.num_kv_groups} of its heads share one key")
    q, kv, dim, inside = _projections(attention)
    check_linear(proj=attention.proj)
    check_widths(inside, attention.proj.out_features, dim=dim)
    if getattr(attention, "gate", None) is not None:
        raise SwapSkipped("its output is gated")
    if not isinstance(getattr(attention, "norm", None), nn.Identity | None):
        raise SwapSkipped(f"its output goes through a norm ({type(attention.norm).__name__})")
    modules = {
        "q": stacked(*q),
        "kv": stacked(*kv),
        "q_norm": attention.q_norm,
        "k_norm": attention.k_norm,
        "proj": attention.proj,
        "proj_drop": attention.proj_drop,
    }
    like, heads = attention.proj.weight, attention.num_heads
    return maker.make(modules, like, dim, heads, attn_drop=attention.attn_drop.p, training=attention.training)


Rows = tuple[nn.Linear, slice]


def _projections(attention: Any) -> tuple[list[Rows], list[Rows], int, int]:
    """Rows that make queries, and keys and values; the channels that go in and come out. In one map, or in three."""
    if attention.qkv is None:
        q, k, v = attention.q_proj, attention.k_proj, attention.v_proj
        check_linear(q_proj=q, k_proj=k, v_proj=v)
        return [(q, slice(None))], [(k, slice(None)), (v, slice(None))], q.in_features, q.out_features
    check_linear(qkv=attention.qkv)
    qkv, inside = attention.qkv, attention.qkv.out_features // 3
    if getattr(attention, "q_bias", None) is not None:  # EVA adds biases of queries and values to a map without
        bias = torch.cat([attention.q_bias, attention.k_bias, attention.v_bias]).detach()
        qkv = plain_linear(qkv.weight.detach(), bias, learns=attention.q_bias.requires_grad)
        qkv.weight.requires_grad_(attention.qkv.weight.requires_grad)
        qkv.train(attention.qkv.training)
    return [(qkv, slice(inside))], [(qkv, slice(inside, None))], qkv.in_features, inside


class SwinBlock(nn.Module):
    """timm's block with a mixer that gets the whole map; all other parts are the block's own.

    Args:
        block: timm's block.
        mixer: the mixer, in windows or not.
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
        """Change the size of the windows, if there are some, to at most the map. Called by timm's own `set_input_size`."""
        if not self.attn.windows:
            return
        height, width = (min(side, size) for side, size in zip(feat_size, to_2tuple(window_size), strict=True))
        self.attn.set_window(height, width, shifted=self.shifts and (height, width) != tuple(feat_size))


def is_swin_block(module: nn.Module) -> bool:
    """Whether it is timm's Swin block, by name: timm does not export the class."""
    kind = type(module)
    return (kind.__module__, kind.__name__) == ("timm.models.swin_transformer", "SwinTransformerBlock")


def window_of(block: Any) -> Window:
    """The window of the block's attention."""
    height, width = block.window_size
    return Window(height, width, shifted=any(block.shift_size))


def from_swin(block: Any, maker: MixerMaker) -> Mixer:
    """The mixer with the projections of the block's attention, over the whole map unless windows are kept.

    Its table of relative positions fits softmax in the same windows only. Where windows do not divide the map, timm's tokens
    attend to the zeros of the padding; those of a mixer do not.
    """
    attention = block.attn
    check_linear(qkv=attention.qkv, proj=attention.proj)
    dim = attention.qkv.in_features
    check_widths(attention.qkv.out_features // 3, attention.proj.out_features, dim=dim)
    options: dict[str, Any] = {}
    if maker.keep_windows:
        if any(shift not in (0, size // 2) for shift, size in zip(block.shift_size, block.window_size, strict=True)):
            raise SwapSkipped(f"its windows are shifted by {block.shift_size}, and not by half of {block.window_size}")
        options["windows"] = (window_of(block),)
        if maker.mixer == "softmax":
            options["position_bias"] = True
    modules = {
        "q": stacked((attention.qkv, slice(dim))),
        "kv": stacked((attention.qkv, slice(dim, None))),
        "proj": attention.proj,
        "proj_drop": attention.proj_drop,
    }
    drop, training = attention.attn_drop.p, attention.training
    mixer = maker.make(modules, attention.qkv.weight, dim, attention.num_heads, attn_drop=drop, training=training, **options)
    if isinstance(mixer, SoftmaxAttention) and mixer.position is not None:
        table = attention.relative_position_bias_table
        with torch.no_grad():
            mixer.position.table.copy_(table.view_as(mixer.position.table))
        mixer.position.table.requires_grad_(table.requires_grad)
    return mixer
