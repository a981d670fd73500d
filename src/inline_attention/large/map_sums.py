"""What decoders need from the whole map before they can give a row of it: sums, which bands add up to.

GroupNorm's mean and variance are the moments of all pixels; the bins of an adaptive average pooling are sums over a part of the
rows. Both are kept in float64. Shapes: rows (1, C, rows, W).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class Moments:
    """Count, mean and sum of squared deviations from the mean of each channel. Moments of bands add.

    They merge by the formula of Chan, Golub & LeVeque (1979), in which nothing cancels: a mean that is large beside the
    deviation costs no digits.
    """

    count: int
    mean: Tensor
    """(C,), float64."""
    squares: Tensor
    """(C,), float64."""

    @classmethod
    def of(cls, rows: Tensor) -> Moments:
        """Of some rows."""
        pixels = rows[0].permute(1, 2, 0).flatten(0, 1)
        mean = pixels.mean(0)
        deviation = pixels - mean
        # The mean is rounded to the precision of the map; the mean of the deviations is what it is off by.
        off = deviation.mean(0).double()
        squares = deviation.square().sum(0).double() - len(pixels) * off.square()
        return cls(len(pixels), mean.double() + off, squares)

    def __add__(self, other: Moments) -> Moments:
        """Of both sets of pixels together."""
        count = self.count + other.count
        apart = other.mean - self.mean
        squares = self.squares + other.squares + apart.square() * (self.count * other.count / count)
        return Moments(count, self.mean + apart * (other.count / count), squares)

    def of_groups(self, groups: int) -> tuple[Tensor, Tensor]:
        """Mean and variance of the pixels of all channels of a group, (groups,)."""
        means = self.mean.view(groups, -1)
        mean = means.mean(1)
        within = self.squares.view(groups, -1).mean(1) / self.count
        return mean, within + (means - mean.unsqueeze(1)).square().mean(1)


def group_norm(rows: Tensor, norm: nn.GroupNorm, moments: Moments) -> Tensor:
    """Rows of the normalised map, from the moments of all of it."""
    mean, variance = (part.repeat_interleave(rows.shape[1] // norm.num_groups) for part in moments.of_groups(norm.num_groups))
    scale = (variance + norm.eps).rsqrt()
    shift = -mean * scale
    if norm.affine:
        scale, shift = scale * norm.weight, shift * norm.weight + norm.bias
    scale, shift = (part.to(rows.dtype).view(-1, 1, 1) for part in (scale, shift))
    return torch.addcmul(shift, rows, scale)


def pool_rows(rows: Tensor, start: int, height: int, bins: int) -> Tensor:
    """What some rows add to the average pooling of the whole map to (bins, bins); the sum over bands is that pooling.

    Bin i has the rows from floor(i height / bins) to before ceil((i + 1) height / bins): bins may overlap.

    Args:
        start: where the first row lies in the map.
        height: of the map.

    Returns:
        (1, C, bins, bins), float64.
    """
    across = F.adaptive_avg_pool2d(rows, (rows.shape[2], bins)).double()
    number, row = torch.arange(bins).unsqueeze(1), torch.arange(start, start + rows.shape[2])
    first, stop = number * height // bins, -(-(number + 1) * height // bins)
    weights = ((first <= row) & (row < stop)) / (stop - first).double()
    return torch.einsum("br,ncrw->ncbw", weights.to(across.device), across)
