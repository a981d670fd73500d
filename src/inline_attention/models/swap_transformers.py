"""Mixers in the place of self-attention of Hugging Face's transformers: ViT, DeiT, DINOv2, DINOv3, CLIP, SigLIP.

Classes are recognised by name, so that transformers need not be imported.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ..layers import Mixer
from ..layers.rope import Rotation
from .swap_grid import TokenGrid, mix
from .swap_mixer import MixerMaker, SwapSkipped, check_linear, check_widths, stacked

ATTENTION_CLASSES = {
    "transformers.models.vit.modeling_vit": "ViTAttention",
    "transformers.models.deit.modeling_deit": "DeiTAttention",
    "transformers.models.dinov2.modeling_dinov2": "Dinov2Attention",
    "transformers.models.dinov2_with_registers.modeling_dinov2_with_registers": "Dinov2WithRegistersAttention",
    "transformers.models.dinov3_vit.modeling_dinov3_vit": "DINOv3ViTAttention",
    "transformers.models.clip.modeling_clip": "CLIPAttention",
    "transformers.models.siglip.modeling_siglip": "SiglipAttention",
}
"""Module -> class."""
CAUSAL = ("clip_text_model",)
"""Types of configurations whose attention looks back only."""


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
        rotation = _rotation(options.get("position_embeddings"), hidden_states.shape[1])
        return mix(self.mixer, hidden_states, self.token_grid, rotation), None


def _rotation(cos_and_sin: tuple[Tensor, Tensor] | None, tokens: int) -> Rotation | None:
    """The turn by DINOv3's tables, (tokens on the grid, d) each; the tokens before them are not turned."""
    if cos_and_sin is None:
        return None
    cosines, sines = cos_and_sin
    table = torch.cat([sines, cosines], -1)
    return Rotation.from_table(table, num_prefix_tokens=tokens - table.shape[-2], half=True)


def is_transformers(module: nn.Module) -> bool:
    """Whether it is one of the supported classes, by name."""
    return ATTENTION_CLASSES.get(type(module).__module__) == type(module).__name__


def from_transformers(attention: Any, maker: MixerMaker) -> Mixer:
    """The mixer with that attention's projections and dropout."""
    if getattr(attention.config, "model_type", None) in CAUSAL:
        raise SwapSkipped("its tokens look back only: a mixer has no causal mask")
    parts: dict[str, Any] = {name: getattr(attention, name, None) for name in ("q_proj", "k_proj", "v_proj")}
    parts["o_proj"] = getattr(attention, "o_proj", getattr(attention, "out_proj", None))
    missing = [name for name, part in parts.items() if part is None]
    if missing:
        raise SwapSkipped(f"it has no {missing[0]}: this version of transformers builds it in another way")
    check_linear(**parts)
    q, k, v, o = parts.values()
    check_widths(q.out_features, o.out_features, dim=q.in_features)
    modules = {"q": stacked((q, slice(None))), "kv": stacked((k, slice(None)), (v, slice(None))), "proj": o}
    heads = attention.num_attention_heads if hasattr(attention, "num_attention_heads") else attention.num_heads
    drop = attention.attention_dropout if hasattr(attention, "attention_dropout") else attention.dropout
    return maker.make(modules, q.weight, q.in_features, heads, attn_drop=drop, training=attention.training)
