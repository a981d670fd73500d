"""A mixer in the place of self-attention of Hugging Face's transformers: ViT, DeiT, DINOv2.

Classes are recognised by name, so that nothing is imported that the model has not imported itself.
"""

from typing import Any

from torch import Tensor, nn

from ..layers import Mixer
from .swap_grid import TokenGrid, mix
from .swap_mixer import Hindrance, MixerMaker, check_linear, check_widths, stacked

KNOWN = {
    "transformers.models.vit.modeling_vit": "ViTAttention",
    "transformers.models.deit.modeling_deit": "DeiTAttention",
    "transformers.models.dinov2.modeling_dinov2": "Dinov2Attention",
    "transformers.models.dinov2_with_registers.modeling_dinov2_with_registers": "Dinov2WithRegistersAttention",
}
"""Module -> class."""
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


class TransformersAttention(nn.Module):
    """Called as that library's is: (B, N, C) -> (B, N, C) and no weights.

    Args:
        mixer: what mixes the tokens.
        place: where they lie; None if no one knows.
        config: the model's, which may ask for weights.
    """

    def __init__(self, mixer: Mixer, place: TokenGrid | None, config: Any) -> None:
        super().__init__()
        self.mixer = mixer
        self.place = place
        self.config = config

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Mix tokens, all of which see each other."""
        options.setdefault("output_attentions", getattr(self.config, "output_attentions", False))
        given = {"attention_mask": attention_mask, **options}
        for name in ("attention_mask", "head_mask", "is_causal", "output_attentions"):
            if given.get(name) is not None and given[name] is not False:
                raise ValueError(f"swapped attention has no weights to mask or to give: call the model without {name}")
        return mix(self.mixer, hidden_states, self.place), None


def is_transformers(module: nn.Module) -> bool:
    """By name."""
    return KNOWN.get(type(module).__module__) == type(module).__name__


def from_transformers(attention: Any, maker: MixerMaker) -> Mixer:
    """The mixer with that attention's projections and dropout."""
    missing = [name for name in PROJECTIONS if not hasattr(attention, name)]
    if missing:
        raise Hindrance(f"it has no {missing[0]}: this version of transformers builds it in another way")
    q, k, v, o = (getattr(attention, name) for name in PROJECTIONS)
    check_linear(q_proj=q, k_proj=k, v_proj=v, o_proj=o)
    check_widths(q.out_features, o.out_features, dim=q.in_features)
    taken = {"q": stacked((q, slice(None))), "kv": stacked((k, slice(None)), (v, slice(None))), "proj": o}
    heads, drop, training = attention.num_attention_heads, attention.attention_dropout, attention.training
    return maker.make(taken, q.weight, q.in_features, heads, attn_drop=drop, training=training)
