"""Mixers in the place of the attention of SAM's image encoder: timm's `samvit_*`, and transformers' `SamVisionModel`.

Its attention is called with maps, (B, H, W, C): of the whole image, or of windows that the block around it cuts, pads with
zeros and puts together again. Without windows, the block is told to cut none. Relative positions, which add a product with
each query to the logits, have no place in a mixer and are dropped.
"""

from typing import Any

from torch import Tensor, nn

from ..layers import Mixer
from ..layers.rope import Rotation
from ..ops.shifted_windows import Window
from .swap_mixer import (
    MixerMaker,
    SwapSkipped,
    check_linear,
    check_widths,
    describe,
    describe_change,
    dropped,
    in_windows,
    stacked,
)

SAM_CLASSES = {
    ("timm.models.vision_transformer_sam", "Attention"),
    ("transformers.models.sam.modeling_sam", "SamVisionAttention"),
    ("transformers.models.sam.modeling_sam", "SamVisionSdpaAttention"),
}
"""Module and class, by name: none of them is exported, and transformers need not be imported."""


class MapAttention(nn.Module):
    """Called as SAM's is: (B, H, W, C) -> (B, H, W, C), in transformers with no weights beside it.

    Args:
        mixer: the mixer, which sees all of the map that it is called with.
        window: the side of the windows that the block around it cuts; 0 for none.
        rope: makes timm's table of rotary positions for this map; None without.
        pair: whether to return (map, None).
    """

    def __init__(self, mixer: Mixer, *, window: int, rope: Any, pair: bool) -> None:
        super().__init__()
        self.mixer = mixer
        self.window = window
        self.rope = rope
        self.pair = pair

    def forward(self, hidden_states: Tensor, output_attentions: bool | None = None) -> Tensor | tuple[Tensor, None]:
        """Mix all tokens of the map."""
        if output_attentions:
            raise ValueError("swapped attention has no weights to give: call the model without output_attentions")
        rotation = None if self.rope is None else Rotation.from_table(self.rope.get_embed())
        height, width = hidden_states.shape[1:3]
        mixed = self.mixer(hidden_states.flatten(1, 2), (height, width), rotation=rotation).unflatten(1, (height, width))
        return (mixed, None) if self.pair else mixed


def is_sam(module: nn.Module) -> bool:
    """Whether it is SAM's attention, or a mixer that replaced it."""
    return isinstance(module, MapAttention) or (type(module).__module__, type(module).__name__) in SAM_CLASSES


def from_sam(old: Any, block: Any, maker: MixerMaker) -> tuple[MapAttention, str]:
    """The mixer, and what changed; `block` is the one around the attention, which cuts the windows."""
    window = block.window_size if maker.keep_windows else 0
    rope = getattr(old, "rope", None)
    if rope is not None and window != block.window_size:
        raise SwapSkipped("its rotary positions are those of a window: pass keep_windows=True")
    where, before = _in_windows(window), _in_windows(block.window_size)
    if isinstance(old, MapAttention):
        try:
            mixer = maker.from_mixer(old.mixer)
        except SwapSkipped:
            if window == block.window_size:
                raise
            mixer = old.mixer
        change = describe_change(describe(old.mixer) + before, mixer, dropped(old.mixer, mixer), where=where)
        new = MapAttention(mixer, window=window, rope=rope, pair=old.pair)
    else:
        mixer = _mixer(old, maker)
        lost = ["relative positions"] if old.use_rel_pos else []
        kept = "" if rope is None else "rotary positions"
        change = describe_change("softmax" + before, mixer, lost, kept=kept, where=where)
        new = MapAttention(mixer, window=window, rope=rope, pair=type(old).__module__.startswith("transformers"))
    new.training = old.training
    return new, change


def _in_windows(window: int) -> str:
    return in_windows(Window(window, window)) if window else ""


def _mixer(attention: Any, maker: MixerMaker) -> Mixer:
    """The mixer with that attention's projections, norms and dropout."""
    check_linear(qkv=attention.qkv, proj=attention.proj)
    dim = attention.qkv.in_features
    check_widths(attention.qkv.out_features // 3, attention.proj.out_features, dim=dim)
    modules = {"q": stacked((attention.qkv, slice(dim))), "kv": stacked((attention.qkv, slice(dim, None)))}
    names = ("q_norm", "k_norm", "proj", "proj_drop")
    modules |= {name: getattr(attention, name) for name in names if hasattr(attention, name)}
    heads = attention.num_attention_heads if hasattr(attention, "num_attention_heads") else attention.num_heads
    drop = attention.attn_drop.p if hasattr(attention, "attn_drop") else attention.dropout
    return maker.make(modules, attention.qkv.weight, dim, heads, attn_drop=drop, training=attention.training)
