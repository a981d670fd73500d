"""Attention inside windows of the map (Swin's windows, CSwin's stripes), as a part that any mixer can carry.

Tokens are projected on the whole map, cut into windows, attended to window by window, and put back before the output
projection. Each window is treated as an image: it has its own mean and its own local convolution. Cutting, and the shift of
every second block, are in `ops/shifted_windows.py`.

Shapes: x (B, N, C) on a grid (H, W); in windows (B * count, h * w, C); q, k, v (B * count, heads / windows, h * w, d).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..ops.checks import Grid
from ..ops.shifted_windows import Cuts, Slab, Window, cut, from_windows, rows_from_windows, to_windows, valid_tokens
from ..ops.sums import mean_valid, to_fp32, without_autocast, zero_masked
from .layout import Layout
from .local_residual import add_local, local_rows
from .rope import Rotation

if TYPE_CHECKING:
    from .mixer import Mixer


class HeadGroup(NamedTuple):
    """The heads that attend in one of the windows."""

    cuts: Cuts
    channels: slice
    """Their channels of (B, N, C)."""
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    """(B * count, h * w), False for masked tokens and for padding; None if no mask was given."""
    options: dict[str, Any]
    """More arguments of `attend` and `weights`."""


@dataclass(frozen=True)
class Windowed:
    """Windows that share the heads of a mixer evenly."""

    windows: tuple[Window, ...]

    def mix(self, mixer: "Mixer", x: Tensor, grid: Grid, local_input: Tensor, mask: Tensor | None) -> Tensor:
        """All heads' outputs with the local parts added, (B, N, C), before the output projection."""
        groups = self._head_groups(mixer, x, grid, mask)
        return torch.cat([self._attend(mixer, group, local_input) for group in groups], -1)

    def mix_slab(self, mixer: "Mixer", x: Tensor, number: int, slab: Slab, local_input: Tensor, mask: Tensor | None) -> Tensor:
        """The outputs of the heads of one window, in a part of the map: (B, n, C / windows) from (B, n, C).

        `mask`, (B, n), must be False for the padding of the slab. x is zero where masked.
        """
        channels = self.channels(mixer.dim, number)
        q, k, v = mixer.project_channels(x, channels)
        return self._attend(mixer, self._group(mixer, number, slab.cuts, (q, k, zero_masked(v, mask)), mask), local_input)

    def channels(self, dim: int, number: int) -> slice:
        """The channels of the heads that attend in the window of this number."""
        share = dim // len(self.windows)
        return slice(number * share, (number + 1) * share)

    def _attend(self, mixer: "Mixer", group: HeadGroup, local_input: Tensor) -> Tensor:
        """The outputs of a group of heads with the local parts added, (B, N, its channels)."""
        out = mixer.attend_window(group.q, group.k, group.v, group.cuts, group.mask, **group.options)
        out = mixer.merge_heads(out)
        if parts := mixer.local_parts():
            x_mean, values = self._means(local_input, group), mixer.merge_heads(group.v)
            out = add_local(out, parts, x_mean, values, group.cuts.size, channels=group.channels)
        return from_windows(out, group.cuts)

    def rows(
        self, mixer: "Mixer", x: Tensor, grid: Grid, local_input: Tensor, queries: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Dense weights of chosen queries over all tokens, as in `AttentionRows`; zero outside of the query's window."""
        mixed, local = [], []
        for group in self._head_groups(mixer, x, grid, mask):
            with without_autocast(x.device):
                weights = mixer.window_weights(to_fp32(group.q), to_fp32(group.k), group.cuts, group.mask, **group.options)
            mixed.append(rows_from_windows(weights, group.cuts, queries))
            if parts := mixer.local_parts():
                x_mean, everything = self._means(local_input, group), torch.arange(prod(group.cuts.size), device=x.device)
                inside = local_rows(parts, x_mean, group.cuts.size, 0, everything)
                local.append(rows_from_windows(inside[:, group.channels], group.cuts, queries))
        rows = [torch.cat(mixed, 1), *([torch.cat(local, 1)] if local else [])]
        rows = rows if mask is None else [weights.masked_fill(~mask[:, None, None, :], 0) for weights in rows]
        return rows[0], rows[1] if local else None

    def _head_groups(self, mixer: "Mixer", x: Tensor, grid: Grid, mask: Tensor | None) -> Iterator[HeadGroup]:
        """For each window the heads that attend in it, projected and cut. x is zero where masked."""
        projected = mixer.project_queries(x), *(zero_masked(part, mask) for part in mixer.project_keys_values(x))
        for number, window in enumerate(self.windows):
            channels = self.channels(mixer.dim, number)
            q, k, v = (tokens[..., channels] for tokens in projected)
            yield self._group(mixer, number, cut(grid, window), (q, k, v), mask)

    def _group(
        self, mixer: "Mixer", number: int, cuts: Cuts, projected: tuple[Tensor, Tensor, Tensor], mask: Tensor | None
    ) -> HeadGroup:
        """The heads of one window from the projections to their channels, (B, N, C / windows) each."""
        q, k, v = (mixer.split_heads(to_windows(tokens, cuts)) for tokens in projected)
        q, k = mixer.q_norm(q), mixer.k_norm(k)
        rotation = self._rotation(mixer, cuts, number, q)
        if rotation is not None and not rotation.after_kernel:
            q, k = rotation(q, k)
        valid = None if mask is None else to_windows(mask.unsqueeze(-1), cuts).squeeze(-1)
        options = rotation.formula_options() if rotation else {}
        if mixer.reads_layout:
            heads = mixer.num_heads // len(self.windows)
            these, own = slice(number * heads, (number + 1) * heads), valid_tokens(cuts, q) if valid is None else valid
            options = {**options, "layout": Layout(cuts.size, cuts.size, mask=own, heads=these)}
        return HeadGroup(cuts, self.channels(mixer.dim, number), q, k, v, valid, options)

    def _rotation(self, mixer: "Mixer", cuts: Cuts, number: int, x: Tensor) -> Rotation | None:
        """The rotation inside a window, of the heads that attend in it; None without rotary positions."""
        rotation = mixer.own_rotation(x, cuts.size)
        if rotation is None or rotation.keys.shape[0] == 1:
            return rotation
        table = rotation.keys.chunk(len(self.windows))[number]
        return replace(rotation, queries=table, keys=table)

    def _means(self, tokens: Tensor, group: HeadGroup) -> Tensor:
        """The mean of the valid tokens of each window, (B * count, C)."""
        windows = to_windows(tokens, group.cuts)
        mask = valid_tokens(group.cuts, windows) if group.mask is None else group.mask
        return mean_valid(windows, mask).to(tokens.dtype)


def check_windows(windows: Sequence[Window], num_heads: int) -> None:
    """Raise unless the windows have sides and can share the heads evenly."""
    if any(side is not None and side < 1 for window in windows for side in window[:2]):
        raise ValueError(f"windows must have at least one token a side, got {tuple(windows)}")
    if windows and num_heads % len(windows):
        raise ValueError(f"{len(windows)} windows cannot share num_heads={num_heads} heads evenly")
