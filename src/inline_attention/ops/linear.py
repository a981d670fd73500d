"""Linear attention that divides by the row sum: what InLine is compared with.

Shapes: q (B, heads, M, d), k (B, heads, N, d), v (B, heads, N, e), mask (B, N), True where a key is valid.
"""

from torch import Tensor

from .kernels import Rotation, rotate
from .sums import count_valid, zero_masked


def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, eps: float = 1e-6, rotation: Rotation | None = None
) -> Tensor:
    """phi(q).(mean_j phi(k_j) v_j^T) / (phi(q).(mean_j phi(k_j)) + eps): `reference.linear_weights(q, k) @ v` in linear time.

    q and k are given after the feature map. Means stand for sums, so that nothing grows with the number of tokens. `rotation`
    rotates q and k in the numerator, and in the divisor only if it says so.
    """
    k, v = zero_masked(k, mask), zero_masked(v, mask)
    rotated_q, rotated_k, q, k = rotate(q, k, rotation)
    return read_linear(q, rotated_q, count_valid(k, mask), *linear_sums(k, rotated_k, v), eps=eps)


def linear_sums(k: Tensor, rotated_k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """sum_j phi(k_j), (B, heads, d), and sum_j phi(k_j) v_j^T, (B, heads, d, e), of keys and values that are zero where masked.

    `rotated_k` is k where nothing is rotated.
    """
    return k.sum(-2), rotated_k.mT @ v


def read_linear(
    q: Tensor, rotated_q: Tensor, count: Tensor, key_sum: Tensor, outer_sum: Tensor, *, eps: float = 1e-6
) -> Tensor:
    """What queries (B, heads, M, d) read from the sums over `count`, (B,), keys: (B, heads, M, e)."""
    count = count[:, None, None, None].clamp(min=1)
    return (rotated_q @ (outer_sum / count)) / (q @ (key_sum.unsqueeze(-1) / count) + eps)
