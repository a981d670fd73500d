"""One pre-norm block around any mixer, and the MLPs that it can have."""

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from timm.layers import DropPath
from torch import Tensor, nn

from ..compat import has_hooks
from ..ops.checks import Grid, check_grid
from ..ops.local_convolution import local_convolution
from ..ops.sums import add_linear, add_product, autocast_is_on, can_accumulate, is_plain, zero_masked
from .bands import WHOLE, Band, Place, bands_of, respond_in_bands, split_rows, summarize_in_bands
from .cpe import ConvPositions
from .mixer import Mixer
from .summary import Summaries, Summary
from .weight_views import WeightViews

LARGE_IMAGE = 2**23
"""Numbers in the tokens of an image, 32 MB of them, from which on a block without gradients works in bands: in memory that the
allocator keeps and caches can hold. Larger tensors would go back to the system and be fetched anew each time."""
BAND_TOKENS = 8192
"""Tokens of a band, or one row."""
MLP_CHUNK = 2**22
"""Hidden numbers that an MLP makes at once where no gradient needs them: 16 MB, for the same reason."""


class Block(nn.Module):
    """x + mixer(norm(x)), then x + mlp(norm(x)); shapes (B, N, C) -> (B, N, C).

    Args:
        mixer: the attention, one of `MIXERS`; the block has its number of channels.
        mlp_ratio: hidden channels of the MLP over channels.
        drop: dropout in the MLP.
        drop_path: stochastic depth of both branches.
        norm_layer: makes a norm from a number of channels.
        raw_local: make the kernels of the local residual from the block's input before its norm (CSwin).
        cpe: convolutional positions (`ConvPositions`) at the start of the block; "both": before the MLP too.
    """

    def __init__(
        self,
        mixer: Mixer,
        *,
        mlp_ratio: float = 4.0,
        drop: float = 0.0,
        drop_path: float = 0.0,
        norm_layer: Callable[[int], nn.Module] = nn.LayerNorm,
        raw_local: bool = False,
        cpe: bool | Literal["both"] = False,
    ) -> None:
        super().__init__()
        if cpe not in (False, True, "both"):
            raise ValueError(f"cpe must be False, True or 'both', got {cpe!r}")
        if not isinstance(mixer, Mixer):
            raise ValueError(f"mixer must be an instance of one of MIXERS, such as InLineAttention(192, 6), got {mixer!r}")
        dim, hidden = mixer.dim, int(mixer.dim * mlp_ratio)
        self.cpe1, self.cpe2 = (ConvPositions(dim, mixer.grid_dims) if made else None for made in (cpe, cpe == "both"))
        self.norm1 = norm_layer(dim)
        self.mixer = mixer
        self.norm2 = norm_layer(dim)
        self.mlp: nn.Module
        if mixer.depthwise_mlp:
            self.mlp = DepthwiseMlp(dim, hidden, drop=drop, grid_dims=mixer.grid_dims)
        else:
            self.mlp = Mlp(dim, hidden, drop=drop)
        self.drop_path = DropPath(drop_path)
        self.raw_local = raw_local

    def forward(self, x: Tensor, grid: Grid, *, num_prefix_tokens: int = 0, mask: Tensor | None = None) -> Tensor:
        """Arguments as for `Mixer.forward`. Masked tokens are zeroed, so that not even a NaN gets from them into gradients."""
        if self._use_bands(x):
            return self._forward_in_bands(x, grid, num_prefix_tokens, mask)
        x = zero_masked(x, mask)
        where: dict[str, Any] = {"num_prefix_tokens": num_prefix_tokens, "mask": mask}
        x = x if self.cpe1 is None else self.cpe1(x, grid, **where)
        x = self._add(x, self.mixer, self.norm1(x), grid, **where, local_input=x if self.raw_local else None)
        x = x if self.cpe2 is None else self.cpe2(x, grid, **where)
        if isinstance(self.mlp, DepthwiseMlp):
            return self._add(x, self.mlp, self.norm2(x), grid, **where)
        return self._add(x, self.mlp, self.norm2(x))

    def _use_bands(self, x: Tensor) -> bool:
        """Whether to take x band by band: it is large, the mixer prefers it, and neither gradients nor hooks need it whole."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or autocast_is_on(x.device):
            return False
        if x.shape[1] * x.shape[2] < LARGE_IMAGE or not isinstance(self.mixer, Mixer) or not self.mixer.prefers_bands(x):
            return False
        inside = list(self.modules())[1:]
        return type(self.mlp) is Mlp and not any(has_hooks(module) or module.training for module in inside)

    def _forward_in_bands(self, x: Tensor, grid: Grid, num_prefix_tokens: int, mask: Tensor | None) -> Tensor:
        """`forward` by `summarize` and `respond`."""
        out, limits = torch.empty_like(x), split_rows(grid, BAND_TOKENS)
        before, after = (tokens[:, num_prefix_tokens:].unflatten(1, grid) for tokens in (x, out))
        valid = None if mask is None else mask[:, num_prefix_tokens:].unflatten(1, grid)
        prefix = zero_masked(x[:, :num_prefix_tokens], None if mask is None else mask[:, :num_prefix_tokens])

        def bands(reach: tuple[int, int]) -> Iterator[Band]:
            return bands_of(before, limits, reach, mask=valid)

        summaries = summarize_in_bands(self, bands, x.device, prefix=prefix if num_prefix_tokens else None)
        if num_prefix_tokens:
            out[:, :num_prefix_tokens] = self.respond(prefix, summaries)
        for band, response in respond_in_bands(self, bands(self.reach()), summaries, x.device):
            after[:, band.start : band.stop] = response.unflatten(1, (-1, *grid[1:]))
        return out

    # The same in steps, for images that come in bands

    @property
    def sweeps(self) -> int:
        """How many times an image is summed over: see `InBands`."""
        return self.mixer.sweeps

    def reach(self) -> tuple[int, int]:
        """How many rows above and below a token the mixer's local parts, the MLP and convolutional positions see."""
        return _more(self.mixer.reach(), self._reach_before() + self._reach_after())

    def summary_reach(self) -> tuple[int, int]:
        """How many rows above and below a token `summarize` sees."""
        return _more(self.mixer.summary_reach(), self._reach_before())

    @property
    def by_token(self) -> bool:
        """Whether all but the mixer works on tokens one by one."""
        return not (self._reach_before() or self._reach_after())

    def _reach_before(self) -> int:
        return 0 if self.cpe1 is None else 1

    def _reach_after(self) -> int:
        return (0 if self.cpe2 is None else 1) + self._mlp_reach()

    def _mlp_reach(self) -> int:
        return 1 if isinstance(self.mlp, DepthwiseMlp) else 0

    def summarize(
        self,
        x: Tensor,
        grid: Grid | None = None,
        *,
        place: Place = WHOLE,
        mask: Tensor | None = None,
        before: Summaries = (),
    ) -> Summary:
        """The sums over these tokens that the block needs: see `InBands.summarize`."""
        self._check_bands()
        rows = _placed(self.cpe1, _Rows(zero_masked(x, mask), grid, place, mask), self.mixer.summary_reach())
        local_input = rows.x if self.raw_local else None
        where: dict[str, Any] = {"place": rows.place, "mask": rows.mask}
        return self.mixer.summarize(self.norm1(rows.x), rows.grid, **where, local_input=local_input, before=before)

    def respond(
        self,
        x: Tensor,
        summaries: Summaries,
        grid: Grid | None = None,
        *,
        place: Place = WHOLE,
        mask: Tensor | None = None,
    ) -> Tensor:
        """`forward` for a band of an image, from the summaries of all of it: see `InBands.respond`."""
        self._check_bands()
        after = self._reach_after()
        rows = _placed(self.cpe1, _Rows(zero_masked(x, mask), grid, place, mask), _more(self.mixer.reach(), after))
        kept = rows.kept((after, after))  # halo of the mixer's output, for what comes after it
        at = rows.place._replace(halo=(rows.place.halo[0] - kept[0], rows.place.halo[1] - kept[1]))
        mixed = self.mixer.respond(self.norm1(rows.x), summaries, rows.grid, place=at, mask=rows.mask)
        rows = rows.cut(kept)
        rows = rows._replace(x=rows.x + self.drop_path(mixed))
        rows = _placed(self.cpe2, rows, (self._mlp_reach(),) * 2)
        if not isinstance(self.mlp, DepthwiseMlp):
            return self._add(rows.x, self.mlp, self.norm2(rows.x))
        out = self._add(rows.x, self.mlp, self.norm2(rows.x), rows.grid, mask=rows.mask)
        return out[:, rows.place.inner(rows.grid)]

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """The rest of `forward` from the mixer's output before its projection: both (B, n, C), of any tokens."""
        x = x + self.drop_path(self.mixer.proj_drop(self.mixer.output(mixed, self.norm1(x))))
        return self._add(x, self.mlp, self.norm2(x))

    def _check_bands(self) -> None:
        if not self.mixer.works_in_bands:
            raise ValueError(f"{type(self.mixer).__name__} does not work in bands (its works_in_bands is False)")

    def _add(self, x: Tensor, branch: nn.Module, *arguments: Any, **options: Any) -> Tensor:
        """x + branch(...). The branch adds itself to x, unless it is dropped, or hooks have to see its own output."""
        ours = isinstance(branch, Mixer | Mlp | DepthwiseMlp) and not has_hooks(branch)
        dropped = not isinstance(self.drop_path, DropPath) or (self.drop_path.training and self.drop_path.drop_prob)
        if dropped or not ours:
            total: Tensor = x + self.drop_path(branch(*arguments, **options))
        else:
            total = branch(*arguments, **options, residual=x)
        return total


