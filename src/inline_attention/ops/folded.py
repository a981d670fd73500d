"""Injective attention with heads folded into one C x C matrix: no query, no key, nothing split by head on the token axis.

With the identity kernel the read-out of `injective.py` is linear in x, so the projections can be multiplied into it. For a
picture x (N, C) with values V = x W_v^T + b_v, their means x_bar and v_bar, and s the scale,

    S   = (1/N) x^T V - x_bar v_bar^T      (C, C)   the covariance of input and values
    M_h = W_k,h (s S)[:, h]                (d, d)   for each head h, S[:, h] the columns of that head
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
        if v is None or v.dtype is x.dtype:
            v_mean = F.linear(x_mean, wide(w_v), None if b_v is None else wide(b_v))
            v_mean = v_mean if mask is None else v_mean * mask.any(1, keepdim=True)
        else:  # values in half precision were made by rounded weights: their mean is what they have to be centred by
            v = wide(v)
            v_mean = mean_valid(v, mask)
        if v is None:
            cov = F.linear(_scaled_covariance(x, x, x_mean, x_mean, mask, scale), wide(w_v))
        else:
            cov = _scaled_covariance(x, v, x_mean, v_mean, mask, scale)
        batch, width, channels = cov.shape
        head_dim = channels // num_heads
        by_head = cov.view(batch, width, num_heads, head_dim).permute(2, 1, 0, 3)  # (h, C, B, d)
        m = torch.bmm(
            wide(w_k).view(num_heads, head_dim, width), by_head.reshape(num_heads, width, batch * head_dim)
        )  # (h, d, B d)
        a = torch.bmm(wide(w_q).view(num_heads, head_dim, width).mT, m)  # (h, C, B d)
        a = a.view(num_heads, width, batch, head_dim).permute(2, 1, 0, 3).reshape(batch, width, channels)
        if b_q is None:
            return a, v_mean
        shift = torch.bmm(wide(b_q).view(num_heads, 1, head_dim), m)  # (h, 1, B d)
        return a, v_mean + shift.view(num_heads, batch, head_dim).transpose(0, 1).reshape(batch, channels)


def _scaled_covariance(x: Tensor, y: Tensor, x_mean: Tensor, y_mean: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """s ((1/N) sum_n x_n y_n^T - x_bar y_bar^T): (B, C, D) for x (B, N, C), y (B, N, D), both zero where masked.

    What is divided is the sum, and not the tokens: forward and backward, only C x D matrices are touched again.
    """
    outer, count = torch.bmm(x.mT, y), x.shape[1]
    if mask is not None:
        outer, count = outer / mask.sum(1).clamp(min=1)[:, None, None], 1
    return torch.baddbmm(outer, x_mean.unsqueeze(2), y_mean.unsqueeze(1), beta=scale / count, alpha=-scale)
