"""Softmax attention, the yardstick of accuracy: quadratic in the number of tokens."""

import torch.nn.functional as F
from torch import Tensor
from typing_extensions import Unpack

from ..ops.reference import softmax_weights
from ..ops.windows import Cuts, regions
from .mixer import Mixer, MixerOptions
from .position_bias import PositionBias


class SoftmaxAttention(Mixer):
    """out_i = sum_j softmax_j(s q_i.k_j + bias_ij) v_j, through torch's `scaled_dot_product_attention`.

    In windows, tokens that were not neighbours before the map was rolled do not see each other.

    Args:
        dim, num_heads: channels, and heads that divide them.
        local: add the local residual.
        position_bias: learn a bias for each relative position in the one window of `windows`, as Swin does.
        options: as for every `Mixer`.
    """

    half_precision = True
    drops_weights = True

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        local: bool = False,
        position_bias: bool = False,
        **options: Unpack[MixerOptions],
    ) -> None:
        super().__init__(dim, num_heads, local=local, **options)
        self.position: PositionBias | None = None
        if position_bias:
            if len(self.windows) != 1 or self.windows[0].height is None or self.windows[0].width is None:
                raise ValueError(f"position_bias needs one window of known size, got windows={self.windows}")
            window = (self.windows[0].height, self.windows[0].width)
            self.position = PositionBias(window, num_heads, device=options.get("device"), dtype=options.get("dtype"))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Scaled dot product; `attn_drop` drops single weights."""
        return self._scaled_dot_product(q, k, v, None if mask is None else mask[:, None, None, :])

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """Scaled dot product."""
        return softmax_weights(q, k, mask=mask)

    def attend_window(self, q: Tensor, k: Tensor, v: Tensor, cuts: Cuts) -> Tensor:
        """With relative positions, and regions kept apart."""
        return self._scaled_dot_product(q, k, v, self._bias(q, cuts))

    def window_weights(self, q: Tensor, k: Tensor, cuts: Cuts) -> Tensor:
        """The same, dense."""
        return softmax_weights(q, k, bias=self._bias(q, cuts))

    def _scaled_dot_product(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=self.attn_drop if self.training else 0.0)

    def _bias(self, q: Tensor, cuts: Cuts) -> Tensor | None:
        """What is added to the logits, (1 or B * count, heads or 1, h w, h w): minus infinity between regions.

        Padding sees padding, so that no row is empty.
        """
        bias = None if self.position is None else self.position(cuts.size).unsqueeze(0).to(q.dtype)
        region = regions(cuts, q.device)
        if region is None:
            return bias
        apart = region[:, None, :, None] != region[:, None, None, :]
        bias = (q.new_zeros(()) if bias is None else bias).masked_fill(apart, float("-inf"))
        return bias.repeat(q.shape[0] // bias.shape[0], 1, 1, 1)