class _Rows(NamedTuple):
    """Some rows of an image on their way through a block, with those around them that it still needs."""

    x: Tensor
    grid: Grid | None
    place: Place
    mask: Tensor | None

    def kept(self, reach: tuple[int, int]) -> tuple[int, int]:
        """The halo that is left when no more rows than these are needed."""
        return min(self.place.halo[0], reach[0]), min(self.place.halo[1], reach[1])

    def cut(self, halo: tuple[int, int]) -> "_Rows":
        """Without the rows beyond this halo."""
        above, below = self.place.halo[0] - halo[0], self.place.halo[1] - halo[1]
        if self.grid is None or not (above or below):
            return self
        tokens, (first, height, _) = Place(halo=(above, below)).inner(self.grid), self.place
        grid = (self.grid[0] - above - below, *self.grid[1:])
        return _Rows(self.x[:, tokens], grid, Place(first + above, height, halo), _part(self.mask, tokens))


def _part(mask: Tensor | None, tokens: slice) -> Tensor | None:
    return None if mask is None else mask[:, tokens]


def _more(reach: tuple[int, int], rows: int) -> tuple[int, int]:
    return reach[0] + rows, reach[1] + rows


def _placed(cpe: ConvPositions | None, rows: _Rows, reach: tuple[int, int]) -> _Rows:
    """With positions, if there are some, and the halo that is needed after them."""
    return rows if cpe is None else rows._replace(x=cpe(rows.x, rows.grid, mask=rows.mask)).cut(rows.kept(reach))


