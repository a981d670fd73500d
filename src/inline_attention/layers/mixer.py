"""What all mixers have in common: projections, heads, masks, prefix tokens, local parts. A subclass adds the formula.

Shapes
    x        (B, M, C)          tokens, prefix tokens first, then the grid in row-major order
    context  (B, N, C_context)  where keys and values come from; x itself if absent, and then N = M
    mask     (B, N)             over the keys, True where valid
    q, k, v  (B, heads, M or N, d), d = C / heads
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import ClassVar, NamedTuple, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops.checks import Grid, check_grid, check_heads, check_mask, check_tokens
from ..ops.local import local_convolution
from ..ops.masking import mean_valid, zero_masked
from ..ops.precision import wide, without_autocast
from ..ops.reference import local_weights
from .local import LocalPart, LocalResidual


class AttentionRows(NamedTuple):
    """Dense weights of chosen queries: out[b, i, c] = sum_n (mixed[b, head of c, i, n] + local[b, c, i, n]) v[b, n, c]."""

    mixed: Tensor
    """(B, heads, queries, N): the mixer's own weights, global over all tokens. Hydra has a head for each channel."""
    local: Tensor | None
    """(B, C, queries, N): what convolutions of the values add; None where there are none."""


class MixerOptions(TypedDict, total=False):
    """Keyword arguments that every mixer hands on to `Mixer`, which says what they mean."""

    qkv_bias: bool
    qk_norm: bool
    proj_bias: bool
    attn_drop: float
    proj_drop: float
    local_size: int | tuple[int, ...]
    grid_dims: int
    context_dim: int | None
    device: torch.device | str | None
    dtype: torch.dtype | None


