"""Rotary positions (RoPE), as a part that any mixer can carry: queries and keys are turned by angles that grow with position.

A pair of channels (a, b) of a token turns by an angle t to (a cos t - b sin t, b cos t + a sin t), so that the product of a
query and a key depends on how far apart they are. Prefix tokens are on no grid and are not turned. Where the feature map of a
mixer is positive and its rows are divided by their sum, the turn comes after the map and only in the numerator: the divisor
stays positive, and the rows no longer sum to exactly 1. With `in_divisor` it is in both: rows sum to 1, and the divisor can
come near zero.

Shapes: tables (..., N, 2 d), sines and then cosines, as timm has them; they broadcast to (B, heads, N, 2 d).
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from timm.layers import apply_rot_embed_cat
from torch import Tensor

from ..ops.checks import Grid, check_name
from ..ops.sums import to_fp32

Rope = Literal["heads", "all"]
BASE = 10000.0


@dataclass(frozen=True, eq=False)
class Rotation:
    """How the queries and keys of one call are turned."""

    queries: Tensor
    """The table of the queries, (..., M, 2 d)."""
    keys: Tensor
    """The table of the keys, (..., N, 2 d)."""
    half: bool = False
    """Whether channels c and c + d/2 are a pair, as in DINOv3, and not 2c and 2c + 1."""
    after_kernel: bool = False
    """Whether the mixer's feature map comes first."""
    in_divisor: bool = False
    """Whether the sum that divides a row is made of turned queries and keys too."""

    @classmethod
    def from_table(cls, table: Tensor, *, num_prefix_tokens: int = 0, half: bool = False) -> "Rotation":
        """By a table of the tokens on the grid, (..., N, 2 d), with prefix tokens before them; before the kernel."""
        sines, cosines = (F.pad(part, (0, 0, num_prefix_tokens, 0), value=value) for part, value in _parts(table))
        full = torch.cat([sines, cosines], -1)
        return cls(full, full, half)

    def __call__(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Queries (B, heads, M, d) and keys (B, heads, N, d), turned."""
        return self.of_queries(q), self.of_keys(k)

    def of_queries(self, q: Tensor) -> Tensor:
        """(B, heads, M, d), turned in fp32 or better; of a feature map with more channels, each d of them."""
        parts = to_fp32(q).split(self.queries.shape[-1] // 2, -1)
        turned = [apply_rot_embed_cat(part, self.queries, self.half) for part in parts]
        return (turned[0] if len(turned) == 1 else torch.cat(turned, -1)).to(q.dtype)

    def of_keys(self, k: Tensor) -> Tensor:
        """(B, heads, N, d), turned in fp32 or better."""
        return replace(self, queries=self.keys).of_queries(k)

    def formula_options(self) -> dict[str, Any]:
        """The argument `rotation` of `attend` and `weights`: only if it comes after the kernel, which is in there."""
        return {"rotation": self} if self.after_kernel else {}

    def chosen(self, queries: Tensor | slice) -> "Rotation":
        """The rotation of some queries, by their indices on the token axis, and of all keys."""
        return replace(self, queries=self.queries[..., queries, :])

    def part(self, tokens: slice) -> "Rotation":
        """The rotation of some tokens as queries and as keys."""
        return replace(self, queries=self.queries[..., tokens, :], keys=self.keys[..., tokens, :])


def _parts(table: Tensor) -> tuple[tuple[Tensor, float], tuple[Tensor, float]]:
    """Sines and cosines, each with its value at the angle 0."""
    sines, cosines = table.chunk(2, -1)
    return (sines, 0.0), (cosines, 1.0)


@dataclass(frozen=True)
class RotaryPositions:
    """Angles from whole-numbered positions that count from 0 and are never rescaled: a larger grid has more of them.

        position * f_m on each side of the grid, the first share of the channel pairs for the first side, and so on
        "heads": the pairs of each head; F = d / (2 sides) frequencies f_m = 10000^(-m / (F - 1)), both ends included
        "all":   the pairs of all channels before they are split into heads; F = C / (2 sides), f_m = 10000^(-m / F)

    "heads" is that of MALA (Fan et al., ICCV 2025). "all" is that of MILA (Han et al., NeurIPS 2024), in which the first heads
    see rows only and the last ones columns only.
    """

    kind: Rope
    num_heads: int
    head_dim: int
    grid_dims: int
    in_divisor: bool = False
    """Whether the sum that divides a row is made of turned queries and keys too."""

    def __post_init__(self) -> None:
        check_name("rope", self.kind, get_args(Rope))
        if self._channels % (2 * self.grid_dims) or self.head_dim % 2:
            raise ValueError(
                f"rope={self.kind!r} turns pairs of channels for each of {self.grid_dims} sides: {self.num_heads} heads of "
                f"{self.head_dim} channels cannot be shared evenly"
            )

    @property
    def _channels(self) -> int:
        """How many channels the frequencies are spread over."""
        return self.head_dim if self.kind == "heads" else self.num_heads * self.head_dim

    def rotation(
        self, grid: Grid | None, like: Tensor, *, num_prefix_tokens: int = 0, first_row: int = 0, after_kernel: bool = False
    ) -> Rotation | None:
        """Of tokens on a grid, for a tensor in whose precision, fp32 at least, the angles are; None without a grid.

        `first_row` is where the first row of the grid lies in the image, if the tokens are a band of it.
        """
        if grid is None:
            return None
        angles = F.pad(self._angles(grid, like, first_row), (0, 0, num_prefix_tokens, 0))
        angles = torch.stack([angles, angles], -1).flatten(-2)
        table = torch.cat([angles.sin(), angles.cos()], -1)
        return Rotation(table, table, after_kernel=after_kernel, in_divisor=self.in_divisor)

    def _angles(self, grid: Grid, like: Tensor, first_row: int) -> Tensor:
        """(1 or heads, N, d / 2)."""
        kind: dict[str, Any] = {"device": like.device, "dtype": torch.promote_types(like.dtype, torch.float32)}
        count = self._channels // (2 * self.grid_dims)
        steps = max(1, count - 1) if self.kind == "heads" else count
        frequencies = BASE ** (-torch.arange(count, **kind) / steps)
        by_side = []
        for number, side in enumerate(grid):
            position = torch.arange(side, **kind) + (first_row if number == 0 else 0)
            angles = position[:, None] * frequencies
            shape = [side if place == number else 1 for place in range(len(grid))]
            by_side.append(angles.view(*shape, count).expand(*grid, count))
        angles = torch.cat(by_side, -1).flatten(0, -2)
        if self.kind == "heads":
            return angles.unsqueeze(0)
        return angles.unflatten(-1, (self.num_heads, -1)).transpose(0, 1)
