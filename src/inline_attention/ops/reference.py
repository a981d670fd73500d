"""Dense attention weights, straight from the equations: slow, obvious, and the yardstick of every test.

Shapes: q (B, heads, M, d), k (B, heads, N, d), mask (B, N), True where a key is valid; weights (B, heads, M, N).
Feature maps are applied by the caller: where a formula says phi(q), q here is already mapped.
Every function costs M x N memory. Pass chosen queries to get chosen rows.
"""

from math import pi

import torch
from torch import Tensor

from .checks import Grid
from .kernels import Rotation, rotate
from .sums import count_valid, zero_masked


def softmax_weights(
    q: Tensor, k: Tensor, *, scale: float | None = None, mask: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """exp(s q_i.k_j + b_ij) / sum_t exp(s q_i.k_t + b_it), the bias b broadcast to (B, heads, M, N)."""
    similarity = _scale(q, scale) * (q @ zero_masked(k, mask).mT)
    similarity = similarity if bias is None else similarity + bias
    if mask is None:
        return similarity.softmax(-1)
    hidden = ~mask[:, None, None, :]
    return similarity.masked_fill(hidden, torch.finfo(q.dtype).min).softmax(-1).masked_fill(hidden, 0)


def linear_weights(
    q: Tensor, k: Tensor, *, mask: Tensor | None = None, eps: float = 1e-6, rotation: Rotation | None = None
) -> Tensor:
    """phi(q_i).phi(k_j) / (sum_t phi(q_i).phi(k_t) + N eps): the row is divided by its sum.

    Dividing forgets the length of phi(q): queries on one ray get the same row. With rotary positions R, the numerator is
    R_i phi(q_i).R_j phi(k_j), and the divisor is unchanged, unless the rotation is one for both.
    """
    rotated_q, rotated_k, q, k = rotate(q, zero_masked(k, mask), rotation)
    count = count_valid(k, mask)[:, None, None, None].clamp(min=1)
    return rotated_q @ rotated_k.mT / ((q @ k.mT).sum(-1, keepdim=True) + count * eps)


def injective_weights(q: Tensor, k: Tensor, *, scale: float | Tensor | None = None, mask: Tensor | None = None) -> Tensor:
    """(s/N) phi(q_i).phi(k_j) - (1/N) sum_t (s/N) phi(q_i).phi(k_t) + 1/N: the row's mean is subtracted.

    Equation 5 of the paper with the factor s/N of the trained models. Rows sum to 1; entries may be negative.
    N counts valid keys; masked keys weigh nothing. `scale` may be a tensor (heads, 1, 1).
    """
    count = count_valid(k, mask)[:, None, None, None].clamp(min=1)
    similarity = _scale(q, scale) / count * (q @ zero_masked(k, mask).mT)
    weights = similarity - similarity.sum(-1, keepdim=True) / count + 1 / count
    return weights if mask is None else weights.masked_fill(~mask[:, None, None, :], 0)


def efficient_weights(q: Tensor, k: Tensor, *, mask: Tensor | None = None, rotation: Rotation | None = None) -> Tensor:
    """softmax over channels of q_i, times softmax over tokens of k (Shen et al.); rotary positions turn both softmaxes."""
    hidden = None if mask is None else ~mask[:, None, :, None]
    over_tokens = k.softmax(-2) if hidden is None else k.masked_fill(hidden, torch.finfo(k.dtype).min).softmax(-2)
    q, k = (q.softmax(-1), over_tokens) if rotation is None else rotation(q.softmax(-1), over_tokens)
    return q @ (k if hidden is None else k.masked_fill(hidden, 0)).mT


def angular_weights(q: Tensor, k: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """(1/2 + q_i.k_j / pi) / N for q and k of unit length (Castling-ViT)."""
    count = count_valid(k, mask)[:, None, None, None].clamp(min=1)
    weights = (0.5 + q @ k.mT / pi) / count
    return weights if mask is None else weights.masked_fill(~mask[:, None, None, :], 0)


def hydra_weights(q: Tensor, k: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """q_ic k_jc for each channel c: every channel is a head of its own. Returns (B, heads * d, M, N)."""
    return (q.unsqueeze(3) * zero_masked(k, mask).unsqueeze(2)).movedim(-1, 2).flatten(1, 2)


def local_weights(kernels: Tensor, grid: Grid, queries: Tensor) -> Tensor:
    """The dense rows of a depthwise convolution: how much each query takes from each position of the grid.

    Args:
        kernels: (B, C, *kernel_size).
        grid: as many sides as the kernels have.
        queries: (M,), indices on the flattened grid.

    Returns:
        (B, C, M, N): the kernel of the channel, laid around the query, and zero elsewhere.
    """
    kernel_size = kernels.shape[2:]
    sides = [torch.arange(side, device=kernels.device) for side in grid]
    positions = torch.stack(torch.meshgrid(*sides, indexing="ij"), -1).flatten(0, -2)  # (N, sides)
    number = torch.zeros(
        len(queries), len(positions), dtype=torch.long, device=kernels.device
    )  # which tap lies on which position
    inside = torch.ones_like(number, dtype=torch.bool)
    for side, size in enumerate(kernel_size):
        tap = positions[:, side] - positions[queries, side].unsqueeze(1) + (size - 1) // 2  # (M, N)
        inside &= (tap >= 0) & (tap < size)
        number = number * size + tap
    return kernels.flatten(2)[:, :, number.masked_fill(~inside, 0)].masked_fill(~inside, 0)


def _scale(q: Tensor, scale: float | Tensor | None) -> float | Tensor:
    return float(q.shape[-1]) ** -0.5 if scale is None else scale
