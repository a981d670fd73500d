"""Dense attention weights of MALA, RALA, MHLA and Agent attention, from their equations; `ops/reference.py` has the paper's.

MILA, PolaFormer and NaLaFormer are `reference.linear_weights` after feature maps of their own, which are in their layers'
files; ViT^3 is no weighted sum of values.

Shapes: q (B, heads, M, d), k (B, heads, N, d), mask (B, N), True where a key is valid; weights (B, heads, M, N).
Feature maps are applied by the caller: where a formula says phi(q), q here is already mapped.
"""

import torch
from torch import Tensor

from .kernels import Rotation, rotate
from .sums import count_valid, zero_masked


def mala_weights(
    q: Tensor,
    k: Tensor,
    *,
    scale: float | None = None,
    mask: Tensor | None = None,
    eps: float = 1e-6,
    rotation: Rotation | None = None,
) -> Tensor:
    """(1 + 1 / (z_i + eps)) (s/N) R_i phi(q_i).R_j phi(k_j) - z_i / N, with z_i = (s/N) sum_t phi(q_i).phi(k_t) (Fan et al.).

    Rows sum to 1 without rotary positions R; entries may be negative.
    """
    scale = float(q.shape[-1]) ** -0.5 if scale is None else scale
    rotated_q, rotated_k, q, k = rotate(q, zero_masked(k, mask), rotation)
    count = count_valid(k, mask)[:, None, None, None].clamp(min=1)
    z = scale / count * (q @ k.mT).sum(-1, keepdim=True)
    weights = (1 + 1 / (z + eps)) * (scale / count) * (rotated_q @ rotated_k.mT) - z / count
    return weights if mask is None else weights.masked_fill(~mask[:, None, None, :], 0)


def rala_weights(
    q: Tensor,
    k: Tensor,
    query_mean: Tensor,
    *,
    scale: float | None = None,
    mask: Tensor | None = None,
    eps: float = 1e-6,
    rotation: Rotation | None = None,
) -> Tensor:
    """a_j R_i phi(q_i).R_j phi(k_j) / (sum_t a_t phi(q_i).phi(k_t) + eps), a = softmax over j of s g.phi(k_j) (Fan et al.).

    Args:
        query_mean: g, the mean of phi(q) over all queries, (B, heads, 1, d).
    """
    a = key_shares(k, query_mean, scale=scale, mask=mask)  # (B, heads, N, 1)
    rotated_q, rotated_k, q, k = rotate(q, zero_masked(k, mask), rotation)
    return rotated_q @ (a * rotated_k).mT / ((q @ (a * k).mT).sum(-1, keepdim=True) + eps)


def key_shares(k: Tensor, query_mean: Tensor, *, scale: float | None = None, mask: Tensor | None = None) -> Tensor:
    """softmax over tokens of s g.phi(k_j), (B, heads, N, 1); zero where masked."""
    scale = float(k.shape[-1]) ** -0.5 if scale is None else scale
    logits = scale * (zero_masked(k, mask) @ query_mean.mT)
    if mask is None:
        return logits.softmax(-2)
    hidden = ~mask[:, None, :, None]
    return logits.masked_fill(hidden, torch.finfo(k.dtype).min).softmax(-2).masked_fill(hidden, 0)


def block_weights(
    q: Tensor,
    k: Tensor,
    mixing: Tensor,
    *,
    divisor: Tensor | None = None,
    mask: Tensor | None = None,
    eps: float = 1e-6,
    rotation: Rotation | None = None,
) -> Tensor:
    """p_ij R_i phi(q_i).R_j phi(k_j) / (D_i + eps): linear attention whose weights depend on two tokens' blocks (Zhang et al.).

    Args:
        mixing: p, (M, N): how much the block of query i reads of the block of key j.
        divisor: D, (B, heads, M, 1); sum_t p_it phi(q_i).phi(k_t) if None, which makes rows sum to 1.
    """
    rotated_q, rotated_k, q, k = rotate(q, zero_masked(k, mask), rotation)
    divisor = (mixing * (q @ k.mT)).sum(-1, keepdim=True) if divisor is None else divisor
    return mixing * (rotated_q @ rotated_k.mT) / (divisor + eps)


def published_divisor(q: Tensor, k: Tensor, mixing: Tensor, block: Tensor, place: Tensor, *, mask: Tensor | None) -> Tensor:
    """MHLA's divisor as its code has it: D_i = sum over l of p_il phi(q_l).(sum of the keys of l's block).

    l are the tokens that have the same place in their blocks as i. Each term has the query of l, not that of i.

    Args:
        mixing: p, (N, N).
        block, place: (N,): the block of each token, and its place in it.

    Returns:
        (B, heads, N, 1).
    """
    same_block, same_place = block[:, None] == block, place[:, None] == place
    own = (q @ zero_masked(k, mask).mT).masked_fill(~same_block, 0).sum(-1, keepdim=True)  # phi(q_l).(sum of l's keys)
    return (mixing * same_place) @ zero_masked(own, mask)


def agent_weights(
    q: Tensor,
    k: Tensor,
    agents: Tensor,
    key_bias: Tensor,
    query_bias: Tensor,
    *,
    scale: float | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """softmax(s q A^T + B2) softmax over keys(s A k^T + B1): queries read a few agents, which have read the keys (Han et al.).

    Rows sum to 1 and are positive.

    Args:
        agents: A, (B, heads, n, d).
        key_bias: B1, (heads, n, N).
        query_bias: B2, (heads, M, n).
    """
    scale = float(q.shape[-1]) ** -0.5 if scale is None else scale
    reading = scale * (agents @ zero_masked(k, mask).mT) + key_bias
    if mask is not None:
        hidden = ~mask[:, None, None, :]
        reading = reading.masked_fill(hidden, torch.finfo(k.dtype).min).softmax(-1).masked_fill(hidden, 0)
    else:
        reading = reading.softmax(-1)
    return (scale * (q @ agents.mT) + query_bias).softmax(-1) @ reading
