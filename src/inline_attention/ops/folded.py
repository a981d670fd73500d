"""Injective attention with heads folded into one C x C matrix: no query, no key, nothing split by head on the token axis.

With the identity kernel the read-out of `injective.py` is linear in x, so the projections can be multiplied into it. For a
picture x (N, C) with values V = x W_v^T + b_v, their means x_bar and v_bar, and s the scale,

    S   = (1/N) x^T V - x_bar v_bar^T      (C, C)   the covariance of input and values
    M_h = W_k,h (s S)[:, h]                (d, d)   for each head h, S[:, h] the columns of that head
        = (s/N) W_k,h (x^T V)[:, h] - s k_bar_h v_bar_h^T       what is subtracted is subtracted here, where it is smallest
    A_h = W_q,h^T M_h                      (C, d)   stacked over heads: A (C, C)
    c_h = b_q,h^T M_h + v_bar_h            (d,)     stacked over heads: c (C,)
    out = x A + c                          (N, C)   before the output projection

docs/math.md derives it. The key's bias adds a constant to every key and so leaves a covariance unchanged: it is not needed.
Where no one needs V itself, S = Cov(x, x) W_v^T spares its making.

Shapes: x (B, N, C); W (C, C) as in `nn.Linear`, head h its rows h * d to h * d + d - 1; A (B, C, C), c (B, C).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from .masking import mean_valid
from .precision import wide, without_autocast


def fold_attention(
    x: Tensor,
    x_mean: Tensor,
    v: Tensor | None,
    mask: Tensor | None,
    *,
    w_q: Tensor,
    b_q: Tensor | None,
    w_k: Tensor,
    w_v: Tensor,
    b_v: Tensor | None,
    num_heads: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """A (B, C, C) and c (B, C), in fp32 or better, such that x A + c is injective attention of x.

    Args:
        x: the layer's input, (B, N, C), in fp32 or better, zero where masked.
        x_mean: its mean over valid tokens, (B, C).
        v: the values, (B, N, C), zero where masked; None if they are not needed otherwise.
        mask: (B, N), True where valid, or None.
        w_q, b_q, w_k, w_v, b_v: the projections to queries, keys and values.
    """
    with without_autocast(x.device):
        if v is None:  # a covariance does not see the value's bias
            outer = torch.bmm(x.mT, x)
            outer = torch.bmm(wide(w_v).expand_as(outer), outer)
            centre = F.linear(x_mean, wide(w_v))
            v_mean = centre if b_v is None else centre + wide(b_v)
            v_mean = v_mean if mask is None else v_mean * mask.any(1, keepdim=True)
        else:
            outer = torch.bmm(wide(v).mT, x)
            if v.dtype is x.dtype:
                v_mean = F.linear(x_mean, w_v, b_v)
                v_mean = v_mean if mask is None else v_mean * mask.any(1, keepdim=True)
            else:  # values in half precision were made by rounded weights: their own mean is what they have to be centred by
                v_mean = mean_valid(wide(v), mask)
            centre = v_mean
        batch, channels, width = outer.shape
        heads, head_dim, count = num_heads, channels // num_heads, x.shape[1]
        if mask is not None:
            outer, count = outer / mask.sum(1).clamp(min=1)[:, None, None], 1
        k_mean = F.linear(x_mean, wide(w_k)).view(batch, heads, 1, head_dim)
        means = (centre.view(batch, heads, head_dim, 1) * k_mean).transpose(0, 1)  # (h, B, d, d)
        by_head = outer.view(batch, heads, head_dim, width).transpose(0, 1).reshape(heads, batch * head_dim, width)
        m = torch.baddbmm(
            means.reshape(heads, batch * head_dim, head_dim), by_head, wide(w_k).view(heads, head_dim, width).mT,
            beta=-scale, alpha=scale / count,
        )  # (h, B d, d), the transpose of M_h for each picture  # fmt: skip
        a = torch.bmm(m, wide(w_q).view(heads, head_dim, width))  # (h, B d, C)
        a = a.view(heads, batch, head_dim, width).transpose(0, 1).reshape(batch, channels, width).mT
        if b_q is None:
            return a, v_mean
        shift = torch.bmm(m, wide(b_q).view(heads, head_dim, 1))  # (h, B d, 1)
        return a, v_mean + shift.view(heads, batch, head_dim).transpose(0, 1).reshape(batch, channels)
