"""Linear attention that divides by the row sum: what InLine is compared with.

Shapes: q (B, heads, M, d), k (B, heads, N, d), v (B, heads, N, e), mask (B, N), True where a key is valid.
"""

from torch import Tensor

from .kernels import Rotation
from .sums import count_valid, zero_masked


def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, eps: float = 1e-6, rotation: Rotation | None = None
) -> Tensor:
    """phi(q).(mean_j phi(k_j) v_j^T) / (phi(q).(mean_j phi(k_j)) + eps): `reference.linear_weights(q, k) @ v` in linear time.

    q and k are given after the feature map. Means stand for sums, so that nothing grows with the number of tokens. `rotation`
    rotates q and k in the numerator only.
    """
    count = count_valid(k, mask)[:, None, None, None].clamp(min=1)
    k, v = zero_masked(k, mask), zero_masked(v, mask)
    rotated_q, rotated_k = (q, k) if rotation is None else rotation(q, k)
    return (rotated_q @ (rotated_k.mT @ v / count)) / (q @ (k.sum(-2, keepdim=True).mT / count) + eps)
