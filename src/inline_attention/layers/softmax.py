"""Softmax attention, the yardstick of accuracy: quadratic in the number of tokens. With Swin's relative position bias."""

import torch
import torch.nn.functional as F
from timm.layers import trunc_normal_
from torch import Tensor, nn
from typing_extensions import Unpack

from ..ops.reference import softmax_weights
from ..ops.shifted_windows import Cuts, regions
from .mixer import Mixer, MixerOptions

WEIGHTS_AT_ONCE = 2**28
"""Attention weights that may be in memory at once where no gradient needs them: not every kernel goes without forming them."""


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

    def set_window(self, height: int, width: int, *, shifted: bool) -> None:
        """Attend in another window; a position bias is resampled to it."""
        super().set_window(height, width, shifted=shifted)
        if self.position is not None:
            self.position.set_window((height, width))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Scaled dot product; `attn_drop` drops single weights."""
        return self._scaled_dot_product(q, k, v, None if mask is None else mask[:, None, None, :])

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """Scaled dot product."""
        return softmax_weights(q, k, mask=mask)

    # rotary positions have turned q and k already: there is no rotation to take

    def attend_window(  # type: ignore[override]
        self, q: Tensor, k: Tensor, v: Tensor, cuts: Cuts, mask: Tensor | None = None
    ) -> Tensor:
        """With relative positions, and regions kept apart."""
        return self._scaled_dot_product(q, k, v, self._bias(q, cuts, mask))

    def window_weights(  # type: ignore[override]
        self, q: Tensor, k: Tensor, cuts: Cuts, mask: Tensor | None = None
    ) -> Tensor:
        """The same, dense."""
        return softmax_weights(q, k, bias=self._bias(q, cuts, mask))

    def _scaled_dot_product(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        drop = self.attn_drop if self.training else 0.0
        at_once = q.shape[2]
        if not (torch.is_grad_enabled() or torch.compiler.is_compiling()):
            at_once = max(1, WEIGHTS_AT_ONCE // (q.shape[0] * q.shape[1] * k.shape[2]))
        if q.shape[2] <= at_once:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=drop)
        queries = q.split(at_once, 2)
        biases = [bias] * len(queries) if bias is None or bias.shape[2] == 1 else bias.split(at_once, 2)
        parts = zip(queries, biases, strict=True)
        return torch.cat([F.scaled_dot_product_attention(part, k, v, attn_mask=b, dropout_p=drop) for part, b in parts], 2)

    def _bias(self, q: Tensor, cuts: Cuts, mask: Tensor | None) -> Tensor | None:
        """The bias of the logits, (1 or B * count, heads or 1, h w, h w): minus infinity between regions.

        Padding and masked tokens are a region, so that no row is empty. Where Swin adds -100, the exponential is zero in fp32
        as well.
        """
        bias = None if self.position is None else self.position(cuts.size).unsqueeze(0).to(q.dtype)
        region = regions(cuts, q.device)
        if mask is not None:
            region = (
                mask.new_zeros(mask.shape, dtype=torch.long) if region is None else region.repeat(q.shape[0] // len(region), 1)
            )
            region = region.masked_fill(~mask, -1)
        if region is None:
            return bias
        apart = region[:, None, :, None] != region[:, None, None, :]
        bias = (q.new_zeros(()) if bias is None else bias).masked_fill(apart, float("-inf"))
        return bias.repeat(q.shape[0] // bias.shape[0], 1, 1, 1)


class PositionBias(nn.Module):
    """Relative positions as a learned bias of the logits (Liu et al., "Swin Transformer", ICCV 2021).

        bias[head, i, j] = table[dy + h - 1, dx + w - 1, head],  (dy, dx) = position of query i minus position of key j

    The table is (2 h - 1, 2 w - 1, heads): its shape records the window that it was learned for, in checkpoints too. A smaller
    window has smaller distances, whose entries are in the middle of the table; for a larger one it is resampled.
    """

    def __init__(
        self,
        window: tuple[int, int],
        num_heads: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        size = (2 * window[0] - 1, 2 * window[1] - 1, num_heads)
        self.table = nn.Parameter(torch.empty(size, device=device, dtype=dtype))
        self.reset_parameters()

    @property
    def window(self) -> tuple[int, int]:
        """The (h, w) that the table was made for."""
        return (self.table.shape[0] + 1) // 2, (self.table.shape[1] + 1) // 2

    def reset_parameters(self) -> None:
        """Normal, of deviation 0.02."""
        trunc_normal_(self.table, std=0.02)

    def set_window(self, window: tuple[int, int]) -> None:
        """Resample the table to another window, in place."""
        self.table = nn.Parameter(resample_table(self.table.detach(), window), self.table.requires_grad)

    def forward(self, window: tuple[int, int]) -> Tensor:
        """(heads, h w, h w) for a window no larger than the table's."""
        distances = []
        for size, learned in zip(window, self.window, strict=True):
            position = torch.arange(size, device=self.table.device)
            distances.append(position[:, None] - position + learned - 1)
        dy, dx = distances
        bias = self.table[dy[:, None, :, None], dx[None, :, None, :]]  # (h, w, h, w, heads)
        return bias.flatten(2, 3).flatten(0, 1).permute(2, 0, 1)


def resample_table(table: Tensor, window: tuple[int, int]) -> Tensor:
    """The table (2 h - 1, 2 w - 1, heads) of one window for another, by bicubic interpolation."""
    size = (2 * window[0] - 1, 2 * window[1] - 1)
    if table.shape[:2] == size:
        return table
    image = table.float().permute(2, 0, 1).unsqueeze(0)
    return F.interpolate(image, size=size, mode="bicubic").squeeze(0).permute(1, 2, 0).to(table.dtype)
