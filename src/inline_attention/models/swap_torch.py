"""Mixers in the place of torch's `nn.MultiheadAttention` where it is self-attention, as in torchvision's ViT.

How it is called decides what it computes, so it is looked at on an example.
"""

from typing import Any

from torch import Tensor, nn

from ..layers import Mixer
from .swap_grid import TokenGrid, mix
from .swap_mixer import MixerMaker, SwapSkipped, plain_linear, stacked
from .swap_watch import Frame


class TorchAttention(nn.Module):
    """Called as torch's is, with the same tokens thrice: (B, N, C) -> (B, N, C) and None for the weights.

    Args:
        mixer: the mixer.
        token_grid: the grid of its tokens; None if it is unknown.
    """

    batch_first = True
    in_proj_bias = None
    """torch's encoder layer reads these two: with them it calls this module, and not a kernel of its own."""

    def __init__(self, mixer: Mixer, token_grid: TokenGrid | None) -> None:
        super().__init__()
        self.mixer = mixer
        self.token_grid = token_grid

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        """Mix all tokens. There are no weights to give."""
        why = _not_plain(query, key, value, key_padding_mask, attn_mask, is_causal)
        if why:
            raise ValueError(f"swapped attention is self-attention of all tokens, and was called {why}: leave it as it was")
        return mix(self.mixer, query, self.token_grid), None


def is_torch(module: nn.Module) -> bool:
    """Whether it is exactly torch's class."""
    return type(module) is nn.MultiheadAttention


def _not_plain(query: Any, key: Any, value: Any, key_padding_mask: Any, attn_mask: Any, is_causal: bool) -> str:
    """Why a call is not self-attention of all tokens; empty if it is."""
    if key is not query or value is not query:
        return "with other keys or values than its queries"
    for name, mask in (("key_padding_mask", key_padding_mask), ("attn_mask", attn_mask)):
        if mask is not None:
            return f"with {name} of shape {tuple(mask.shape)}"
    return "with is_causal=True" if is_causal else ""


def from_torch(attention: Any, frame: Frame, maker: MixerMaker) -> Mixer:
    """The mixer with that attention's projections and dropout."""
    given = {"key_padding_mask": None, "attn_mask": None, "is_causal": False, **frame.arguments}
    why = _not_plain(*(given[name] for name in ("query", "key", "value", "key_padding_mask", "attn_mask", "is_causal")))
    if why:
        raise SwapSkipped(f"it is called {why}")
    if not attention.batch_first or given["query"].ndim != 3:
        raise SwapSkipped(
            f"its tokens are {tuple(given['query'].shape)} with batch_first={attention.batch_first}: not (B, N, C)"
        )
    if attention.in_proj_weight is None or attention.bias_k is not None or attention.add_zero_attn:
        raise SwapSkipped("it has kdim, vdim, bias_k or add_zero_attn")
    inputs = _linear(attention.in_proj_weight, attention.in_proj_bias)
    dim, out = attention.embed_dim, attention.out_proj
    modules = {
        "q": stacked((inputs, slice(dim))),
        "kv": stacked((inputs, slice(dim, None))),
        "proj": _linear(out.weight, out.bias).train(attention.training),
    }
    drop, training = attention.dropout, attention.training
    return maker.make(modules, inputs.weight, dim, attention.num_heads, attn_drop=drop, training=training)


def _linear(weight: nn.Parameter, bias: nn.Parameter | None) -> nn.Linear:
    return plain_linear(weight.detach(), None if bias is None else bias.detach(), learns=weight.requires_grad)
