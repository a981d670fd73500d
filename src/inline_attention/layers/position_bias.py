"""Relative positions as a learned bias of the logits (Liu et al., "Swin Transformer", ICCV 2021)."""

import torch
import torch.nn.functional as F
from timm.layers import trunc_normal_
from torch import Tensor, nn


class PositionBias(nn.Module):
    """bias[head, i, j] = table[dy + h - 1, dx + w - 1, head] with (dy, dx) = place of query i minus place of key j.

    The table is (2 h - 1, 2 w - 1, heads): its shape records the window that it was learned for. A smaller window has smaller
    distances, whose entries are in the middle of the table; for a larger one the table is resampled (`resample_table`).
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
        """(h, w) that the table was made for."""
        return (self.table.shape[0] + 1) // 2, (self.table.shape[1] + 1) // 2

    def reset_parameters(self) -> None:
        """Normal, of deviation 0.02."""
        trunc_normal_(self.table, std=0.02)

    def forward(self, window: tuple[int, int]) -> Tensor:
        """(heads, h w, h w) for a window no larger than the table's."""
        distances = []
        for size, learned in zip(window, self.window, strict=True):
            place = torch.arange(size, device=self.table.device)
            distances.append(place[:, None] - place + learned - 1)
        dy, dx = distances
        bias = self.table[dy[:, None, :, None], dx[None, :, None, :]]  # (h, w, h, w, heads)
        return bias.flatten(2, 3).flatten(0, 1).permute(2, 0, 1)


def resample_table(table: Tensor, window: tuple[int, int]) -> Tensor:
    """The table (2 h - 1, 2 w - 1, heads) of one window for another, by bicubic interpolation."""
    size = (2 * window[0] - 1, 2 * window[1] - 1)
    if table.shape[:2] == size:
        return table
    picture = table.float().permute(2, 0, 1).unsqueeze(0)
    return F.interpolate(picture, size=size, mode="bicubic").squeeze(0).permute(1, 2, 0).to(table.dtype)
