"""What one attention layer did with a batch of images: its queries, keys, values, and the weights of any query on demand.

`MixerAttention` is a mixer of this package with its input; `SdpaAttention` is one call of torch's
`scaled_dot_product_attention`, of any model. Weights are computed row by row, so nothing quadratic in the tokens is stored.
Analyses use this interface only: a new mixer can be analysed without further code.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..layers import MIXERS, AttentionRows, Mixer
from ..ops.reference import softmax_weights
from ..ops.sums import mean_valid

Queries = Sequence[int] | Tensor


@dataclass(frozen=True)
class Attention(ABC):
    """One layer and one batch of images: the attention of M queries over N keys."""

    name: str
    """Name of the module in the model."""
    grid: tuple[int, int]
    """(H, W) of the queries; the prefix tokens come before them."""
    num_prefix_tokens: int

    @property
    @abstractmethod
    def kind(self) -> str:
        """The kind of attention: a name of `MIXERS`."""

    @abstractmethod
    def project(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, heads, M, d), keys and values (B, heads, N, d), as the formula takes them."""

    @abstractmethod
    def rows(self, queries: Queries) -> AttentionRows:
        """Dense weights of chosen queries, given as indices over all tokens, prefix tokens included."""

    @abstractmethod
    def weigh(
        self,
        queries: Tensor,
        keys: Tensor,
        hidden: Tensor | None = None,
        *,
        place: int | None = None,
        images: slice = slice(None),
    ) -> Tensor:
        """Weights of arbitrary queries, (B, heads, M, d), over keys, (B, heads, N, d); `hidden`, (B, N), masks keys.

        Where weights depend on what else there is, the queries are at the token with index `place`, all of them, in chosen
        images of the batch: a positional bias, a turn after the kernel, blocks, and means over all queries are those. Without
        a place, a bias and a turn are left out, and the queries are those of all tokens. Not for attention in windows.
        """

    def compared(self, queries: Queries) -> Tensor:
        """What tells chosen queries apart, (B, heads, queries, ...): their weights; where there are none, their answers."""
        return self.rows(queries).mixed

    @property
    def tokens(self) -> int:
        """M, the number of queries."""
        return self.num_prefix_tokens + self.grid[0] * self.grid[1]

    @property
    def whole(self) -> bool:
        """Whether the keys are the same tokens as the queries, not those of a reduced map."""
        return True

    @property
    def windowed(self) -> bool:
        """Whether each query attends to a window of the image only."""
        return False

    @property
    def has_weights(self) -> bool:
        """Whether outputs are weighted sums of values, so that `rows` has weights."""
        return True

    def weights(self) -> Tensor:
        """The weights of all queries, (B, heads, M, N), without local parts; memory is quadratic in the number of tokens."""
        return self.rows(range(self.tokens)).mixed

    def local_kernels(self) -> Tensor | None:
        """(B, C, h, w): the kernels of the local residual for these images; None without a residual or in windows."""
        return None

    def place(self, point: tuple[float, float]) -> tuple[int, int]:
        """(row, column) of the token at a point of the image, given as fractions of its height and width."""
        clipped = [min(side - 1, max(0, int(share * side))) for share, side in zip(point, self.grid, strict=True)]
        return clipped[0], clipped[1]

    def index(self, place: tuple[int, int]) -> int:
        """Index of the token at (row, column) among all tokens."""
        return self.num_prefix_tokens + place[0] * self.grid[1] + place[1]


