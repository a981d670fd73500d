"""A mixer in the place of timm's `Attention`: ViT, DeiT, DINOv2, and whatever else is built from it."""

from typing import Any

from timm.layers import Attention
from torch import Tensor, nn

from ..layers import Mixer
from .swap_grid import TokenGrid, mix
from .swap_mixer import Hindrance, MixerMaker, check_linear, check_widths, stacked


class TimmAttention(nn.Module):
    """Called as timm's is, (B, N, C) -> (B, N, C).

    Args:
        mixer: what mixes the tokens.
        place: where they lie; None if no one knows.
    """

    def __init__(self, mixer: Mixer, place: TokenGrid | None) -> None:
        super().__init__()
        self.mixer = mixer
        self.place = place

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """Mix tokens, all of which see each other."""
        if attn_mask is not None or is_causal:
            given = "is_causal=True" if is_causal else f"attn_mask of shape {tuple(getattr(attn_mask, 'shape', ()))}"
            raise ValueError(f"swapped attention takes no mask, got {given}: leave it out, or leave this attention as it was")
        return mix(self.mixer, x, self.place)


def is_timms(module: nn.Module) -> bool:
    """Exactly timm's class: what inherits from it may do anything."""
    return type(module) is Attention


def from_timm(attention: Any, maker: MixerMaker) -> Mixer:
    """The mixer with timm's projections, norms and dropout."""
    check_linear(qkv=attention.qkv, proj=attention.proj)
    dim = attention.qkv.in_features
    check_widths(attention.qkv.out_features // 3, attention.proj.out_features, dim=dim)
    if getattr(attention, "gate", None) is not None:
        raise Hindrance("its output is gated")
    if not isinstance(getattr(attention, "norm", None), nn.Identity | None):
        raise Hindrance(f"its output goes through a norm ({type(attention.norm).__name__})")
    taken = {
        "q": stacked((attention.qkv, slice(dim))),
        "kv": stacked((attention.qkv, slice(dim, None))),
        "q_norm": attention.q_norm,
        "k_norm": attention.k_norm,
        "proj": attention.proj,
        "proj_drop": attention.proj_drop,
    }
    drop, training = attention.attn_drop.p, attention.training
    return maker.make(taken, attention.qkv.weight, dim, attention.num_heads, attn_drop=drop, training=training)
