"""Efficient attention (Shen et al., "Efficient Attention: Attention with Linear Complexities", WACV 2021)."""

import torch
from torch import Tensor

from ..ops.reference import efficient_weights
from ..ops.sums import zero_masked
from .rope import Rotation
from .summary import Summaries
from .summed import BandInput, SummedMixer, Sums


class EfficientAttention(SummedMixer):
    """out_i = softmax over channels of q_i, times (softmax over tokens of k)^T v."""

    rope_after_kernel = True

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, rotation: Rotation | None = None) -> Tensor:
        """Two softmaxes, each along a cheap axis."""
        if mask is not None:
            k = k.masked_fill(~mask[:, None, :, None], torch.finfo(k.dtype).min)
        q, k = q.softmax(-1), k.softmax(-2)
        q, k = (q, k) if rotation is None else rotation(q, k)
        return q @ (k.mT @ v)

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None, rotation: Rotation | None = None) -> Tensor:
        """Product of the two softmaxes."""
        return efficient_weights(q, k, mask=mask, rotation=rotation)

    @property
    def sweeps(self) -> int:
        """Two with rotary positions: they mix channels, each of which must have been divided by its sum before."""
        return 1 if self.rope is None else 2

    def sum_tokens(self, band: BandInput, before: Summaries) -> Sums:
        """The divisor of each channel's softmax over tokens, and keys and values; then the same of turned keys, divided."""
        if before:
            (first,) = before
            assert first.maximum is not None
            k = (band.k - first.maximum.unsqueeze(2)).exp() / first.sums[0].clamp(min=1).unsqueeze(2)
            return Sums((band.turned_keys(zero_masked(k, band.mask)).mT @ band.v,))
        k = band.k if band.mask is None else band.k.masked_fill(~band.mask[:, None, :, None], torch.finfo(band.k.dtype).min)
        maximum = k.detach().amax(2)
        k = zero_masked((k - maximum.unsqueeze(2)).exp(), band.mask)
        return Sums((k.sum(2), k.mT @ band.v), maximum)

    def read(self, band: BandInput, summaries: Summaries) -> Tensor:
        """Queries after their softmax read from the outer product."""
        if self.rope is not None:
            return band.turned_queries(band.q.softmax(-1)) @ summaries[1].sums[0]
        divisor, outer_sum = summaries[0].sums
        return band.q.softmax(-1) @ (outer_sum / divisor.clamp(min=1).unsqueeze(-1))
