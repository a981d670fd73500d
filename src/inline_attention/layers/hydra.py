"""Hydra attention (Bolya et al., "Hydra Attention: Efficient Attention with Many Heads", ECCV Workshops 2022)."""

import torch
from torch import Tensor

from ..ops.reference import hydra_weights
from ..ops.sums import zero_masked
from .summary import Summaries
from .summed import BandInput, SummedMixer, Sums


class HydraAttention(SummedMixer):
    """out_i = q_i * sum_j (k_j * v_j), elementwise, with q and k of unit length over all channels.

    Every channel is a head; `num_heads` only groups the local residual, where there is one. The sum is not divided by the
    number of tokens.
    """

    takes_rope = False

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """One global vector, gated by each query. Nothing divides the sum, so it is scaled up for keys that were dropped."""
        total = (zero_masked(_unit(k), mask) * v).sum(2, keepdim=True)
        return _unit(q) * (total / (1 - self.attn_drop) if self.training else total)

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """(B, C, M, N): a head for each channel."""
        return hydra_weights(_unit(q), _unit(k), mask=mask)

    def sum_tokens(self, band: BandInput, before: Summaries) -> Sums:
        """The one global vector."""
        return Sums(((zero_masked(_unit(band.k), band.mask) * band.v).sum(2),))

    def read(self, band: BandInput, summaries: Summaries) -> Tensor:
        """Gated by each query."""
        return _unit(band.q) * summaries[0].sums[0].unsqueeze(2)


def _unit(x: Tensor) -> Tensor:
    """(B, heads, N, d) with each token's vector over all heads and channels at length 1."""
    return x / torch.linalg.vector_norm(x, dim=(1, 3), keepdim=True).clamp(min=1e-12)
