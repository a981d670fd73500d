"""MALA, magnitude-aware linear attention (Fan et al., "Rectifying Magnitude Neglect in Linear Attention", ICCV 2025)."""

import torch
from torch import Tensor

from ..ops.kernels import rotate
from ..ops.reference_rivals import mala_weights
from ..ops.sums import count_valid, zero_masked
from .rope import Rotation
from .summary import Summaries
from .summed import BandInput, SummedMixer, Sums

EPS = 1e-6


class MalaAttention(SummedMixer):
    """out_i = (1 + 1/z_i) (R_i phi(q_i))^T (s/N) sum_j R_j phi(k_j) v_j^T - z_i v_bar, with z_i = s phi(q_i).(mean phi(k)).

    phi = ELU + 1. Without rotary positions R it is linear attention's output plus InLine's covariance term,
    s phi(q_i)^T Cov(phi(k), v). As it was published it has `gate=True, lepe=5, rope="heads"`.
    """

    rope_after_kernel = True
    divides = True

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, rotation: Rotation | None = None) -> Tensor:
        """Three means over keys, read by each query."""
        k, v = zero_masked(elu_plus_one(k), mask), zero_masked(v, mask)
        rotated_q, rotated_k, q, k = rotate(elu_plus_one(q), k, rotation)
        return self._read(q, rotated_q, count_valid(k, mask), *_sums(k, rotated_k, v))

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None, rotation: Rotation | None = None) -> Tensor:
        """Rows sum to 1, without rotary positions."""
        return mala_weights(elu_plus_one(q), elu_plus_one(k), mask=mask, eps=EPS, rotation=rotation)

    def sum_tokens(self, band: BandInput, before: Summaries) -> Sums:
        """The sums of keys, of values, and of keys and values."""
        k = zero_masked(elu_plus_one(band.k), band.mask)
        turned = band.turned_keys(k)
        return Sums(_sums(band.in_divisor(k, turned), turned, band.v))

    def read(self, band: BandInput, summaries: Summaries) -> Tensor:
        """As in `attend`."""
        q = elu_plus_one(band.q)
        turned = band.turned_queries(q)
        return self._read(band.in_divisor(q, turned), turned, summaries[0].count, *summaries[0].sums)

    def _read(
        self, q: Tensor, rotated_q: Tensor, count: Tensor, key_sum: Tensor, value_sum: Tensor, outer_sum: Tensor
    ) -> Tensor:
        count = count[:, None, None, None].clamp(min=1)
        scale = self.head_dim**-0.5 / count
        z = q @ (key_sum.unsqueeze(-1) * scale)
        return (1 + 1 / (z + EPS)) * (rotated_q @ (outer_sum * scale)) - z * (value_sum.unsqueeze(-2) / count)


def _sums(k: Tensor, rotated_k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return k.sum(-2), v.sum(-2), rotated_k.mT @ v


def elu_plus_one(x: Tensor) -> Tensor:
    """phi(x) = ELU(x) + 1: x + 1 where positive, exp(x) elsewhere."""
    return torch.relu(x) + x.clamp(max=0).exp()