class Mlp(nn.Module):
    """Linear, GELU, linear: (B, N, C) -> (B, N, C). Without gradients it goes through the tokens in chunks.

    Parameters are named like those of timm's MLP, which cannot add itself to the residual stream.

    Args:
        in_features, hidden_features: channels of the tokens and in between.
        drop: dropout after both linear maps.
    """

    def __init__(self, in_features: int, hidden_features: int, *, drop: float = 0.0) -> None:
        super().__init__()
        self.fc1 = nn.Linear(in_features, hidden_features)
        self.act = nn.GELU()
        self.drop1 = nn.Dropout(drop)
        self.fc2 = nn.Linear(hidden_features, in_features)
        self.drop2 = nn.Dropout(drop)
        self._views = WeightViews(_transposed)

    def forward(self, x: Tensor, *, residual: Tensor | None = None) -> Tensor:
        """The MLP of x, added to the residual if there is one."""
        if residual is None or (self.drop2.training and self.drop2.p):
            out: Tensor = self.drop2(self.fc2(self.drop1(self.act(self.fc1(x)))))
            return out if residual is None else residual + out
        at_once = MLP_CHUNK // self.fc1.out_features
        if self._whole() or x.numel() // x.shape[-1] <= at_once:
            watched = any(map(has_hooks, self.children()))
            if watched or not (is_plain(self.fc1) and is_plain(self.fc2) and can_accumulate(residual, x)):
                return add_linear(residual, self.drop1(self.act(self.fc1(x))), self.fc2)
            first, second = self._views(self.fc1.weight, self.fc2.weight)
            hidden = self.drop1(self.act(torch.addmm(self.fc1.bias, x.flatten(0, -2), first)))
            return add_product(residual, hidden, second, self.fc2.bias)
        out = torch.empty_like(residual, memory_format=torch.contiguous_format)
        chunks = (tokens.flatten(0, -2).split(at_once) for tokens in (x, residual, out))
        for x_chunk, residual_chunk, out_chunk in zip(*chunks, strict=True):
            out_chunk.copy_(add_linear(residual_chunk, self.drop1(self.act(self.fc1(x_chunk))), self.fc2))
        return out

    def _whole(self) -> bool:
        """Whether all tokens have to go at once: for gradients, for a graph, or for hooks."""
        return torch.is_grad_enabled() or torch.compiler.is_compiling() or any(map(has_hooks, self.children()))


