"""`Mixer`: the base of all attention layers. Projections, heads, masks, prefix tokens, parts. A subclass adds the formula.

Shapes
    x        (B, M, C)          tokens, prefix tokens first, then the grid in row-major order
    context  (B, N, C_context)  where keys and values come from; x itself if absent, and then N = M
    mask     (B, N)             over the keys, True where valid
    q, k, v  (B, heads, M or N, d), d = C / heads
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
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
from .layout import Layout, reduced_grid
from .local_residual import LocalPart, add_local, local_rows
from .mixer_parts import PartChoice, PartOptions
from .rope import Rotation
from .windowed import Windowed


class AttentionRows(NamedTuple):
    """Dense weights of chosen queries: out[b, i, c] = sum_n (mixed[b, head of c, i, n] + local[b, c, i, n]) v[b, n, c].

    LePE adds its bias to that, a constant. `Mixer.output` makes the layer's output of it: norm, gate, projection.
    """

    mixed: Tensor
    """(B, heads, queries, N): the mixer's own weights over all tokens, zero outside the query's window if there are windows.
    Hydra has a head for each channel, PolaFormer two for each head. With spatial reduction, N is the number of reduced keys."""
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
        parts: local, local_size, lepe, gate, out_norm, windows, reduction, context_dim, rope and so on: see `PartChoice`.
    """

    half_precision: ClassVar[bool] = False
    """Whether `attend` works in half precision. If not, it gets them in fp32, out of autocast."""
    drops_weights: ClassVar[bool] = False
    """Whether `attend` itself drops attention weights. If not, dropped keys are masked."""
    depthwise_mlp: ClassVar[bool] = False
    """Whether the MLP of the block has a depthwise convolution (`DepthwiseMlp`)."""
    takes_rope: ClassVar[bool] = True
    """Whether products of queries and keys are summed over pairs of channels, so that turning them means a distance."""
    divides: ClassVar[bool] = False
    """Whether rows are divided by a sum, which `rope_in_divisor` turns too."""
    is_weighted_sum: ClassVar[bool] = True
    """Whether an output is a weighted sum of values; if not, `weights` and `attention_rows` are errors."""
    refuses: ClassVar[Mapping[str, str]] = {}
    """Parts that the design cannot have ("windows", "reduction", "context"), each with the reason."""
    needs_grid: ClassVar[str | None] = None
    """What in the formula needs the grid, if anything does."""
    stretches: ClassVar[bool] = False
    """Whether something is stretched over the grid, whatever its size, so that a padded grid is not like a smaller one."""
    reads_layout: ClassVar[bool] = False
    """Whether both forms of the formula take a keyword `layout`."""
    own_projections: ClassVar[bool] = False
    """Whether q, kv and proj are not the usual ones, so that those of another attention cannot be taken over."""

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
        self._check_refused(choice)
        if not 0 <= attn_drop < 1:
            raise ValueError(f"attn_drop must be in [0, 1), got {attn_drop}")
        self.dim, self.num_heads, self.head_dim = dim, num_heads, dim // num_heads
        self.grid_dims, self.context_dim, self.attn_drop = grid_dims, choice.context_dim, attn_drop
        linear = partial(nn.Linear, device=device, dtype=dtype)
        self.make_projections(linear, choice.context_dim or dim, qkv_bias)
        norm = partial(nn.LayerNorm, self.head_dim, device=device, dtype=dtype) if qk_norm else nn.Identity
        self.q_norm, self.k_norm = norm(), norm()
        # these names, and their order, are those of stored checkpoints and optimizers
        parts_made = choice.make(dim, self.width, device, dtype)
        self.local, self.lepe, self.reduction, self.windowed, self.rope, self.out_norm, self.gate = parts_made
        if self.rope is not None and not self.takes_rope:
            raise ValueError(f"{type(self).__name__} multiplies channel by channel and takes no rope, got {self.rope.kind!r}")
        self.proj: nn.Module = self.make_output(linear, proj_bias)
        self.proj_drop = nn.Dropout(proj_drop)

    # Projections: a subclass may have its own, and says so by `own_projections`

    def make_projections(self, linear: Callable[..., nn.Linear], source_dim: int, bias: bool) -> None:
        """Make the modules that `project_queries` and `project_keys_values` use; `linear` is `nn.Linear` on the right device.

        q and kv, not one qkv: cross-attention and reduced keys need them apart. In a checkpoint with one qkv, the first C rows
        are q.
        """
        self.q = linear(self.dim, self.dim, bias=bias)
        self.kv = linear(source_dim, 2 * self.dim, bias=bias)

    def make_output(self, linear: Callable[..., nn.Linear], bias: bool) -> nn.Module:
        """The output projection, (B, N, width) -> (B, N, C)."""
        return linear(self.width, self.dim, bias=bias)

    @property
    def width(self) -> int:
        """Channels before the output projection."""
        return self.dim

    def project_queries(self, x: Tensor) -> Tensor:
        """(B, M, C) -> (B, M, width), before heads are split."""
        queries: Tensor = self.q(x)
        return queries

    def project_keys_values(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values, (B, N, width) each."""
        keys, values = self.kv(source).chunk(2, dim=-1)
        return keys, values

    def local_values(self, x: Tensor, v: Tensor, grid: Grid) -> Tensor:
        """The values on the grid of x, (B, N, C), that local parts convolve where v, (B, n, C), are those of a reduced map."""
        return self.project_keys_values(x)[1]

    # The formula: a subclass gives it

    @abstractmethod
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """The formula: (B, heads, M, d) from q (B, heads, M, d) and k, v (B, heads, N, d).

        With `rope_after_kernel`, both forms of the formula take a keyword `rotation`, and turn what comes out of the kernel.
        With `reads_layout`, both take a keyword `layout`, which says how the tokens lie.
        """

    @abstractmethod
    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """The same formula as dense weights: (B, heads, M, N)."""

    def answers(self, q: Tensor, x: Tensor, grid: Grid | None, *, num_prefix_tokens: int = 0) -> Tensor:
        """What queries (B, heads, M, d) get from the tokens x, without local parts, where there are no weights to look at."""
        raise ValueError(f"{type(self).__name__} has attention rows: its answers are their products with the values")

    def attend_window(self, q: Tensor, k: Tensor, v: Tensor, cuts: Cuts, mask: Tensor | None = None, **options: Any) -> Tensor:
        """`attend` inside windows, (B * count, heads, h * w, d). Linear mixers see all of a window, rolled or not.

        `mask`, (B * count, h * w), is that of the map's tokens, with padding masked too.
        """
        return self._attend(q, k, v, valid_tokens(cuts, q) if mask is None else mask, **options)

    def window_weights(self, q: Tensor, k: Tensor, cuts: Cuts, mask: Tensor | None = None, **options: Any) -> Tensor:
        """`weights` inside windows."""
        return self.weights(q, k, valid_tokens(cuts, q) if mask is None else mask, **options)

    @classmethod
    def size_options(cls, grid: Grid, num_prefix_tokens: int) -> dict[str, Any]:
        """Arguments for parameters that are bound to a size, in a model whose images have this grid at this layer."""
        return {}

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
            mixed = self.windowed.mix(self, x, grid, given.local_input, given.mask)
            return self.output(mixed, x, given.residual)
        source, mask = self._key_source(given)
        q, k, v = self._project(x, mask, source, given.rotation)
        out = self.merge_heads(self._attend(q, k, v, mask, **self._formula_options(given)))
        if grid is not None and given.context is None and (parts := self.local_parts()):
            values = self.merge_heads(v)
            if source is not None:
                values = zero_masked(self.local_values(x, values, grid), given.mask)
            x_mean = mean_valid(given.local_input, given.mask).to(x.dtype)
            out = self._add_local(out, parts, x_mean, values, grid, given.num_prefix_tokens)
        return self.output(out, x, given.residual)

    def output(self, mixed: Tensor, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """From what is mixed, (B, M, width), and the layer's input to its output: norm, gate, projection, residual."""
        mixed = mixed if self.out_norm is None else self.out_norm(mixed)
        mixed = mixed if self.gate is None else self.gate(mixed, x)
        return add_linear(residual, mixed, self.proj)

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
        if not self.is_weighted_sum:
            raise ValueError(f"{type(self).__name__} has no attention rows: its output is not a weighted sum of values")
        given = self._prepare(x, grid, num_prefix_tokens, mask, context, local_input, rotation)
        chosen = check_queries(queries, x)
        if self.windowed is not None and grid is not None:
            return AttentionRows(*self.windowed.rows(self, given.x, grid, given.local_input, chosen, mask))
        source, key_mask = self._key_source(given)
        q, k, _ = self._project(given.x, key_mask, source, given.rotation)
        with without_autocast(x.device):
            options = self._formula_options(given, q, chosen)
            mixed = self.weights(to_fp32(q[:, :, chosen]), to_fp32(k), key_mask, **options)
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
        elif context is None and (part := self._grid_part()):
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
        if context is not None and "context" in self.refuses:
            raise ValueError(f"{type(self).__name__} reads no context: {self.refuses['context']}")
        if rotation is not None and (self.rope is not None or context is not None):
            given = "has rope of its own" if self.rope is not None else "reads a context"
            raise ValueError(f"this layer {given} and takes no rotation: leave one of them out")

    def _check_refused(self, choice: PartChoice) -> None:
        """Raise for parts that this design cannot have."""
        asked = {"windows": choice.windows, "reduction": choice.reduction > 1, "context": choice.context_dim is not None}
        for part, reason in self.refuses.items():
            if asked[part]:
                raise ValueError(f"{type(self).__name__} takes no {part}: {reason}")
        if choice.rope_in_divisor and not self.divides:
            raise ValueError(f"{type(self).__name__} divides by nothing that could turn: leave rope_in_divisor=True out")

    def _grid_part(self) -> str | None:
        """What needs the grid of the tokens, if anything does."""
        if self.local_parts():
            return "a local part"
        return "rotary positions" if self.rope is not None else self.needs_grid

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
        tokens = self.project_queries(x), *self.project_keys_values(x if source is None else zero_masked(source, mask))
        q, k, v = map(self.split_heads, tokens)
        q, k = self.q_norm(q), self.k_norm(k)
        if rotation is not None and not rotation.after_kernel:
            q, k = rotation(q, k)
        return q, zero_masked(k, mask), zero_masked(v, mask)  # again: the projection's bias made them non-zero

    def _formula_options(
        self, given: MixerInput, queries: Tensor | None = None, chosen: Tensor | None = None
    ) -> dict[str, Any]:
        """What `attend` and `weights` take besides: the rotation of what comes out of the kernel, and the layout.

        Args:
            queries, chosen: all queries and the indices of those that the formula is asked for, if not for all.
        """
        rotation = given.rotation if chosen is None or given.rotation is None else given.rotation.chosen(chosen)
        options = {} if rotation is None else rotation.formula_options()
        if not self.reads_layout:
            return options
        own = given.context is None
        layout = self.layout(given.grid, given.num_prefix_tokens, given.mask if own else None, own=own)
        return {**options, "layout": layout._replace(all_queries=queries, chosen=chosen)}

    def layout(self, grid: Grid | None, num_prefix_tokens: int, mask: Tensor | None = None, *, own: bool = True) -> Layout:
        """How the tokens of a call lie; `own` if keys come from them too, and not from a context."""
        ratio = 1 if self.reduction is None else self.reduction.ratio
        return Layout(grid, reduced_grid(grid, ratio) if own else None, num_prefix_tokens, mask)

    def _add_local(
        self, out: Tensor, parts: Sequence[LocalPart], x_mean: Tensor, values: Tensor, grid: Grid, num_prefix_tokens: int
    ) -> Tensor:
        """`add_local` to the C channels of the heads; a design with more channels has the others after them."""
        if self.width == self.dim:
            return add_local(out, parts, x_mean, values, grid, num_prefix_tokens)
        heads, others = out[..., : self.dim], out[..., self.dim :]
        return torch.cat([add_local(heads, parts, x_mean, values[..., : self.dim], grid, num_prefix_tokens), others], -1)

    def project_channels(self, x: Tensor, channels: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Some channels of queries, keys and values, (B, N, chosen) each, before they are split into heads."""
        usual = type(self).project_keys_values is Mixer.project_keys_values
        if not (usual and is_plain(self.q) and is_plain(self.kv)):
            keys, values = self.project_keys_values(x)
            return self.project_queries(x)[..., channels], keys[..., channels], values[..., channels]
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
