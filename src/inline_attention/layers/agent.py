"""Agent attention (Han et al., "Agent Attention: On the Integration of Softmax and Linear Attention", ECCV 2024)."""

from typing import Any

import torch
from timm.layers import trunc_normal_
from torch import Tensor, nn
from typing_extensions import Unpack

from ..ops.checks import Grid, is_whole
from ..ops.pooling import window_sums
from ..ops.reference_rivals import agent_weights
from ..ops.resampling import resample_grid, resample_rows
from ..ops.sums import to_fp32, zero_masked
from .layout import Layout
from .mixer import MixerOptions
from .sized import check_sides
from .summary import Summaries
from .summed import BandInput, SummedMixer, Sums

TABLE = 7
"""Entries a side of the biases that are resampled to every grid."""


class AgentAttention(SummedMixer):
    """Queries read a few agents by softmax, which have read all keys by softmax: softmax(s q A^T + B2) softmax(s A k^T + B1) v.

    The agents A are the queries, averaged over windows of the grid (adaptive pooling, over valid tokens). The biases of an
    agent are a table of 7 entries a side, resampled linearly to the grid, plus a line of entries for each side. The lines have
    the length of the grid that the layer was made for, `grid_size`, and are resampled linearly to any other. Prefix tokens
    read and are read; they are not pooled, and have a bias of their own with `prefix_bias=True`. As it was published it has
    `lepe=3`.

    Args:
        dim, num_heads: channels, and heads that divide them.
        agents: agents along a side of the grid, 7 for 49 of them.
        grid_size: sides of the grid of the queries, one number for all; the keys' grid is smaller by `reduction`.
        prefix_bias: learn biases of prefix tokens, as with a class token: one as keys and one as queries, for each agent.
        local: add the local residual.
        options: as for every `Mixer`.
    """

    reads_layout = True
    stretches = True
    needs_grid = "agents on the grid"
    refuses = {"context": "its agents and biases are on the grid"}  # noqa: RUF012  as in Mixer

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        agents: int = 7,
        grid_size: int | Grid = 14,
        prefix_bias: bool = False,
        local: bool = False,
        **options: Unpack[MixerOptions],
    ) -> None:
        super().__init__(dim, num_heads, local=local, **options)
        if not is_whole(agents) or agents < 1:
            raise ValueError(f"agents must be a positive whole number, got {agents!r}")
        self.agents_grid = (agents,) * self.grid_dims
        number, table = agents**self.grid_dims, (TABLE,) * self.grid_dims
        sides, key_sides = (check_sides(grid_size, self.grid_dims, part) for part in (None, self.reduction))

        def bias(*size: int) -> nn.Parameter:
            kind: dict[str, Any] = {"device": options.get("device"), "dtype": options.get("dtype")}
            return nn.Parameter(torch.empty(num_heads, number, *size, **kind))

        self.key_table, self.query_table = bias(*table), bias(*table)
        self.key_lines = nn.ParameterList([bias(side) for side in key_sides])
        self.query_lines = nn.ParameterList([bias(side) for side in sides])
        self.key_prefix = bias(1) if prefix_bias else None
        self.query_prefix = bias(1) if prefix_bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Biases normal, of deviation 0.02."""
        own = [self.key_table, self.query_table, *self.key_lines, *self.query_lines, self.key_prefix, self.query_prefix]
        for parameter in own:
            if parameter is not None:
                trunc_normal_(parameter, std=0.02)

    @classmethod
    def size_options(cls, grid: Grid, num_prefix_tokens: int) -> dict[str, Any]:
        """Lines for this grid, and biases of prefix tokens if there are some."""
        return {"grid_size": grid, "prefix_bias": num_prefix_tokens > 0}

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, layout: Layout) -> Tensor:  # type: ignore[override]
        """Agents read keys, queries read agents."""
        agents, scale = self._agents(q, layout), self.head_dim**-0.5
        key_bias, query_bias = self._biases(q.dtype, layout)
        valid = None if mask is None else mask[:, None, None, :]
        seen = (scale * agents) @ k.mT + key_bias
        if valid is not None:
            seen = seen.masked_fill(~valid, torch.finfo(seen.dtype).min)
        return ((scale * q) @ agents.mT + query_bias).softmax(-1) @ (seen.softmax(-1) @ zero_masked(v, mask))

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None, layout: Layout) -> Tensor:  # type: ignore[override]
        """Two softmaxes, multiplied."""
        key_bias, query_bias = self._biases(q.dtype, layout)
        agents = self._agents(layout.queries(q), layout)
        return agent_weights(q, k, agents, key_bias, layout.of_chosen(query_bias), mask=mask)

    def local_values(self, x: Tensor, v: Tensor, grid: Grid) -> Tensor:
        """The reduced values, resampled to the map."""
        height, width = (side for side in grid)
        ratio = self.reduction.ratio if self.reduction is not None else 1
        small = v.mT.unflatten(2, (-(-height // ratio), -(-width // ratio)))
        return resample_grid(small, grid).flatten(2).mT

    def _agents(self, q: Tensor, layout: Layout) -> Tensor:
        """(B, heads, n, d): means of valid queries over windows of the grid; zero where a window has none."""
        assert layout.grid is not None  # needs_grid
        valid = layout.valid(q)[:, None, :, None]
        prefix = layout.num_prefix_tokens
        sums, counts = (window_sums(tokens[:, :, prefix:], layout.grid, self.agents_grid) for tokens in (q * valid, valid))
        return sums / counts.clamp(min=1)

    def _biases(self, dtype: torch.dtype, layout: Layout) -> tuple[Tensor, Tensor]:
        """B1, (heads, n, keys), and B2, (heads, queries, n)."""
        assert layout.grid is not None and layout.key_grid is not None  # noqa: PT018  needs_grid
        key_bias, query_bias = (
            torch.cat([self._of_prefix(prefix, layout.num_prefix_tokens), self._of_rows(bias, grid, 0, grid[0])], -1)
            for prefix, bias, grid in (
                (self.key_prefix, (self.key_table, self.key_lines), layout.key_grid),
                (self.query_prefix, (self.query_table, self.query_lines), layout.grid),
            )
        )
        return key_bias[layout.heads].to(dtype), query_bias[layout.heads].mT.to(dtype)

    def _of_rows(self, bias: tuple[Tensor, nn.ParameterList], grid: Grid, start: int, stop: int) -> Tensor:
        """The bias of each agent and each token of some rows of a grid, (heads, n, tokens)."""
        table, lines = bias
        total = resample_rows(table, grid, start, stop)
        for axis, (line, side) in enumerate(zip(lines, grid, strict=True)):
            along = resample_rows(line, (side,), start, stop) if axis == 0 else resample_grid(line, (side,))
            total = total + along.view(*along.shape[:2], *(-1 if other == axis else 1 for other in range(len(grid))))
        return total.flatten(2)

    def _of_prefix(self, prefix: Tensor | None, count: int) -> Tensor:
        """(heads, n, count)."""
        return self.key_table.new_zeros(*self.key_table.shape[:2], count) if prefix is None else prefix.expand(-1, -1, count)

    # In bands

    @property
    def sweeps(self) -> int:
        """Two: the agents, then what they read."""
        return 2

    def sum_tokens(self, band: BandInput, before: Summaries) -> Sums:
        """The sums of queries over windows, and how many they are; then sums of exponentials, and of these and values."""
        if not before:
            return Sums(self._window_sums(band))
        bias = self._bias_of(band, self.key_prefix, (self.key_table, self.key_lines))
        seen = (self.head_dim**-0.5 * _agents_of(before)) @ band.k.mT + bias  # (B, heads, n, tokens)
        if band.mask is not None:
            seen = seen.masked_fill(~band.mask[:, None, None], torch.finfo(seen.dtype).min)
        maximum = seen.detach().amax(-1)
        shares = (seen - maximum.unsqueeze(-1)).exp()
        shares = shares if band.mask is None else shares.masked_fill(~band.mask[:, None, None], 0)
        return Sums((shares.sum(-1), shares @ band.v), maximum)

    def read(self, band: BandInput, summaries: Summaries) -> Tensor:
        """Queries read agents."""
        total, sums = summaries[1].sums
        bias = self._bias_of(band, self.query_prefix, (self.query_table, self.query_lines)).mT
        asked = (self.head_dim**-0.5 * band.q) @ _agents_of(summaries).mT + bias
        return asked.softmax(-1) @ (sums / total.clamp(min=1).unsqueeze(-1))

    def _window_sums(self, band: BandInput) -> tuple[Tensor, Tensor]:
        if band.grid is None:  # prefix tokens are not pooled
            sums = band.q.new_zeros(len(band.q), self.num_heads, self.key_table.shape[1], self.head_dim)
            return sums, sums[:, :1, :, :1]
        valid = torch.ones_like(band.q[:, :1, :, :1])
        valid = zero_masked(valid, band.mask)
        (start, stop), image = band.place.inner_rows(band.grid), band.place.image_grid(band.grid)
        where: dict[str, Any] = {"first_row": start, "height": image[0]}
        rows = (stop - start, *band.grid[1:])
        sums, counts = (window_sums(tokens, rows, self.agents_grid, **where) for tokens in (band.q * valid, valid))
        return sums, counts

    def _bias_of(self, band: BandInput, prefix: Tensor | None, bias: tuple[Tensor, nn.ParameterList]) -> Tensor:
        """(heads, n, tokens of the band)."""
        if band.grid is None:
            return to_fp32(self._of_prefix(prefix, band.tokens.shape[1]))
        return to_fp32(self._of_rows(bias, band.place.image_grid(band.grid), *band.place.inner_rows(band.grid)))


def _agents_of(summaries: Summaries) -> Tensor:
    """(B, heads, n, d)."""
    sums, counts = summaries[0].sums
    return sums / counts.clamp(min=1)
