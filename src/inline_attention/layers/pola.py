"""PolaFormer's polarity-aware linear attention (Meng et al., "PolaFormer", ICLR 2025)."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Unpack

from ..ops.checks import Grid
from ..ops.linear import linear_attention, linear_sums, read_linear
from ..ops.reference import linear_weights
from ..ops.resampling import resample_rows
from ..ops.sums import to_fp32, zero_masked
from .layout import Layout
from .mixer import MixerOptions
from .rope import Rotation
from .sized import check_sides
from .summary import Summaries
from .summed import BandInput, SummedMixer, Sums

NOWHERE = Layout(None, None)
"""Of keys that have their positions already."""


class PolaAttention(SummedMixer):
    """Linear attention of 2 d channels: the positive and the negative entries apart, each to a learned power p.

        c = softplus(scale)      q' = q / c      k' = (k + positions) / c      p = 1 + 4 sigmoid(power)
        f(t) = [ReLU(t)^p, ReLU(-t)^p]           phi(k) = f(k')

    The first half of a head's values is read by f(q'), the second by f(-q'): products of the same sign, and of opposite signs.
    So each head has two rows of weights. Rotary positions turn each half of f.

    `positions` are those of the keys' grid that the layer was made for, `grid_size`; on any other they are resampled linearly.
    Prefix tokens and a context have none. As it was published it has `gate=True, lepe=5, lepe_shared=True`.

    Args:
        dim, num_heads: channels, and heads of an even number of channels.
        grid_size: sides of the grid of the queries, one number for all; the keys' grid is smaller by `reduction`.
        local: add the local residual.
        options: as for every `Mixer`.
    """

    rope_after_kernel = True
    divides = True
    reads_layout = True
    stretches = True

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        grid_size: int | Grid = 14,
        local: bool = False,
        **options: Unpack[MixerOptions],
    ) -> None:
        super().__init__(dim, num_heads, local=local, **options)
        if self.head_dim % 2:
            raise ValueError(f"PolaAttention needs heads of an even number of channels, got {self.head_dim}")
        sides = check_sides(grid_size, self.grid_dims, self.reduction)
        kind: dict[str, Any] = {"device": options.get("device"), "dtype": options.get("dtype")}
        self.scale = nn.Parameter(torch.empty(num_heads, 1, self.head_dim, **kind))
        self.power = nn.Parameter(torch.empty(num_heads, 1, self.head_dim, **kind))
        self.positions = nn.Parameter(torch.empty(1, dim, *sides, **kind)) if self.context_dim is None else None
        self.reset_parameters()

    needs_grid = "positions on a grid"

    def reset_parameters(self) -> None:
        """Positions, scale and power start at zero: c = ln 2, p = 3."""
        for parameter in (self.scale, self.power, self.positions):
            if parameter is not None:
                nn.init.zeros_(parameter)

    @classmethod
    def size_options(cls, grid: Grid, num_prefix_tokens: int) -> dict[str, Any]:
        """Positions for this grid."""
        return {"grid_size": grid}

    def attend(  # type: ignore[override]
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, layout: Layout, rotation: Rotation | None = None
    ) -> Tensor:
        """Linear attention twice, with half of the values each."""
        same, opposite, keys = self._maps(q, k, layout)
        halves = zip((same, opposite), v.chunk(2, -1), strict=True)
        return torch.cat([linear_attention(queries, keys, half, mask=mask, rotation=rotation) for queries, half in halves], -1)

    def weights(  # type: ignore[override]
        self, q: Tensor, k: Tensor, mask: Tensor | None, layout: Layout, rotation: Rotation | None = None
    ) -> Tensor:
        """Rows divided by their sum: (B, 2 heads, M, N), for the first and the second half of each head's values."""
        same, opposite, keys = self._maps(q, k, layout)
        rows = [linear_weights(queries, keys, mask=mask, rotation=rotation) for queries in (same, opposite)]
        return torch.stack(rows, 2).flatten(1, 2)

    def local_values(self, x: Tensor, v: Tensor, grid: Grid) -> Tensor:
        """The reduced values, stretched along the token axis to as many as x has: published so, it ignores the map's rows."""
        return F.interpolate(v.mT, x.shape[1], mode="linear", align_corners=False).mT

    def _maps(self, q: Tensor, k: Tensor, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
        """f(q'), f(-q') and f(k')."""
        c = F.softplus(self.scale[layout.heads]).to(q.dtype)
        p = (1 + 4 * torch.sigmoid(self.power[layout.heads])).to(q.dtype)
        if self.positions is not None and layout.key_grid is not None:
            positions = self._positions(layout.key_grid, 0, layout.key_grid[0]).to(q.dtype)[:, layout.heads]
            k = k + F.pad(positions, (0, 0, layout.num_prefix_tokens, 0))
        (q_plus, q_minus), (k_plus, k_minus) = (
            (torch.relu(tokens) ** p, torch.relu(-tokens) ** p) for tokens in (q / c, k / c)
        )
        return torch.cat([q_plus, q_minus], -1), torch.cat([q_minus, q_plus], -1), torch.cat([k_plus, k_minus], -1)

    def _positions(self, grid: Grid, start: int, stop: int) -> Tensor:
        """Those of some rows of the keys' grid, (1, heads, tokens, d)."""
        assert self.positions is not None
        return self.split_heads(resample_rows(self.positions, grid, start, stop).flatten(2).mT)

    def sum_tokens(self, band: BandInput, before: Summaries) -> Sums:
        """The sums of keys, and of keys and values."""
        *_, keys = self._maps(band.q[:, :, :1], self._placed(band), NOWHERE)
        keys = zero_masked(keys, band.mask)
        turned = band.turned_keys(keys)
        return Sums(linear_sums(band.in_divisor(keys, turned), turned, band.v))

    def read(self, band: BandInput, summaries: Summaries) -> Tensor:
        """Rows divided by their sum, by each half of the values."""
        key_sum, outer_sum = summaries[0].sums
        *maps, _ = self._maps(band.q, band.q[:, :, :1], NOWHERE)
        halves = []
        for queries, outer in zip(maps, outer_sum.chunk(2, -1), strict=True):
            turned = band.turned_queries(queries)
            halves.append(read_linear(band.in_divisor(queries, turned), turned, summaries[0].count, key_sum, outer))
        return torch.cat(halves, -1)

    def _placed(self, band: BandInput) -> Tensor:
        """The keys of a band with their positions."""
        if band.grid is None:
            return band.k
        rows = band.place.inner_rows(band.grid)
        return band.k + to_fp32(self._positions(band.place.image_grid(band.grid), *rows))
