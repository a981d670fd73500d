"""`Mixer`: the base of all attention layers. Projections, heads, masks, prefix tokens, parts. A subclass adds the formula.

Shapes
    x        (B, M, C)          tokens, prefix tokens first, then the grid in row-major order
    context  (B, N, C_context)  where keys and values come from; x itself if absent, and then N = M
    mask     (B, N)             over the keys, True where valid
    q, k, v  (B, heads, M or N, d), d = C / heads
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Unpack

from ..ops.checks import Grid, check_grid, check_heads, check_mask, check_matches, check_queries, check_tokens
from ..ops.masks import reduce_mask
from ..ops.shifted_windows import Cuts, Window, valid_tokens
from ..ops.sums import add_linear, is_plain, mean_valid, to_fp32, without_autocast, zero_masked
from .bands import InBands
from .local_residual import LocalPart, add_local, local_rows
from .mixer_parts import PartChoice, PartOptions
from .rope import Rotation
from .windowed import Windowed


class AttentionRows(NamedTuple):
    """Dense weights of chosen queries: out[b, i, c] = sum_n (mixed[b, head of c, i, n] + local[b, c, i, n]) v[b, n, c].

    LePE adds its bias to that, a constant.
    """

    mixed: Tensor
    """(B, heads, queries, N): the mixer's own weights over all tokens, zero outside the query's window if there are windows.
    Hydra has a head for each channel. With spatial reduction, N is the number of reduced keys."""
    local: Tensor | None
    """(B, C, queries, N): the weights of the convolutions of the values; None where there are none."""


class MixerInput(NamedTuple):
    """The input of a mixer, checked, and zero where masked. `Mixer.forward` documents the fields."""

    x: Tensor
    grid: Grid | None
    num_prefix_tokens: int
    mask: Tensor | None
    context: Tensor | None
    local_input: Tensor
    """x itself if no other was given."""
    residual: Tensor | None = None
    rotation: Rotation | None = None


class MixerOptions(PartOptions, total=False):
    """Keyword arguments that every mixer passes on to `Mixer`, which documents them."""

    qkv_bias: bool
    qk_norm: bool
    proj_bias: bool
    attn_drop: float
    proj_drop: float
    grid_dims: int
    device: torch.device | str | None
    dtype: torch.dtype | None


class Mixer(InBands, nn.Module, ABC):
    """Multi-head token mixing, (B, N, C) -> (B, N, C), on a grid.

    A subclass gives the formula twice: `attend`, fast, and `weights`, dense. Everything else is here, or in a part. A subclass
    with a cheaper way from input to output overrides `mix`. One whose keys enter through sums may work on bands of an image too
    (`InBands`).

    Args:
        dim: C, channels in and out.
        num_heads: heads, which must divide `dim`.
        qkv_bias: give the query, key and value projections a bias.
        qk_norm: LayerNorm of queries and keys, over the channels of a head.
        proj_bias: give the output projection a bias.
        attn_drop: while training, the share of keys that each image's queries cannot see. Weights of linear mixers are
            never formed, so whole keys are dropped and not single weights; `softmax` drops single weights, as usual.
        proj_drop: dropout after the output projection.
        grid_dims: how many sides the grid has: 1, 2 or 3.
        parts: local, local_size, lepe, windows, reduction, context_dim, rope: see `PartChoice`.
    """

    half_precision: ClassVar[bool] = False
    """Whether `attend` works in half precision. If not, it gets them in fp32, out of autocast."""
    drops_weights: ClassVar[bool] = False
    """Whether `attend` itself drops attention weights. If not, dropped keys are masked."""
    depthwise_mlp: ClassVar[bool] = False
    """Whether the MLP of the block has a depthwise convolution (`DepthwiseMlp`)."""
    takes_rope: ClassVar[bool] = True
    """Whether products of queries and keys are summed over pairs of channels, so that turning them means a distance."""

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        local: bool = False,
        qkv_bias: bool = True,
        qk_norm: bool = False,
        proj_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        grid_dims: int = 2,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **parts: Unpack[PartOptions],
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        choice = PartChoice(num_heads, grid_dims, local, **parts)
        if not 0 <= attn_drop < 1:
            raise ValueError(f"attn_drop must be in [0, 1), got {attn_drop}")
        self.dim, self.num_heads, self.head_dim = dim, num_heads, dim // num_heads
        self.grid_dims, self.context_dim, self.attn_drop = grid_dims, choice.context_dim, attn_drop
        # q and kv, not one qkv: cross-attention and reduced keys need them apart. In a checkpoint with one qkv, the first C
        # rows are q.
        self.q = nn.Linear(dim, dim, bias=qkv_bias, device=device, dtype=dtype)
        self.kv = nn.Linear(choice.context_dim or dim, 2 * dim, bias=qkv_bias, device=device, dtype=dtype)
        norm = partial(nn.LayerNorm, self.head_dim, device=device, dtype=dtype) if qk_norm else nn.Identity
        self.q_norm, self.k_norm = norm(), norm()
        # these names, and their order, are those of stored checkpoints and optimizers
        self.local, self.lepe, self.reduction, self.windowed, self.rope = choice.make(dim, device, dtype)
        if self.rope is not None and not self.takes_rope:
            raise ValueError(f"{type(self).__name__} multiplies channel by channel and takes no rope, got {self.rope.kind!r}")
        self.proj = nn.Linear(dim, dim, bias=proj_bias, device=device, dtype=dtype)
        self.proj_drop = nn.Dropout(proj_drop)

    # The formula: a subclass gives it

    @abstractmethod
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """The formula: (B, heads, M, d) from q (B, heads, M, d) and k, v (B, heads, N, d).

        With `rope_after_kernel`, both forms of the formula take a keyword `rotation`, and turn what comes out of the kernel.
        """

    @abstractmethod
    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """The same formula as dense weights: (B, heads, M, N)."""

    def attend_window(self, q: Tensor, k: Tensor, v: Tensor, cuts: Cuts, mask: Tensor | None = None, **options: Any) -> Tensor:
        """`attend` inside windows, (B * count, heads, h * w, d). Linear mixers see all of a window, rolled or not.

        `mask`, (B * count, h * w), is that of the map's tokens, with padding masked too.
        """
        return self._attend(q, k, v, valid_tokens(cuts, q) if mask is None else mask, **options)

    def window_weights(self, q: Tensor, k: Tensor, cuts: Cuts, mask: Tensor | None = None, **options: Any) -> Tensor:
        """`weights` inside windows."""
        return self.weights(q, k, valid_tokens(cuts, q) if mask is None else mask, **options)

    # Abilities: blocks and tools read these and `InBands`, and do not test for classes

    @property
    def windows(self) -> tuple[Window, ...]:
        """The windows that it attends in; none if it sees the whole map."""
        return () if self.windowed is None else self.windowed.windows

    def set_window(self, height: int, width: int, *, shifted: bool) -> None:
        """Attend in one window of another size."""
        self.windowed = Windowed((Window(height, width, shifted),))

    @property
    def rope_after_kernel(self) -> bool:
        """Whether `rope` turns queries and keys after a feature map, which has to see them as they are."""
        return False

    def local_parts(self) -> list[LocalPart]:
        """The convolutions of the values that this mixer adds."""
        return [part for part in (self.lepe, self.local) if part is not None]

    def reach(self) -> tuple[int, int]:
        """How many rows of the grid above and below a token the local parts see."""
        sides = [part.kernel_size[0] for part in self.local_parts()]
        return max(((side - 1) // 2 for side in sides), default=0), max((side // 2 for side in sides), default=0)

    # Calling it

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
        rotation: Rotation | None = None,
    ) -> Tensor:
        """Mix tokens.

        Args:
            x: (B, M, C): prefix tokens (class, registers), then the grid, row-major.
            grid: (L,), (H, W) or (D, H, W). A mixer without local parts, or one that reads a context, can do without.
            num_prefix_tokens: how many tokens come before the grid. They attend and are attended to like all others,
                but have no neighbours.
            mask: (B, N) over the keys, True where valid. Masked tokens have no influence on the others, nor on gradients;
                their own rows of the result mean nothing.
            context: (B, N, context_dim): take keys and values from it instead of x. Local parts are then off.
            local_input: (B, M, C): tokens whose mean the local residual makes its kernels from, if not from x.
            residual: (B, M, C): add the result to it. The output projection does, which saves a pass over the tokens.
            rotation: turn queries and keys by these tables before the kernel, in a layer without `rope` of its own.

        Returns:
            (B, M, C).
        """
        given = self._prepare(x, grid, num_prefix_tokens, mask, context, local_input, rotation)
        if residual is not None and not (self.proj_drop.training and self.proj_drop.p):
            return self.mix(given._replace(residual=residual))
        mixed: Tensor = self.proj_drop(self.mix(given))
        return mixed if residual is None else residual + mixed

    def mix(self, given: MixerInput) -> Tensor:
        """From checked input to the projected output, plus `given.residual` if there is one: the whole layer but its dropout.

        This is the general way, head by head: project, attend, add the local parts, project. A subclass may override it with
        a cheaper one that gives the same.
        """
        x, grid = given.x, given.grid
        if self.windowed is not None and grid is not None:
            return add_linear(given.residual, self.windowed.mix(self, x, grid, given.local_input, given.mask), self.proj)
        source, mask = self._key_source(given)
        q, k, v = self._project(x, mask, source, given.rotation)
        out = self.merge_heads(self._attend(q, k, v, mask, **(given.rotation.formula_options() if given.rotation else {})))
        if grid is not None and given.context is None and (parts := self.local_parts()):
            values = self.merge_heads(v) if source is None else zero_masked(self.kv(x).chunk(2, dim=-1)[1], given.mask)
            x_mean = mean_valid(given.local_input, given.mask).to(x.dtype)
            out = add_local(out, parts, x_mean, values, grid, given.num_prefix_tokens)
        return add_linear(given.residual, out, self.proj)

    def project(
        self,
        x: Tensor,
        grid: Grid | None = None,
        *,
        num_prefix_tokens: int = 0,
        mask: Tensor | None = None,
        context: Tensor | None = None,
        rotation: Rotation | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, heads, M, d), keys and values (B, heads, N, d), as `attend` gets them. Arguments as for `forward`."""
        given = self._prepare(x, grid, num_prefix_tokens, mask, context, None, rotation)
        source, key_mask = self._key_source(given)
        return self._project(given.x, key_mask, source, given.rotation)

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
        rotation: Rotation | None = None,
    ) -> AttentionRows:
        """The dense weights of chosen queries, exactly as `forward` uses them when nothing is dropped.

        Args:
            queries: indices on the token axis of x, prefix tokens counted: the class token is 0.

        The other arguments are those of `forward`. Memory is linear in the number of queries; local rows are by channel.
        In windows, all rows of a window are made before the chosen ones are taken.
        """
        given = self._prepare(x, grid, num_prefix_tokens, mask, context, local_input, rotation)
        chosen = check_queries(queries, x)
        if self.windowed is not None and grid is not None:
            return AttentionRows(*self.windowed.rows(self, given.x, grid, given.local_input, chosen, mask))
        source, key_mask = self._key_source(given)
        q, k, _ = self._project(given.x, key_mask, source, given.rotation)
        of_chosen = None if given.rotation is None else given.rotation.chosen(chosen)
        with without_autocast(x.device):
            mixed = self.weights(
                to_fp32(q[:, :, chosen]), to_fp32(k), key_mask, **(of_chosen.formula_options() if of_chosen else {})
            )
        if grid is None or context is not None or not (parts := self.local_parts()):
            return AttentionRows(mixed, None)
        x_mean = mean_valid(given.local_input, mask).to(x.dtype)
        local = local_rows(parts, x_mean, grid, num_prefix_tokens, chosen)
        return AttentionRows(mixed, local if mask is None else local.masked_fill(~mask[:, None, None, :], 0))

    # Steps of it

    def _prepare(
        self,
        x: Tensor,
        grid: Grid | None,
        num_prefix_tokens: int,
        mask: Tensor | None,
        context: Tensor | None,
        local_input: Tensor | None,
        rotation: Rotation | None,
    ) -> MixerInput:
        """Check the arguments of a call, and zero masked tokens."""
        check_tokens("x", x, self.dim)
        check_matches("x", x, self)
        if context is None and self.context_dim is not None:
            raise ValueError(f"this layer reads a context of {self.context_dim} channels: pass context=")
        self._check_parts(x, grid, num_prefix_tokens, context, rotation)
        if context is not None:
            check_tokens("context", context, self.dim if self.context_dim is None else self.context_dim)
            if context.shape[0] != x.shape[0]:
                raise ValueError(f"x has a batch of {x.shape[0]}, context of {context.shape[0]}")
        check_mask(mask, x.shape[0], (x if context is None else context).shape[1])
        if grid is not None:
            check_grid(grid, x.shape[1], num_prefix_tokens)
            if len(grid) != self.grid_dims:
                raise ValueError(f"grid {tuple(grid)} has {len(grid)} sides, the layer has grid_dims={self.grid_dims}")
        elif context is None and (self.local_parts() or self.rope is not None):
            part = "a local part" if self.local_parts() else "rotary positions"
            raise ValueError(f"this layer has {part}: pass the grid, such as (H, W), that its {x.shape[1]} tokens lie on")
        # zeroed on entry: multiplying by zero later would let a NaN through, forward or backward
        x = zero_masked(x, mask) if context is None else x
        local_input = x if local_input is None else zero_masked(local_input, mask)
        if context is None and self.windowed is None and rotation is None:
            rotation = self.own_rotation(x, grid, num_prefix_tokens)
        return MixerInput(x, grid, num_prefix_tokens, mask, context, local_input, None, rotation)

    def _check_parts(
        self,
        x: Tensor,
        grid: Grid | None,
        num_prefix_tokens: int,
        context: Tensor | None,
        rotation: Rotation | None,
    ) -> None:
        """Raise for arguments that the parts of this layer exclude."""
        if self.windowed is not None or self.reduction is not None:
            if grid is None:
                raise ValueError(f"a layer with windows or spatial reduction needs the grid (H, W) of its {x.shape[1]} tokens")
            if num_prefix_tokens or context is not None or rotation is not None:
                raise ValueError("a layer with windows or spatial reduction takes no prefix tokens, no context and no rotation")
        if rotation is not None and (self.rope is not None or context is not None):
            given = "has rope of its own" if self.rope is not None else "reads a context"
            raise ValueError(f"this layer {given} and takes no rotation: leave one of them out")

    def own_rotation(self, x: Tensor, grid: Grid | None, num_prefix_tokens: int = 0, *, first_row: int = 0) -> Rotation | None:
        """The rotation of these tokens by the layer's own `rope`: see `RotaryPositions.rotation`."""
        if self.rope is None:
            return None
        after = self.rope_after_kernel
        return self.rope.rotation(grid, x, num_prefix_tokens=num_prefix_tokens, first_row=first_row, after_kernel=after)

    def _key_source(self, given: MixerInput) -> tuple[Tensor | None, Tensor | None]:
        """The tokens that keys and values come from, if not from x: the context, or a smaller map; and their mask."""
        if given.context is not None or self.reduction is None or given.grid is None:
            return given.context, given.mask
        reduced: Tensor = self.reduction(given.x, given.grid)
        if given.mask is None:
            return reduced, None
        return reduced, reduce_mask(given.mask.unflatten(1, given.grid), self.reduction.ratio).flatten(1)

    def _project(
        self, x: Tensor, mask: Tensor | None, source: Tensor | None, rotation: Rotation | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q (B, heads, M, d), k and v (B, heads, N, d); masked keys and values are zero. x is zero where masked already."""
        keys, values = self.kv(x if source is None else zero_masked(source, mask)).chunk(2, dim=-1)
        q, k, v = self.q_norm(self.split_heads(self.q(x))), self.k_norm(self.split_heads(keys)), self.split_heads(values)
        if rotation is not None and not rotation.after_kernel:
            q, k = rotation(q, k)
        return q, zero_masked(k, mask), zero_masked(v, mask)  # again: the projection's bias made them non-zero

    def project_channels(self, x: Tensor, channels: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Some channels of queries, keys and values, (B, N, chosen) each, before they are split into heads."""
        if not (is_plain(self.q) and is_plain(self.kv)):
            return self.q(x)[..., channels], *(part[..., channels] for part in self.kv(x).chunk(2, dim=-1))
        weights = (self.q.weight, *self.kv.weight.chunk(2))
        biases = (None,) * 3 if self.q.bias is None else (self.q.bias, *self.kv.bias.chunk(2))
        q, k, v = (
            F.linear(x, weight[channels], None if bias is None else bias[channels])
            for weight, bias in zip(weights, biases, strict=True)
        )
        return q, k, v

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **options: Any) -> Tensor:
        """`attend` in the precision that the mixer wants, with keys dropped while training."""
        if self.training and self.attn_drop and not self.drops_weights:
            kept = torch.rand(k.shape[0], k.shape[2], device=k.device) >= self.attn_drop
            mask = kept if mask is None else kept & mask
        if self.half_precision:
            return self.attend(q, k, v, mask, **options)
        with without_autocast(q.device):
            return self.attend(to_fp32(q), to_fp32(k), to_fp32(v), mask, **options).to(v.dtype)

    def split_heads(self, tokens: Tensor) -> Tensor:
        """(B, N, C) -> (B, heads, N, d), a view."""
        return tokens.unflatten(2, (-1, self.head_dim)).transpose(1, 2)

    def merge_heads(self, heads: Tensor) -> Tensor:
        """(B, heads, N, d) -> (B, N, C), a view where `split_heads` made one."""
        return heads.transpose(1, 2).flatten(2)

    def extra_repr(self) -> str:
        """Shown by `print(model)`."""
        rope = "" if self.rope is None else f", rope={self.rope.kind}"
        return f"dim={self.dim}, num_heads={self.num_heads}{rope}"
