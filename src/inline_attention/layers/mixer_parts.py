"""The parts that a mixer can carry, by name: local residual, LePE, gate, norm, windows, reduced keys, context, positions.

A part is made and checked here. A new part is a field in `PartChoice` and a line in its `make`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypedDict

import torch
from torch import Tensor, nn

from ..ops.checks import Grid
from ..ops.shifted_windows import Window, pad_image
from .gate import Gate, GateKind
from .lepe import LocalEncoding
from .local_residual import LocalResidual
from .rope import Rope, RotaryPositions
from .windowed import Windowed, check_windows


class PartOptions(TypedDict, total=False):
    """Keyword arguments of every mixer that choose its parts; `PartChoice` documents them."""

    local_size: int | tuple[int, ...]
    lepe: bool | int
    lepe_shared: bool
    gate: bool | GateKind
    out_norm: bool
    windows: Sequence[Window]
    reduction: int
    context_dim: int | None
    rope: Rope | None
    rope_in_divisor: bool


class Parts(NamedTuple):
    """The parts of one mixer; None for a part that it does not have."""

    local: LocalResidual | None
    lepe: LocalEncoding | None
    reduction: "SpatialReduction | None"
    windowed: Windowed | None
    rope: RotaryPositions | None
    out_norm: nn.LayerNorm | None
    gate: Gate | None


@dataclass(frozen=True)
class PartChoice:
    """Which parts a mixer is to have. Parts that exclude one another are a ValueError."""

    num_heads: int
    grid_dims: int
    local: bool = False
    """Add the paper's local residual, an input-dependent convolution of the values (`LocalResidual`)."""
    local_size: int | tuple[int, ...] = 3
    """The size of its kernels, one number or one for each side."""
    lepe: bool | int = False
    """Add LePE, a depthwise convolution of the values with learned kernels (`LocalEncoding`): 3 taps a side, or this odd
    number of them, such as 5."""
    lepe_shared: bool = False
    """Let the heads share LePE's kernels, as in PolaFormer."""
    gate: bool | GateKind = False
    """Multiply what is mixed, local parts included, by a map of the input before the output projection (`Gate`): "linear",
    or True, or "silu"."""
    out_norm: bool = False
    """LayerNorm of what is mixed, before the gate, as in NaLaFormer."""
    windows: Sequence[Window] = ()
    """Attend inside windows of the map instead of across all of it. Several windows share the heads evenly: the first heads
    attend in the first window, and so on (CSwin's two stripes). The local parts treat a window as an image."""
    reduction: int = 1
    """Take keys and values from a map this many times smaller on each side (`SpatialReduction`)."""
    context_dim: int | None = None
    """Channels of the `context` that the layer always reads: it is for cross-attention only and has no local parts. A layer
    without it can read a context of `dim` channels when it is given one."""
    rope: Rope | None = None
    """Turn queries and keys by their positions (`RotaryPositions`): "heads" or "all". In windows, positions count from the
    window's corner. A context has no positions: where one is read, nothing is turned."""
    rope_in_divisor: bool = False
    """Turn queries and keys in the sum that divides a row too, where there is one: rows then sum to 1, and the divisor can come
    near zero. Otherwise it is made of queries and keys as they are."""

    def __post_init__(self) -> None:
        check_windows(self.windows, self.num_heads)
        grid_dims, context_dim, local, lepe = self.grid_dims, self.context_dim, self.local, self.lepe
        if lepe is not True and (lepe < 0 or (lepe and (lepe < 3 or lepe % 2 == 0))):
            raise ValueError(f"lepe must be True, which is 3, or an odd number of taps from 3 on, got {lepe}")
        if (self.lepe_shared and not lepe) or (self.rope_in_divisor and self.rope is None):
            missing = "lepe_shared=True needs lepe" if self.lepe_shared and not lepe else "rope_in_divisor=True needs rope"
            raise ValueError(f"{missing}, got {lepe=}, rope={self.rope!r}")
        if (self.windows or self.reduction != 1) and (grid_dims != 2 or context_dim is not None):
            raise ValueError(f"windows and reduction need a map, got {grid_dims=}, {context_dim=}")
        if self.reduction < 1 or (self.windows and self.reduction > 1):
            raise ValueError(f"reduction must be at least 1, and 1 with windows, got {self.reduction}")
        if not 1 <= grid_dims <= 3:
            raise ValueError(f"grid_dims must be 1, 2 or 3, got {grid_dims}")
        if context_dim is not None and context_dim < 1:
            raise ValueError(f"context_dim must be at least 1, got {context_dim}")
        if (local or lepe) and context_dim is not None:
            raise ValueError(f"a layer that reads a context (context_dim={context_dim}) has no local part: pass local=False")
        if self.rope is not None and (context_dim is not None or self.reduction > 1):
            raise ValueError(
                f"rope={self.rope!r} needs keys on the grid of the queries, got {context_dim=}, reduction={self.reduction}"
            )
        if self.local_size != 3 and (lepe or not local):
            raise ValueError(f"local_size={self.local_size} needs local=True and lepe=False, got {local=}, {lepe=}")

    def make(self, dim: int, width: int, device: torch.device | str | None, dtype: torch.dtype | None) -> Parts:
        """The chosen parts, for `dim` channels, and `width` of them before the output projection."""
        heads, dims, size, ratio = self.num_heads, self.grid_dims, self.local_size, self.reduction
        return Parts(
            LocalResidual(dim, heads, size, dims, device=device, dtype=dtype) if self.local else None,
            self._local_encoding(dim, device, dtype),
            SpatialReduction(dim, ratio, device=device, dtype=dtype) if ratio > 1 else None,
            Windowed(tuple(self.windows)) if self.windows else None,
            None if self.rope is None else RotaryPositions(self.rope, heads, dim // heads, dims, self.rope_in_divisor),
            nn.LayerNorm(width, device=device, dtype=dtype) if self.out_norm else None,
            self._gate(dim, width, device, dtype),
        )

    def _local_encoding(self, dim: int, device: torch.device | str | None, dtype: torch.dtype | None) -> LocalEncoding | None:
        if not self.lepe:
            return None
        size, shared = 3 if self.lepe is True else self.lepe, self.num_heads if self.lepe_shared else 1
        return LocalEncoding(dim, self.grid_dims, size, shared, device=device, dtype=dtype)

    def _gate(self, dim: int, width: int, device: torch.device | str | None, dtype: torch.dtype | None) -> Gate | None:
        if self.gate is False:
            return None
        return Gate(dim, width, "linear" if self.gate is True else self.gate, device=device, dtype=dtype)


class SpatialReduction(nn.Module):
    """Fewer keys and values: a convolution whose kernel is its stride, then LayerNorm; one token from ratio x ratio of them.

    From Wang et al., "Pyramid Vision Transformer", ICCV 2021. A grid that the ratio does not divide is padded with zeros to
    the right and below. Shapes: (B, N, C) on a grid (H, W) -> (B, ceil(H / ratio) * ceil(W / ratio), C).
    """

    def __init__(
        self, dim: int, ratio: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.ratio = ratio
        self.conv = nn.Conv2d(dim, dim, ratio, ratio, device=device, dtype=dtype)
        self.norm = nn.LayerNorm(dim, device=device, dtype=dtype)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Tokens to fewer tokens."""
        image = pad_image(x.unflatten(1, grid).permute(0, 3, 1, 2), self.ratio)
        reduced: Tensor = self.norm(self.conv(image).flatten(2).mT)
        return reduced
