"""ViT^3's test-time training layer (Han et al., "ViT^3: Unlocking Test-Time Training in Vision", CVPR 2026)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from timm.layers import trunc_normal_
from torch import Tensor, nn
from typing_extensions import Unpack

from ..ops.checks import Grid
from ..ops.inner_model import descend, kernel_gradient, unit_gradients
from ..ops.local_convolution import local_convolution
from ..ops.sums import count_valid, to_fp32, without_autocast, zero_masked
from .layout import Layout
from .mixer import MixerOptions
from .rope import Rotation
from .summary import Summaries
from .summed import BandInput, SummedMixer, Sums

SCALE = 1 / 3
"""s, in both branches: 9 ** -0.5 whatever the size of a head is, as in the published models."""


class InnerModel(NamedTuple):
    """What the layer learned from the keys and values of each image."""

    w1: Tensor
    """(B, heads, d, d), rows are inputs."""
    w2: Tensor
    """(B, heads, d, d)."""
    w3: Tensor
    """(B, d, 3, 3): a kernel for each channel of the second branch."""


class Vit3Attention(SummedMixer):
    """A small model, trained by one step on the keys and values of an image, answers its queries: see `ops/inner_model.py`.

    The heads are gated linear units. After them come d channels more, the second branch: a 3 x 3 depthwise convolution of
    queries of their own. So queries, keys and values have C + d channels, and the output projection reads C + d. Prefix tokens
    are in the first branch only; local parts are added to the C channels of the heads. H-ViT^3 has `rope="all"`, which turns
    the heads.

    The output is not a weighted sum of values, so there are no attention rows. `inner_model` returns what was learned.

    Args:
        dim, num_heads: channels, and heads that divide them.
        local: add the local residual.
        options: as for every `Mixer`.
    """

    rope_after_kernel = True
    is_weighted_sum = False
    reads_layout = True
    own_projections = True
    needs_grid = "a convolution of queries"
    refuses = {  # noqa: RUF012  as in Mixer
        "windows": "its second branch convolves the whole map",
        "reduction": "its second branch needs keys on the grid of the queries",
        "context": "its second branch needs keys on the grid of the queries",
    }

    def __init__(self, dim: int, num_heads: int = 8, *, local: bool = False, **options: Unpack[MixerOptions]) -> None:
        super().__init__(dim, num_heads, local=local, **options)
        kind: dict[str, Any] = {"device": options.get("device"), "dtype": options.get("dtype")}
        square = (num_heads, self.head_dim, self.head_dim)
        self.w1, self.w2 = (nn.Parameter(torch.empty(square, **kind)) for _ in range(2))
        self.w3 = nn.Parameter(torch.empty(self.head_dim, *(3,) * self.grid_dims, **kind))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The inner model before the step: normal, of deviation 0.02."""
        for parameter in (self.w1, self.w2, self.w3):
            trunc_normal_(parameter, std=0.02)

    def make_projections(self, linear: Callable[..., nn.Linear], source_dim: int, bias: bool) -> None:
        """With the channels of the second branch after those of the heads."""
        self.q = linear(self.dim, self.width, bias=bias)
        self.kv = linear(self.dim, 2 * self.width, bias=bias)

    @property
    def width(self) -> int:
        """C + d."""
        return self.dim + self.head_dim

    def attend(  # type: ignore[override]
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, layout: Layout, rotation: Rotation | None = None
    ) -> Tensor:
        """(B, heads + 1, N, d), the second branch last."""
        assert layout.grid is not None  # needs_grid
        trained, prefix = self._train(k, v, mask, layout, rotation), layout.num_prefix_tokens
        queries = q[:, :-1] if rotation is None else rotation.of_queries(q[:, :-1])
        heads = _ask(queries, trained)
        convolved = local_convolution(zero_masked(q, layout.mask)[:, -1, prefix:], trained.w3, layout.grid)
        return torch.cat([heads, F.pad(convolved, (0, 0, prefix, 0)).unsqueeze(1)], 1)

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None, **options: Any) -> Tensor:
        """There are none."""
        raise ValueError(f"{type(self).__name__} has no attention weights: its output is not a weighted sum of values")

    def inner_model(self, x: Tensor, grid: Grid, *, num_prefix_tokens: int = 0, mask: Tensor | None = None) -> InnerModel:
        """The inner model of each image after its step; arguments as for `forward`."""
        given = self._prepare(x, grid, num_prefix_tokens, mask, None, None, None)
        _, k, v = self._project(given.x, given.mask, None, None)
        chosen = self._formula_options(given)
        with without_autocast(x.device):
            return self._train(to_fp32(k), to_fp32(v), given.mask, chosen["layout"], chosen.get("rotation"))

    def answers(self, q: Tensor, x: Tensor, grid: Grid | None, *, num_prefix_tokens: int = 0) -> Tensor:
        """Of the heads, to queries that are not turned, (B, heads + 1, M, d): (B, heads, M, d)."""
        assert grid is not None  # needs_grid
        with without_autocast(x.device):
            return _ask(to_fp32(q[:, :-1]), self.inner_model(x, grid, num_prefix_tokens=num_prefix_tokens))

    # In bands

    def reach(self) -> tuple[int, int]:
        """The second branch sees a row on either side."""
        above, below = super().reach()
        return max(1, above), max(1, below)

    def summary_reach(self) -> tuple[int, int]:
        """Its gradient too."""
        return 1, 1

    def sum_tokens(self, band: BandInput, before: Summaries) -> Sums:
        """The gradients of the loss, without the factor s / N; and how many tokens are on the grid."""
        keys = band.turned_keys(band.k[:, :-1])
        w1, w2, _ = self._inner(keys.dtype)
        on_grid = torch.zeros_like(band.token_sum[:, 0])
        taps = keys.new_zeros(len(keys), *self.w3.shape)
        if band.grid is not None:
            on_grid = count_valid(band.tokens, band.mask).to(keys.dtype)
            halo = torch.zeros_like(band.values[:1, :, :1], dtype=torch.bool)
            halo[:, band.inner] = True  # which is not halo
            values = to_fp32(band.values[..., self.dim :]).masked_fill(~halo, 0)
            taps = kernel_gradient(self._second(band, band.keys, self.k_norm), values, self.w3.shape[1:], band.grid)
        return Sums((*unit_gradients(keys, band.v[:, :-1], w1, w2), taps, on_grid))

    def read(self, band: BandInput, summaries: Summaries) -> Tensor:
        """By the trained inner model."""
        gradient1, gradient2, taps, on_grid = summaries[0].sums
        trained = self._step((gradient1, gradient2, taps), summaries[0].count, on_grid)
        queries = band.turned_queries(band.q[:, :-1])
        heads = _ask(queries, trained)
        if band.grid is None:
            return F.pad(heads, (0, 0, 0, 0, 0, 1))
        asked = self._second(band, self.project_queries(band.x), self.q_norm)
        convolved = local_convolution(zero_masked(asked, band.full_mask), trained.w3, band.grid)
        return torch.cat([heads, convolved[:, band.inner].unsqueeze(1)], 1)

    def _second(self, band: BandInput, tokens: Tensor, norm: nn.Module) -> Tensor:
        """The channels of the second branch, with the halo, (B, n, d)."""
        return to_fp32(norm(self.split_heads(tokens)[:, -1]))

    def _inner(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        return self.w1.to(dtype), self.w2.to(dtype), self.w3.to(dtype)

    def _step(self, gradients: tuple[Tensor, Tensor, Tensor], count: Tensor, on_grid: Tensor) -> InnerModel:
        """One step of descent, from sums over tokens."""
        inner = self._inner(gradients[0].dtype)
        first, second = (SCALE / number.clamp(min=1) for number in (count, on_grid))
        w1, w2 = (
            descend(w, first[:, None, None, None] * gradient, -2) for w, gradient in zip(inner[:2], gradients[:2], strict=True)
        )
        taps = descend(inner[2].flatten(1), second[:, None, None] * gradients[2].flatten(2), -1)
        return InnerModel(w1, w2, taps.unflatten(-1, self.w3.shape[1:]))

    def _train(self, k: Tensor, v: Tensor, mask: Tensor | None, layout: Layout, rotation: Rotation | None) -> InnerModel:
        assert layout.grid is not None  # needs_grid
        k, v, prefix = zero_masked(k, mask), zero_masked(v, mask), layout.num_prefix_tokens
        on_grid = count_valid(k[:, :, prefix:], None if mask is None else mask[:, prefix:])
        keys = k[:, :-1] if rotation is None else rotation.of_keys(k[:, :-1])
        w1, w2, w3 = self._inner(k.dtype)
        taps = kernel_gradient(k[:, -1, prefix:], v[:, -1, prefix:], w3.shape[1:], layout.grid)
        return self._step((*unit_gradients(keys, v[:, :-1], w1, w2), taps), count_valid(k, mask), on_grid)


def _ask(queries: Tensor, trained: InnerModel) -> Tensor:
    """The heads' answers, (B, heads, M, d)."""
    return (queries @ trained.w1) * F.silu(queries @ trained.w2)