class Mixer(nn.Module, ABC):
    """Multi-head token mixing, (B, N, C) -> (B, N, C), on a grid.

    A subclass gives the formula twice: `attend`, fast, and `weights`, dense. Everything else is here.

    Args:
        dim: C, channels in and out.
        num_heads: heads, which must divide `dim`.
        qkv_bias: give the query, key and value projections a bias.
        qk_norm: LayerNorm of queries and keys, over the channels of a head.
        proj_bias: give the output projection a bias.
        attn_drop: while training, the share of keys that each picture's queries cannot see. Weights of linear mixers are
            never formed, so whole keys are dropped and not single weights; `softmax` drops single weights, as usual.
        proj_drop: dropout after the output projection.
        local: add the input-dependent convolution of the values (`LocalResidual`).
        local_size: the size of its kernels, one number or one for each side.
        grid_dims: how many sides the grid has: 1, 2 or 3.
        context_dim: channels of the `context` that the layer always reads: it is for cross-attention only and has no local
            parts. A layer without can read a context of `dim` channels when it is given one.
    """

    half_precision: ClassVar[bool] = False
    """Whether `attend` takes half-precision tensors as they are. If not, it gets them in fp32, out of autocast."""
    drops_weights: ClassVar[bool] = False
    """Whether `attend` itself drops attention weights. If not, dropped keys are masked."""
    depthwise_mlp: ClassVar[bool] = False
    """Whether the block's MLP is to have a depthwise convolution in it."""

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        qkv_bias: bool = True,
        qk_norm: bool = False,
        proj_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        local: bool = False,
        local_size: int | tuple[int, ...] = 3,
        grid_dims: int = 2,
        context_dim: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        if not 0 <= attn_drop < 1:
            raise ValueError(f"attn_drop must be in [0, 1), got {attn_drop}")
        if not 1 <= grid_dims <= 3:
            raise ValueError(f"grid_dims must be 1, 2 or 3, got {grid_dims}")
        if context_dim is not None and context_dim < 1:
            raise ValueError(f"context_dim must be at least 1, got {context_dim}")
        if local and context_dim is not None:
            raise ValueError(f"a layer that reads a context (context_dim={context_dim}) has no local part: pass local=False")
        if local_size != 3 and not local:
            raise ValueError(f"local_size={local_size} needs local=True")
        self.dim = dim
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.grid_dims = grid_dims
        self.context_dim = context_dim
        self.attn_drop = attn_drop
        self.q = nn.Linear(dim, dim, bias=qkv_bias, device=device, dtype=dtype)
        self.kv = nn.Linear(dim if context_dim is None else context_dim, 2 * dim, bias=qkv_bias, device=device, dtype=dtype)
        norm = partial(nn.LayerNorm, self.head_dim, device=device, dtype=dtype) if qk_norm else nn.Identity
        self.q_norm, self.k_norm = norm(), norm()
        self.local = LocalResidual(dim, num_heads, local_size, grid_dims, device=device, dtype=dtype) if local else None
        self.proj = nn.Linear(dim, dim, bias=proj_bias, device=device, dtype=dtype)
        self.proj_drop = nn.Dropout(proj_drop)

    @abstractmethod
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """The formula: (B, heads, M, d) from q (B, heads, M, d) and k, v (B, heads, N, d)."""

    @abstractmethod
    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """The same formula as dense weights: (B, heads, M, N)."""

    def local_parts(self) -> list[LocalPart]:
        """The convolutions of the values that this mixer adds."""
        return [] if self.local is None else [self.local]

    def forward(
        self,
        x: Tensor,
        grid: Grid | None = None,
        *,
        num_prefix_tokens: int = 0,
        mask: Tensor | None = None,
        context: Tensor | None = None,
    ) -> Tensor:
        """Mix tokens.

        Args:
            x: (B, M, C): prefix tokens (class, registers), then the grid, row-major.
            grid: (L,), (H, W) or (D, H, W). A mixer without local parts, or one that reads a context, can do without.
            num_prefix_tokens: how many tokens come before the grid. They attend and are attended to like all others,
                but are no one's neighbours.
            mask: (B, N) over the keys, True where valid. Masked tokens have no influence on the others, nor on gradients;
                their own rows of the result mean nothing.
            context: (B, N, context_dim): take keys and values from it instead of x. Local parts are then off.

        Returns:
            (B, M, C).
        """
        self._check(x, grid, num_prefix_tokens, mask, context)
        x = zero_masked(x, mask) if context is None else x
        mixed: Tensor = self.proj_drop(self._mix(x, grid, num_prefix_tokens, mask, context))
        return mixed

    def attention_rows(
        self,
        x: Tensor,
        grid: Grid | None,
        queries: Sequence[int] | Tensor,
        *,
        num_prefix_tokens: int = 0,
        mask: Tensor | None = None,
        context: Tensor | None = None,
    ) -> AttentionRows:
        """The dense weights of chosen queries, exactly as `forward` uses them when nothing is dropped.

        Args:
            queries: places on the token axis of x, prefix tokens counted: the class token is 0.

        The other arguments are those of `forward`. Memory is linear in the number of queries; local rows are by channel.
        """
        self._check(x, grid, num_prefix_tokens, mask, context)
        chosen = torch.as_tensor(queries, device=x.device)
        if chosen.ndim != 1 or chosen.numel() == 0 or chosen.is_floating_point() or chosen.dtype is torch.bool:
            raise ValueError(f"queries must be a list of token indices, got {queries!r}")
        if int(chosen.min()) < 0 or int(chosen.max()) >= x.shape[1]:
            raise ValueError(f"queries {chosen.tolist()} are not all within the {x.shape[1]} tokens of x")
        x = zero_masked(x, mask) if context is None else x
        q, k, v = self._project(x, mask, context)
        with without_autocast(x.device):
            mixed = self.weights(wide(q[:, :, chosen]), wide(k), mask)
        if grid is None or context is not None or not self.local_parts():
            return AttentionRows(mixed, None)
        local = mixed.new_zeros(v.shape[0], self.dim, len(chosen), v.shape[2])
        x_mean = mean_valid(x, mask).to(x.dtype)
        for part in self.local_parts():
            part_grid, skip = part.grid_of(grid, num_prefix_tokens)
            kernels = wide(part.kernels(x_mean)).expand(v.shape[0], *(-1 for _ in range(1 + len(part_grid))))
            on_grid = chosen >= skip
            local[:, :, on_grid, skip:] += local_weights(kernels, part_grid, chosen[on_grid] - skip)
        if mask is not None:
            local = local.masked_fill(~mask[:, None, None, :], 0)
        return AttentionRows(mixed, local)

    def _mix(self, x: Tensor, grid: Grid | None, num_prefix_tokens: int, mask: Tensor | None, context: Tensor | None) -> Tensor:
        """Head by head: project, attend, add the local parts, project. x is zero where masked already."""
        q, k, v = self._project(x, mask, context)
        kept = self._drop_keys(k, mask)
        if self.half_precision:
            out = self.attend(q, k, v, kept)
        else:
            with without_autocast(x.device):
                out = self.attend(wide(q), wide(k), wide(v), kept).to(v.dtype)
        out = self._merge(out)
        if grid is not None and context is None:
            out = self._add_local(out, x, self._merge(v), grid, num_prefix_tokens, mask)
        projected: Tensor = self.proj(out)
        return projected

    def _project(self, x: Tensor, mask: Tensor | None, context: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """q (B, heads, M, d), k and v (B, heads, N, d); masked keys and values are zero. x is zero where masked already."""
        keys, values = self.kv(x if context is None else zero_masked(context, mask)).chunk(2, dim=-1)
        q, k, v = self.q_norm(self._split(self.q(x))), self.k_norm(self._split(keys)), self._split(values)
        return q, zero_masked(k, mask), zero_masked(v, mask)

    def _split(self, tokens: Tensor) -> Tensor:
        """(B, N, C) -> (B, heads, N, d), a view."""
        return tokens.unflatten(2, (self.num_heads, self.head_dim)).transpose(1, 2)

    def _merge(self, heads: Tensor) -> Tensor:
        """(B, heads, N, d) -> (B, N, C), a view where `_split` made one."""
        return heads.transpose(1, 2).flatten(2)

    def _drop_keys(self, k: Tensor, mask: Tensor | None) -> Tensor | None:
        """The mask with a share of the keys taken away, while training."""
        if not self.training or self.attn_drop == 0 or self.drops_weights:
            return mask
        kept = torch.rand(k.shape[0], k.shape[2], device=k.device) >= self.attn_drop
        return kept if mask is None else kept & mask

    def _add_local(self, out: Tensor, x: Tensor, v: Tensor, grid: Grid, num_prefix_tokens: int, mask: Tensor | None) -> Tensor:
        """`out` plus what the local parts make of the values."""
        parts = self.local_parts()
        x_mean = mean_valid(x, mask).to(x.dtype) if parts else x
        for part in parts:
            part_grid, skip = part.grid_of(grid, num_prefix_tokens)
            convolved = local_convolution(v[:, skip:], part.kernels(x_mean).to(v.dtype), part_grid)
            out = out + (F.pad(convolved, (0, 0, skip, 0)) if skip else convolved)
        return out

    def _check(self, x: Tensor, grid: Grid | None, num_prefix_tokens: int, mask: Tensor | None, context: Tensor | None) -> None:
        check_tokens("x", x, self.dim)
        if context is None and self.context_dim is not None:
            raise ValueError(f"this layer reads a context of {self.context_dim} channels: pass context=")
        if context is not None:
            check_tokens("context", context, self.dim if self.context_dim is None else self.context_dim)
            if context.shape[0] != x.shape[0]:
                raise ValueError(f"x has a batch of {x.shape[0]}, context of {context.shape[0]}")
        check_mask(mask, x.shape[0], (x if context is None else context).shape[1])
        if grid is not None:
            check_grid(grid, x.shape[1], num_prefix_tokens)
            if len(grid) != self.grid_dims:
                raise ValueError(f"grid {tuple(grid)} has {len(grid)} sides, the layer has grid_dims={self.grid_dims}")
        elif context is None and self.local_parts():
            raise ValueError(f"this layer has a local part: pass the grid, such as (H, W), that its {x.shape[1]} tokens lie on")

    def extra_repr(self) -> str:
        """What `print(model)` shows."""
        return f"dim={self.dim}, num_heads={self.num_heads}"
