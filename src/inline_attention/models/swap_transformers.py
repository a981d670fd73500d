"""Mixers in the place of self-attention of Hugging Face's transformers: ViT, DeiT, DINOv2.

Classes are recognised by name, so that transformers need not be imported.
"""

from typing import Any

from torch import Tensor, nn

from ..layers import Mixer
from .swap_grid import TokenGrid, mix
from .swap_mixer import MixerMaker, SwapSkipped, check_linear, check_widths, stacked

ATTENTION_CLASSES = {
    "transformers.models.vit.modeling_vit": "ViTAttention",
    "transformers.models.deit.modeling_deit": "DeiTAttention",
    "transformers.models.dinov2.modeling_dinov2": "Dinov2Attention",
    "transformers.models.dinov2_with_registers.modeling_dinov2_with_registers": "Dinov2WithRegistersAttention",
}
"""Module -> class."""
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


class TransformersAttention(nn.Module):
    """Called like the library's own: (B, N, C) -> (B, N, C) and no weights.

    Args:
        mixer: the mixer.
        token_grid: the grid of its tokens; None if it is unknown.
        config: the model's, which may request attention weights.
    """

    def __init__(self, mixer: Mixer, token_grid: TokenGrid | None, config: Any) -> None:
        super().__init__()
        self.mixer = mixer
        self.token_grid = token_grid
        self.config = config

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Mix all tokens."""
        options.setdefault("output_attentions", getattr(self.config, "output_attentions", False))
        given = {"attention_mask": attention_mask, **options}
        for name in ("attention_mask", "head_mask", "is_causal", "output_attentions"):
            if given.get(name) is not None and given[name] is not False:
                raise ValueError(f"swapped attention has no weights to mask or to give: call the model without {name}")
        return mix(self.mixer, hidden_states, self.token_grid), None


def is_transformers(module: nn.Module) -> bool:
    """Whether it is one of the supported classes, by name."""
    return ATTENTION_CLASSES.get(type(module).__module__) == type(module).__name__


def from_transformers(attention: Any, maker: MixerMaker) -> Mixer:
    """The mixer with that attention's projections and dropout."""
    missing = [name for name in PROJECTIONS if not hasattr(attention, name)]
    if missing:
        raise SwapSkipped(f"it has no {missing[0]}: this version of transformers builds it in another way")
    q, k, v, o = (getattr(attention, name) for name in PROJECTIONS)
    check_linear(q_proj=q, k_proj=k, v_proj=v, o_proj=o)
    check_widths(q.out_features, o.out_features, dim=q.in_features)
    modules = {"q": stacked((q, slice(None))), "kv": stacked((k, slice(None)), (v, slice(None))), "proj": o}
    heads, drop, training = attention.num_attention_heads, attention.attention_dropout, attention.training
    return maker.make(modules, q.weight, q.in_features, heads, attn_drop=drop, training=training)