@dataclass(frozen=True)
class MixerAttention(Attention):
    """A mixer of this package and its input."""

    mixer: Mixer = field(repr=False)
    x: Tensor = field(repr=False)
    options: dict[str, Any] = field(repr=False)

    @property
    def kind(self) -> str:
        """The mixer's registered name, or the name of its class."""
        return next((name for name, mixer in MIXERS.items() if mixer is type(self.mixer)), type(self.mixer).__name__)

    @property
    def whole(self) -> bool:
        """False with spatial reduction, which makes fewer keys."""
        return self.mixer.reduction is None

    @property
    def has_weights(self) -> bool:
        """As the mixer says."""
        return self.mixer.is_weighted_sum

    @property
    def windowed(self) -> bool:
        """Whether the mixer has windows."""
        return bool(self.mixer.windows)

    @torch.no_grad()
    def project(self) -> tuple[Tensor, Tensor, Tensor]:
        """By the mixer's own projections."""
        options = {key: value for key, value in self.options.items() if key != "local_input"}
        return self.mixer.project(self.x, self.grid, **options)

    @torch.no_grad()
    def rows(self, queries: Queries) -> AttentionRows:
        """By `Mixer.attention_rows`."""
        return self.mixer.attention_rows(self.x, self.grid, torch.as_tensor(queries), **self.options)

    @torch.no_grad()
    def weigh(
        self,
        queries: Tensor,
        keys: Tensor,
        hidden: Tensor | None = None,
        *,
        place: int | None = None,
        images: slice = slice(None),
    ) -> Tensor:
        """By `Mixer.weights`; a mixer without weights gives its answers, (B, heads, M, d)."""
        if self.windowed or self.options.get("mask") is not None:
            raise ValueError(f"{self.name} attends in windows or has a mask: use rows() for its weights")
        if not self.has_weights:
            return self._answers(queries, images)
        chosen = None if place is None else torch.full((queries.shape[2],), place, device=queries.device)
        mask, options = None if hidden is None else ~hidden, dict[str, Any]()
        rotation = self.mixer.own_rotation(self.x, self.grid, self.num_prefix_tokens)
        if rotation is not None and rotation.after_kernel and chosen is not None:
            options["rotation"] = rotation.chosen(chosen)
        if self.mixer.reads_layout:
            every = self.project()[0][images]
            layout = self.mixer.layout(self.grid, self.num_prefix_tokens, mask)
            options["layout"] = layout._replace(all_queries=every, chosen=chosen)
        return self.mixer.weights(queries, keys, mask, **options)

    @torch.no_grad()
    def compared(self, queries: Queries) -> Tensor:
        """The answers of a mixer without weights."""
        if self.has_weights:
            return super().compared(queries)
        return self._answers(self.project()[0][:, :, torch.as_tensor(queries, device=self.x.device)])

    def _answers(self, queries: Tensor, images: slice = slice(None)) -> Tensor:
        return self.mixer.answers(queries, self.x[images], self.grid, num_prefix_tokens=self.num_prefix_tokens)

    @torch.no_grad()
    def local_kernels(self) -> Tensor | None:
        """Computed from the mean of the input, as the layer does."""
        if self.mixer.local is None or self.windowed:
            return None
        local_input = self.options.get("local_input")
        return self.mixer.local.kernels(mean_valid(self.x if local_input is None else local_input, self.options.get("mask")))


@dataclass(frozen=True)
class SdpaAttention(Attention):
    """One call of torch's `scaled_dot_product_attention`."""

    q: Tensor = field(repr=False)
    k: Tensor = field(repr=False)
    v: Tensor = field(repr=False)
    bias: Tensor | None = field(repr=False)
    scale: float | None = None

    @property
    def kind(self) -> str:
        """Always softmax."""
        return "softmax"

    @property
    def whole(self) -> bool:
        """Whether there are as many keys as queries."""
        return self.q.shape[2] == self.k.shape[2]

    def project(self) -> tuple[Tensor, Tensor, Tensor]:
        """The arguments of the call."""
        return self.q, self.k, self.v

    def rows(self, queries: Queries) -> AttentionRows:
        """By the formula of softmax attention."""
        chosen = torch.as_tensor(queries, device=self.q.device)
        if chosen.ndim != 1 or not chosen.numel() or chosen.is_floating_point():
            raise ValueError(f"queries must be a list of token indices, got {queries!r}")
        if int(chosen.min()) < 0 or int(chosen.max()) >= self.tokens:
            raise ValueError(f"queries {chosen.tolist()} are not all within the {self.tokens} tokens of {self.name}")
        bias = None if self.bias is None else self._biases()[..., chosen, :]
        return AttentionRows(softmax_weights(self.q[:, :, chosen], self.k, scale=self.scale, bias=bias), None)

    def weigh(
        self,
        queries: Tensor,
        keys: Tensor,
        hidden: Tensor | None = None,
        *,
        place: int | None = None,
        images: slice = slice(None),
    ) -> Tensor:
        """By the formula of softmax attention."""
        bias = None if self.bias is None or place is None else self._biases()[..., place : place + 1, :]
        if bias is not None and bias.shape[0] > 1:
            bias = bias[images]
        return softmax_weights(queries, keys, scale=self.scale, mask=None if hidden is None else ~hidden, bias=bias)

    def _biases(self) -> Tensor:
        """The bias of all pairs, as (1 or B, 1 or heads, M, N)."""
        assert self.bias is not None
        shape = (self.q.shape[2], self.k.shape[2])
        return self.bias.expand(*self.bias.shape[:-2], *shape).view(*(1,) * (4 - self.bias.ndim), *self.bias.shape[:-2], *shape)


def layer_label(layer: str) -> str:
    """The name of a layer for people: 'stages.0.blocks.3.mixer' -> 'stage 0, block 3'."""
    parts = layer.removesuffix(".mixer").removesuffix(".attn").split(".")
    numbers = [
        f"{name.rstrip('s')} {number}" for name, number in zip(parts[::2], parts[1::2], strict=False) if number.isdigit()
    ]
    return ", ".join(numbers) or layer
