"""NaLaFormer's norm-aware linear attention (Meng et al., "NaLaFormer: Norm-Aware Linear Attention", ICML 2026)."""

import torch
from torch import Tensor

from .divided import DividedMixer


class NalaAttention(DividedMixer):
    """Linear attention of 2 d channels whose query map is the sharper, the longer the query: it does not forget the length.

        r = |q|,  p = 3 (1/2 + tanh r)     phi(q) = [(ReLU(q) / r)^p, (ReLU(-q) / r)^p]     phi(k) = [ReLU(k)^3, ReLU(-k)^3]

    A query of zeros reads zero. Rotary positions turn each half.
    As it was published it has `gate="silu", out_norm=True, lepe=5, rope="heads"`.
    """

    def map_queries(self, q: Tensor) -> Tensor:
        """The direction, sharpened by the length."""
        return query_map(q)

    def map_keys(self, k: Tensor) -> Tensor:
        """Cubes."""
        return key_map(k)


def query_map(q: Tensor) -> Tensor:
    """(B, heads, M, d) -> (B, heads, M, 2 d): the direction, its entries to a power between 1.5 and 4.5, by the length."""
    length = torch.linalg.vector_norm(q, dim=-1, keepdim=True)
    power = 3 * (0.5 + torch.tanh(length))
    direction = q / length.clamp(min=torch.finfo(q.dtype).tiny ** 0.5)  # a query of zeros has none: zeros, and no NaN
    return torch.cat([torch.relu(direction) ** power, torch.relu(-direction) ** power], -1)


def key_map(k: Tensor) -> Tensor:
    """(B, heads, N, d) -> (B, heads, N, 2 d): cubes of the positive and of the negative entries."""
    return torch.cat([torch.relu(k) ** 3, torch.relu(-k) ** 3], -1)
