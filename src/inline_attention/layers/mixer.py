"""What all mixers have in common: projections, heads, masks, prefix tokens, local parts. A subclass adds the formula.

Shapes
    x        (B, M, C)          tokens, prefix tokens first, then the grid in row-major order
    context  (B, N, C_context)  where keys and values come from; x itself if absent, and then N = M
    mask     (B, N)             over the keys, True where valid
    q, k, v  (B, heads, M or N, d), d = C / heads
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import partial
from math import prod
from typing import ClassVar, NamedTuple, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops.checks import Grid, check_grid, check_heads, check_mask, check_tokens
from ..ops.local import local_convolution
from ..ops.masking import mean_valid, zero_masked
from ..ops.precision import wide, without_autocast
from ..ops.reference import local_weights
from ..ops.windows import Cuts, Window, cut, from_windows, rows_from_windows, to_windows, valid_tokens
from .lepe import LocalEncoding
from .local import LocalPart, LocalResidual
from .reduction import SpatialReduction
from .residual import add_linear


class AttentionRows(NamedTuple):
    """Dense weights of chosen queries: out[b, i, c] = sum_n (mixed[b, head of c, i, n] + local[b, c, i, n]) v[b, n, c].

    LePE adds its bias to that, a constant.
    """

    mixed: Tensor
    """(B, heads, queries, N): the mixer's own weights over all tokens, zero outside the query's window if there are windows.
    Hydra has a head for each channel. With spatial reduction, N is the number of reduced keys."""
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
    windows: Sequence[Window]
    lepe: bool
    reduction: int
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
        windows: attend within windows of the map and not across all of it. Several windows share the heads evenly: the first
            heads attend in the first window, and so on (CSwin's two stripes). The local parts see a window as a picture of
            its own.
        lepe: add LePE, a 3x3 depthwise convolution of the values with learned kernels (`LocalEncoding`).
        reduction: take keys and values from a map this many times smaller on each side (`SpatialReduction`).
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
        windows: Sequence[Window] = (),
        lepe: bool = False,
        reduction: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        if any(side is not None and side < 1 for window in windows for side in window[:2]):
            raise ValueError(f"windows must have at least one token a side, got {tuple(windows)}")
        if windows and num_heads % len(windows):
            raise ValueError(f"{len(windows)} windows cannot share num_heads={num_heads} heads evenly")
        if (windows or reduction != 1) and (grid_dims != 2 or context_dim is not None):
            raise ValueError(f"windows and reduction need a map, got {grid_dims=}, {context_dim=}")
        if reduction < 1 or (windows and reduction > 1):
            raise ValueError(f"reduction must be at least 1, and 1 with windows, got {reduction}")
        if not 0 <= attn_drop < 1:
            raise ValueError(f"attn_drop must be in [0, 1), got {attn_drop}")
        if not 1 <= grid_dims <= 3:
            raise ValueError(f"grid_dims must be 1, 2 or 3, got {grid_dims}")
        if context_dim is not None and context_dim < 1:
            raise ValueError(f"context_dim must be at least 1, got {context_dim}")
        if (local or lepe) and context_dim is not None:
            raise ValueError(f"a layer that reads a context (context_dim={context_dim}) has no local part: pass local=False")
        if local_size != 3 and (lepe or not local):
            raise ValueError(f"local_size={local_size} needs local=True and lepe=False, got {local=}, {lepe=}")
        self.dim = dim
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.grid_dims = grid_dims
        self.context_dim = context_dim
        self.attn_drop = attn_drop
        self.windows = tuple(windows)
        self.q = nn.Linear(dim, dim, bias=qkv_bias, device=device, dtype=dtype)
        self.kv = nn.Linear(dim if context_dim is None else context_dim, 2 * dim, bias=qkv_bias, device=device, dtype=dtype)
        norm = partial(nn.LayerNorm, self.head_dim, device=device, dtype=dtype) if qk_norm else nn.Identity
        self.q_norm, self.k_norm = norm(), norm()
        self.local = LocalResidual(dim, num_heads, local_size, grid_dims, device=device, dtype=dtype) if local else None
        self.lepe = LocalEncoding(dim, grid_dims, device=device, dtype=dtype) if lepe else None
        self.reduction = SpatialReduction(dim, reduction, device=device, dtype=dtype) if reduction > 1 else None
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
        return [part for part in (self.lepe, self.local) if part is not None]

    def forward(
        self,
        x: Tensor,
        grid: Grid | None = None,
        *,
        num_prefix_tokens: int = 0,
        mask: Tensor | None = None,
        context: Tensor | None = None,
        local_input: Tensor | None = None,
        residual: Tensor | None = None,
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
            local_input: (B, M, C): tokens whose mean the local residual makes its kernels from, if not from x.
            residual: (B, M, C): add the result to it. The output projection does, which spares a pass over the tokens.

        Returns:
            (B, M, C).
        """
        self._check(x, grid, num_prefix_tokens, mask, context)
        x = zero_masked(x, mask) if context is None else x
        local_input = x if local_input is None else zero_masked(local_input, mask)
        if residual is not None and not (self.proj_drop.training and self.proj_drop.p):
            return self._mix(x, grid, num_prefix_tokens, mask, context, local_input, residual)
        mixed: Tensor = self.proj_drop(self._mix(x, grid, num_prefix_tokens, mask, context, local_input, None))
        return mixed if residual is None else residual + mixed

    def project(
        self,
        x: Tensor,
        grid: Grid | None = None,
        *,
        num_prefix_tokens: int = 0,
        mask: Tensor | None = None,
        context: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, heads, M, d), keys and values (B, heads, N, d), as the formula gets them. Arguments as for `forward`."""
        self._check(x, grid, num_prefix_tokens, mask, context)
        x = zero_masked(x, mask) if context is None else x
        return self._project(x, mask, self._reduced(x, grid) if context is None else context)

    def attention_rows(
        self,
        x: Tensor,
        grid: Grid | None,
        queries: Sequence[int] | Tensor,
        *,
        num_prefix_tokens: int = 0,
        mask: Tensor | None = None,
        context: Tensor | None = None,
        local_input: Tensor | None = None,
    ) -> AttentionRows:
        """The dense weights of chosen queries, exactly as `forward` uses them when nothing is dropped.

        Args:
            queries: places on the token axis of x, prefix tokens counted: the class token is 0.

        The other arguments are those of `forward`. Memory is linear in the number of queries; local rows are by channel.
        In windows, all rows of a window are made before the chosen ones are taken.
        """
        self._check(x, grid, num_prefix_tokens, mask, context)
        chosen = torch.as_tensor(queries, device=x.device)
        if chosen.ndim != 1 or chosen.numel() == 0 or chosen.is_floating_point() or chosen.dtype is torch.bool:
            raise ValueError(f"queries must be a list of token indices, got {queries!r}")
        if int(chosen.min()) < 0 or int(chosen.max()) >= x.shape[1]:
            raise ValueError(f"queries {chosen.tolist()} are not all within the {x.shape[1]} tokens of x")
        x = zero_masked(x, mask) if context is None else x
        local_input = x if local_input is None else zero_masked(local_input, mask)
        if self.windows and grid is not None:
            return self._window_rows(x, grid, chosen, local_input)
        q, k, _ = self._project(x, mask, self._reduced(x, grid) if context is None else context)
        with without_autocast(x.device):
            mixed = self.weights(wide(q[:, :, chosen]), wide(k), mask)
        if grid is None or context is not None or not self.local_parts():
            return AttentionRows(mixed, None)
        local = self._local_rows(mean_valid(local_input, mask).to(x.dtype), grid, num_prefix_tokens, chosen)
        return AttentionRows(mixed, local if mask is None else local.masked_fill(~mask[:, None, None, :], 0))

    def _local_rows(self, summary: Tensor, grid: Grid, num_prefix_tokens: int, chosen: Tensor) -> Tensor:
        """(B, C, queries, N): what the local parts weigh, from the mean of the input, (B, C)."""
        tokens = num_prefix_tokens + prod(grid)
        local = wide(summary).new_zeros(summary.shape[0], self.dim, len(chosen), tokens)
        for part in self.local_parts():
            part_grid, skip = part.grid_of(grid, num_prefix_tokens)
            kernels = wide(part.kernels(summary)).expand(summary.shape[0], *(-1 for _ in range(1 + len(part_grid))))
            on_grid = chosen >= skip
            local[:, :, on_grid, skip:] += local_weights(kernels, part_grid, chosen[on_grid] - skip)
        return local

    def _window_rows(self, x: Tensor, grid: Grid, chosen: Tensor, local_input: Tensor) -> AttentionRows:
        """Rows within windows, laid out over all tokens."""
        mixed, local = [], []
        for cuts, mine, q, k, _ in self._project_windows(x, grid):
            with without_autocast(x.device):
                weights = self.window_weights(wide(q), wide(k), cuts)
            mixed.append(rows_from_windows(weights, cuts, chosen))
            if self.local_parts():
                summary = self._window_mean(local_input, cuts)
                within = self._local_rows(summary, cuts.size, 0, torch.arange(prod(cuts.size), device=x.device))
                local.append(rows_from_windows(within[:, mine], cuts, chosen))
        return AttentionRows(torch.cat(mixed, 1), torch.cat(local, 1) if local else None)

    def _mix(
        self,
        x: Tensor,
        grid: Grid | None,
        num_prefix_tokens: int,
        mask: Tensor | None,
        context: Tensor | None,
        local_input: Tensor,
        residual: Tensor | None,
    ) -> Tensor:
        """Head by head: project, attend, add the local parts, project. x is zero where masked already."""
        if self.windows and grid is not None:
            return self._mix_windows(x, grid, local_input, residual)
        reduced = self._reduced(x, grid) if context is None else context
        q, k, v = self._project(x, mask, reduced)
        out = self._merge(self._attend(q, k, v, mask))
        if grid is not None and context is None and self.local_parts():
            values = self._merge(v) if reduced is None else self.kv(x).chunk(2, dim=-1)[1]
            summary = mean_valid(local_input, mask).to(x.dtype)
            out = self._add_local(out, summary, values, grid, num_prefix_tokens)
        return add_linear(residual, out, self.proj)

    def _mix_windows(self, x: Tensor, grid: Grid, local_input: Tensor, residual: Tensor | None) -> Tensor:
        """The same within windows: each is a picture of its own."""
        outs = []
        for cuts, mine, q, k, v in self._project_windows(x, grid):
            out = self._merge(self.attend_window(q, k, v, cuts))
            if self.local_parts():
                summary = self._window_mean(local_input, cuts)
                out = self._add_local(out, summary, self._merge(v), cuts.size, 0, mine)
            outs.append(from_windows(out, cuts))
        return add_linear(residual, torch.cat(outs, -1), self.proj)

    def attend_window(self, q: Tensor, k: Tensor, v: Tensor, cuts: Cuts) -> Tensor:
        """`attend` within windows, (B * count, heads, h * w, d). Linear mixers see all of a window, rolled or not."""
        return self._attend(q, k, v, valid_tokens(cuts, q))

    def window_weights(self, q: Tensor, k: Tensor, cuts: Cuts) -> Tensor:
        """`weights` within windows."""
        return self.weights(q, k, valid_tokens(cuts, q))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        kept = self._drop_keys(k, mask)
        if self.half_precision:
            return self.attend(q, k, v, kept)
        with without_autocast(q.device):
            return self.attend(wide(q), wide(k), wide(v), kept).to(v.dtype)

    def _project(self, x: Tensor, mask: Tensor | None, context: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """q (B, heads, M, d), k and v (B, heads, N, d); masked keys and values are zero. x is zero where masked already."""
        keys, values = self.kv(x if context is None else zero_masked(context, mask)).chunk(2, dim=-1)
        q, k, v = self.q_norm(self._split(self.q(x))), self.k_norm(self._split(keys)), self._split(values)
        return q, zero_masked(k, mask), zero_masked(v, mask)

    def _project_windows(self, x: Tensor, grid: Grid) -> Iterator[tuple[Cuts, slice, Tensor, Tensor, Tensor]]:
        """For each window its cuts, its channels, and its q, k and v, (B * count, heads / windows, h * w, d)."""
        q, (keys, values) = self.q(x), self.kv(x).chunk(2, dim=-1)
        share = self.dim // len(self.windows)
        for number, window in enumerate(self.windows):
            cuts, mine = cut(grid, window), slice(number * share, (number + 1) * share)
            parts = (self._split(to_windows(tokens[..., mine], cuts)) for tokens in (q, keys, values))
            q_here, k_here, v_here = parts
            yield cuts, mine, self.q_norm(q_here), self.k_norm(k_here), v_here

    def _window_mean(self, tokens: Tensor, cuts: Cuts) -> Tensor:
        """The mean of each window, (B * count, C)."""
        windows = to_windows(tokens, cuts)
        return mean_valid(windows, valid_tokens(cuts, windows)).to(tokens.dtype)

    def _reduced(self, x: Tensor, grid: Grid | None) -> Tensor | None:
        """The smaller map that keys and values come from, if there is one."""
        return None if self.reduction is None or grid is None else self.reduction(x, grid)

    def _split(self, tokens: Tensor) -> Tensor:
        """(B, N, C) -> (B, heads, N, d), a view."""
        return tokens.unflatten(2, (-1, self.head_dim)).transpose(1, 2)

    def _merge(self, heads: Tensor) -> Tensor:
        """(B, heads, N, d) -> (B, N, C), a view where `_split` made one."""
        return heads.transpose(1, 2).flatten(2)

    def _drop_keys(self, k: Tensor, mask: Tensor | None) -> Tensor | None:
        """The mask with a share of the keys taken away, while training."""
        if not self.training or self.attn_drop == 0 or self.drops_weights:
            return mask
        kept = torch.rand(k.shape[0], k.shape[2], device=k.device) >= self.attn_drop
        return kept if mask is None else kept & mask

    def _add_local(
        self, out: Tensor, summary: Tensor, v: Tensor, grid: Grid, num_prefix_tokens: int, mine: slice = slice(None)
    ) -> Tensor:
        """`out` plus what the local parts make of the values, which may be only some (`mine`) of the channels."""
        for part in self.local_parts():
            part_grid, skip = part.grid_of(grid, num_prefix_tokens)
            kernels, constant = part.kernels(summary)[:, mine].to(v.dtype), part.constant()
            bias = None if constant is None else constant[:, mine].to(v.dtype)
            convolved = local_convolution(v[:, skip:], kernels, part_grid, bias=bias)
            out = out + (F.pad(convolved, (0, 0, skip, 0)) if skip else convolved)
        return out

    def _check(self, x: Tensor, grid: Grid | None, num_prefix_tokens: int, mask: Tensor | None, context: Tensor | None) -> None:
        check_tokens("x", x, self.dim)
        if context is None and self.context_dim is not None:
            raise ValueError(f"this layer reads a context of {self.context_dim} channels: pass context=")
        if self.windows or self.reduction is not None:
            if grid is None:
                raise ValueError(f"this layer looks at a map: pass the grid (H, W) that its {x.shape[1]} tokens lie on")
            if num_prefix_tokens or mask is not None or context is not None:
                raise ValueError("a layer with windows or spatial reduction takes no prefix tokens, no mask and no context")
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
