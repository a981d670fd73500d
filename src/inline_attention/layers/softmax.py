"""Softmax attention, the yardstick of accuracy: quadratic in the number of tokens."""

import torch.nn.functional as F
from torch import Tensor

from ..ops.reference import softmax_weights
from .mixer import Mixer


class SoftmaxAttention(Mixer):
    """out_i = sum_j softmax_j(s q_i.k_j) v_j, through torch's `scaled_dot_product_attention`."""

    half_precision = True
    drops_weights = True

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Scaled dot product; `attn_drop` drops single weights."""
        keys = None if mask is None else mask[:, None, None, :]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=keys, dropout_p=self.attn_drop if self.training else 0.0)

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """Scaled dot product."""
        return softmax_weights(q, k, mask=mask)
