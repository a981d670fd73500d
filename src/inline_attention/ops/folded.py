"""Injective attention with heads folded into one C x C matrix: no query, no key, nothing split by head on the token axis.

With the identity kernel the read-out of `injective.py` is linear in x, so the projections can be multiplied into it. For an
image x (N, C) with values V = x W_v^T + b_v, their means x_bar and v_bar, and s the scale,

    sum_j k_j v_j^T = W_k,h (x^T V)[:, h]                (d, d)   for each head h, its columns of x^T V: `fold_state`
    M_h = s Cov(k, v)                                    (d, d)   means are subtracted here, from d x d sums
    A_h = W_q,h^T M_h                                    (C, d)   stacked over heads: A (C, C): `fold_read_out`
    c_h = b_q,h^T M_h + v_bar_h                          (d,)     stacked over heads: c (C,)
    out = x A + c                                        (N, C)   before the output projection

docs/math.md derives it. The key's bias adds a constant to every key and so leaves a covariance unchanged: it is not needed.
Where V itself is not needed, x^T V = (x^T x) W_v^T + x_sum b_v^T saves making it.

`fold_state` and `fold_read_out` have a state between them, which adds over bands and takes a mask. `fold_image` goes from a
whole image to A and c in a third of the operations; they are small, and for one image of few tokens their number counts.

Shapes: x (B, N, C); W (C, C) as in `nn.Linear`, head h its rows h * d to h * d + d - 1; A (B, C, C), c (B, C).
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .injective import InjectiveState
from .sums import count_valid, is_one, to_fp32, without_autocast


class HeadWeights(NamedTuple):
    """Views of the projections as `fold_image` multiplies them."""

    values: Tensor
    """W_v^T, (C, C)."""
    values_bias: Tensor | None
    """b_v, (C,)."""
    keys: Tensor
    """W_k^T of each head, (heads, C, d)."""
    queries: Tensor
    """W_q of each head, (heads, d, C)."""
    queries_bias: Tensor | None
    """b_q of each head, (heads, d, 1)."""

    @classmethod
    def of(cls, w_q: Tensor, b_q: Tensor | None, w_kv: Tensor, b_kv: Tensor | None, *, num_heads: int) -> "HeadWeights":
        """From the projections of a layer, keys and values in one."""
        channels, width = w_q.shape
        by_head = (num_heads, channels // num_heads, width)
        return cls(
            values=w_kv[channels:].t(),
            values_bias=None if b_kv is None else b_kv[channels:],
            keys=w_kv[:channels].view(by_head).mT,
            queries=w_q.view(by_head),
            queries_bias=None if b_q is None else b_q.view(*by_head[:2], 1),
        )


def fold_image(x: Tensor, x_mean: Tensor, v: Tensor, weights: HeadWeights, *, scale: float | Tensor) -> tuple[Tensor, Tensor]:
    """A (B, C, C) and c (B, C) of whole images without a mask, such that x A + c is the attention.

    Args:
        x: the layer's input, (B, N, C), in fp32 or better.
        x_mean: its mean over tokens, (B, C).
        v: the values, (B, N, C), in the same precision.
        weights: the projections.
        scale: s, a number or (heads, 1, 1).
    """
    (batch, tokens, _), (heads, _, head_dim) = x.shape, weights.keys.shape
    v_mean = x_mean @ weights.values if weights.values_bias is None else weights.values_bias.addmm(x_mean, weights.values)
    centre = v_mean.unsqueeze(2) * x_mean.unsqueeze(1)
    number = 1.0 if isinstance(scale, Tensor) else scale
    s = torch.baddbmm(centre, v.mT, x, beta=-number, alpha=number / tokens)  # (B, C, C): s Cov(v, x)
    m = torch.bmm(_rows_by_head(s, heads), weights.keys)  # (h, B d, d): M of each head, transposed
    m = m * scale if isinstance(scale, Tensor) else m
    a = _rows_of_heads(torch.bmm(m, weights.queries), batch, head_dim).mT
    if weights.queries_bias is None:
        return a, v_mean
    shift = torch.bmm(m, weights.queries_bias)
    if is_one(batch):
        return a, v_mean + shift.view(1, -1)
    return a, v_mean + _rows_of_heads(shift, batch, head_dim).squeeze(2)


def _rows_by_head(rows: Tensor, heads: int) -> Tensor:
    """(B, heads * d, W) -> (heads, B * d, W)."""
    batch, channels, width = rows.shape
    if is_one(batch):  # a view, without a transposition
        return rows.view(heads, channels // heads, width)
    head_dim = channels // heads
    return rows.view(batch, heads, head_dim, width).transpose(0, 1).reshape(heads, batch * head_dim, width)


def _rows_of_heads(by_head: Tensor, batch: int, head_dim: int) -> Tensor:
    """(heads, B * d, W) -> (B, heads * d, W)."""
    heads, _, width = by_head.shape
    if is_one(batch):
        return by_head.view(1, heads * head_dim, width)
    return by_head.view(heads, batch, head_dim, width).transpose(0, 1).reshape(batch, heads * head_dim, width)


def fold_state(
    x: Tensor,
    x_sum: Tensor,
    v: Tensor | None,
    mask: Tensor | None,
    *,
    w_k: Tensor,
    w_v: Tensor,
    b_v: Tensor | None,
    num_heads: int,
) -> InjectiveState:
    """The state of values and of keys W_k x, without making the keys.

    Args:
        x: the layer's input, (B, N, C), in fp32 or better, zero where masked.
        x_sum: its sum over tokens, (B, C).
        v: the values, (B, N, C), zero where masked; None if they are not needed otherwise.
        mask: (B, N), True where valid, or None.
        w_k, w_v, b_v: the projections to keys and values.
    """
    w_k, w_v, b_v = to_fp32(w_k), to_fp32(w_v), None if b_v is None else to_fp32(b_v)
    with without_autocast(x.device):
        count = count_valid(x, mask)
        if v is None or v.dtype is x.dtype:
            v_sum = F.linear(x_sum, w_v)
            v_sum = v_sum if b_v is None else torch.addcmul(v_sum, count.unsqueeze(1), b_v)
        else:  # autocast makes values from rounded weights: they are centred by their own sum
            v_sum = v.sum(1, dtype=x.dtype)
        if v is not None:
            outer = torch.bmm(to_fp32(v).mT, x)  # (B, C, C): sum_j v_j x_j^T
        else:
            outer = torch.bmm(x.mT, x)
            outer = torch.bmm(w_v.expand_as(outer), outer)
            outer = outer if b_v is None else outer + b_v.unsqueeze(1) * x_sum.unsqueeze(1)
        batch, channels, width = outer.shape
        head_dim = channels // num_heads
        by_head = _rows_by_head(outer, num_heads)
        sums = torch.bmm(by_head, w_k.view(num_heads, head_dim, width).mT)  # (h, B d, d): for each head sum_j v_j k_j^T
        return InjectiveState(
            count,
            F.linear(x_sum, w_k).view(batch, num_heads, head_dim),
            v_sum.view(batch, num_heads, head_dim),
            sums.view(num_heads, batch, head_dim, head_dim).permute(1, 0, 3, 2),
        )


def fold_read_out(state: InjectiveState, *, w_q: Tensor, b_q: Tensor | None, scale: float | Tensor) -> tuple[Tensor, Tensor]:
    """A (B, C, C) and c (B, C), in fp32 or better, such that x A + c is what queries W_q x + b_q read from the state.

    `scale` is a number or (heads, 1, 1).
    """
    with without_autocast(state.outer_sum.device):
        value_mean, covariance = state.moments()
        (batch, heads, head_dim, _), width = covariance.shape, w_q.shape[1]
        m = covariance.permute(1, 0, 3, 2).reshape(heads, batch * head_dim, head_dim) * scale  # (h, B d, d)
        a = torch.bmm(m, to_fp32(w_q).view(heads, head_dim, width))  # (h, B d, C)
        a = _rows_of_heads(a, batch, head_dim).mT
        if b_q is None:
            return a, value_mean.flatten(1)
        shift = torch.bmm(m, to_fp32(b_q).view(heads, head_dim, 1))  # (h, B d, 1)
        return a, value_mean.flatten(1) + _rows_of_heads(shift, batch, head_dim).squeeze(2)