def _transposed(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Both weights of an MLP as products take them."""
    return first.t(), second.t()


class DepthwiseMlp(nn.Module):
    """Linear, 3x3 depthwise convolution, GELU, linear. The convolution leaves prefix tokens unchanged.

    Shapes: (B, N, C) -> (B, N, C).
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        *,
        drop: float = 0.0,
        grid_dims: int = 2,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.fc1 = nn.Linear(in_features, hidden_features, device=device, dtype=dtype)
        self.weight = nn.Parameter(torch.empty(hidden_features, *(3,) * grid_dims, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(hidden_features, device=device, dtype=dtype))
        self.fc2 = nn.Linear(hidden_features, in_features, device=device, dtype=dtype)
        self.drop = nn.Dropout(drop)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Kernels and bias uniform within 1 / sqrt(fan-in), like a convolution."""
        bound = float(self.weight[0].numel()) ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(
        self,
        x: Tensor,
        grid: Grid | None,
        *,
        num_prefix_tokens: int = 0,
        mask: Tensor | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        """Arguments as for `Mixer.forward`; masked tokens, (B, N), count as zero. Without a grid all are prefix tokens."""
        hidden = zero_masked(self.fc1(zero_masked(x, mask)), mask)
        if grid is not None:
            check_grid(grid, x.shape[1], num_prefix_tokens)
            kernels, bias = self.weight.unsqueeze(0).to(hidden.dtype), self.bias.unsqueeze(0).to(hidden.dtype)
            convolved = local_convolution(hidden[:, num_prefix_tokens:], kernels, grid, bias=bias)
            hidden = torch.cat([hidden[:, :num_prefix_tokens], convolved], 1)
        out: Tensor = self.drop(self.fc2(self.drop(F.gelu(hidden))))
        return out if residual is None else residual + out
