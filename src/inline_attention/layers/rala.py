"""RALA, rank-augmented linear attention (Fan et al., "Breaking the Low-Rank Dilemma of Linear Attention", CVPR 2025)."""

import torch
from torch import Tensor

from ..ops.linear import linear_attention, linear_sums
from ..ops.reference_rivals import key_shares, rala_weights
from ..ops.sums import count_valid, zero_masked
from .layout import Layout
from .mala import EPS, elu_plus_one
from .rope import Rotation
from .summary import Summaries
from .summed import BandInput, SummedMixer, Sums


class RalaAttention(SummedMixer):
    """Linear attention whose keys have shares a_j: out_i = phi(q_i)^T sum_j a_j phi(k_j) v_j^T / phi(q_i).sum_j a_j phi(k_j).

    a is the softmax over tokens of s g.phi(k_j), with g the mean of phi(q) over all queries and phi = ELU + 1. The output gate
    is a part of the published method: as it was published it has `gate=True, lepe=5, rope="heads"`.
    """

    rope_after_kernel = True
    divides = True
    reads_layout = True

    def attend(  # type: ignore[override]
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, layout: Layout, rotation: Rotation | None = None
    ) -> Tensor:
        """Linear attention of N a_j phi(k_j), whose mean is what is wanted."""
        k = elu_plus_one(k)
        shares = key_shares(k, query_mean(q, layout), mask=mask) * count_valid(k, mask)[:, None, None, None]
        return linear_attention(elu_plus_one(q), shares * k, v, mask=mask, rotation=rotation)

    def weights(  # type: ignore[override]
        self, q: Tensor, k: Tensor, mask: Tensor | None, layout: Layout, rotation: Rotation | None = None
    ) -> Tensor:
        """Rows divided by their sum."""
        mean = query_mean(q, layout)
        return rala_weights(elu_plus_one(q), elu_plus_one(k), mean, mask=mask, rotation=rotation)

    @property
    def sweeps(self) -> int:
        """Two: the mean of the queries, then the shares of the keys."""
        return 2

    def sum_tokens(self, band: BandInput, before: Summaries) -> Sums:
        """The sum of the queries; then those of exponentials, keys and values."""
        if not before:
            return Sums((zero_masked(elu_plus_one(band.q), band.mask).sum(2),))
        k = elu_plus_one(band.k)
        mean = before[0].sums[0] / before[0].count.clamp(min=1)[:, None, None]
        logits = (k @ mean.unsqueeze(-1)).squeeze(-1) * self.head_dim**-0.5  # (B, heads, n)
        if band.mask is not None:
            logits = logits.masked_fill(~band.mask[:, None], torch.finfo(k.dtype).min)
        maximum = logits.detach().amax(2)
        shares = zero_masked((logits - maximum.unsqueeze(2)).exp().unsqueeze(3), band.mask)
        turned = band.turned_keys(k)
        return Sums((shares.sum((2, 3)), *linear_sums(shares * band.in_divisor(k, turned), shares * turned, band.v)), maximum)

    def read(self, band: BandInput, summaries: Summaries) -> Tensor:
        """Rows divided by their sum."""
        total, key_sum, outer_sum = summaries[1].sums
        total = total.clamp(min=1)[..., None, None]  # it is no smaller where a token is valid
        q = elu_plus_one(band.q)
        turned = band.turned_queries(q)
        return turned @ (outer_sum / total) / (band.in_divisor(q, turned) @ (key_sum.unsqueeze(-1) / total) + EPS)


def query_mean(q: Tensor, layout: Layout) -> Tensor:
    """The mean of phi(q) over the valid queries of all tokens, (B, heads, 1, d)."""
    queries, valid = elu_plus_one(layout.queries(q)), layout.valid(q)[:, None, :, None]
    return (queries * valid).sum(2, keepdim=True) / valid.sum(2, keepdim=True).clamp(min=1)
