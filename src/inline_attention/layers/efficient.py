"""Efficient attention (Shen et al., "Efficient Attention: Attention with Linear Complexities", WACV 2021)."""

import torch
from torch import Tensor

from ..ops.reference import efficient_weights
from .mixer import Mixer
from .rope import Rotation


class EfficientAttention(Mixer):
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
