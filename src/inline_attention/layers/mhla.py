"""MHLA, multi-head linear attention over blocks of the map (Zhang et al., "Restoring Expressivity", ICLR 2026)."""

from collections.abc import Callable
from math import cos, exp, pi
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Unpack

from ..ops.blocks import block_of_token, block_sides, from_blocks, to_blocks
from ..ops.checks import Grid, check_name
from ..ops.kernels import rotate
from ..ops.reference_rivals import block_weights, published_divisor
from ..ops.sums import zero_masked
from .layout import Layout
from .mixer import MixerOptions
from .rope import Rotation
from .summary import Summaries
from .summed import BandInput, SummedMixer, Sums

Divisor = Literal["paper", "published"]
Start = Literal["linear", "cos", "exp", "near"]
EPS = 1e-6
STARTS: dict[str, Callable[[float, float], float]] = {
    "linear": lambda distance, largest: 1 - distance / largest,
    "cos": lambda distance, largest: cos(pi / 4 * distance / largest),
    "exp": lambda distance, largest: exp(-distance / 3),
    "near": lambda distance, largest: float(distance <= 1.5),
}


class MhlaAttention(SummedMixer):
    """Linear attention whose weights depend on the blocks of two tokens: a learned matrix P mixes the states of M blocks.

        S_n = sum over keys j of block n of phi(k_j) v_j^T       out_i = phi(q_i)^T sum_n P[m, n] S_n / D_i, i in block m

    phi(x) = ReLU(RMSNorm(x)) + 1e-6, and x goes through a LayerNorm of the layer's own. P, (M, M), is shared by the heads.
    Every grid is cut into the same number of blocks, `blocks` along each side, of as many tokens as are needed; a side that
    they do not divide is padded at its end. So P fits every size.

    The divisor D_i of the paper (equation 4) is phi(q_i).sum_n P[m, n] (sum of the keys of n), and rows sum to 1. The published
    code has another: each term of the sum over n has the query of the token at the same place in block n instead of q_i.

    Prefix tokens, which the published design does not have, are one more block, which reads and is read with the means of P: if
    all entries of P are the same, this is linear attention. Their divisor is always the paper's. As it was published it has
    `divisor="published", lepe=5, qkv_bias=False`; its trainer also clamps P to [0, 1] after each step, which is not done here.

    Args:
        dim, num_heads: channels, and heads that divide them.
        blocks: how many blocks there are along a side, one number or one for each side.
        divisor: "paper" or "published".
        start: what P starts as, a falling function of the distance of two blocks, normalised over the blocks that read.
        local: add the local residual.
        options: as for every `Mixer`.
    """

    rope_after_kernel = True
    divides = True
    reads_layout = True
    stretches = True
    needs_grid = "blocks of the grid"
    refuses = {"reduction": "keys and queries share blocks", "context": "a context has no blocks"}  # noqa: RUF012  as in Mixer

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        blocks: int | Grid = 4,
        divisor: Divisor = "paper",
        start: Start = "linear",
        local: bool = False,
        **options: Unpack[MixerOptions],
    ) -> None:
        check_name("divisor", divisor, get_args(Divisor))
        check_name("start", start, STARTS)
        super().__init__(dim, num_heads, local=local, **options)
        self.counts = (blocks,) * self.grid_dims if isinstance(blocks, int) else tuple(blocks)
        if len(self.counts) != self.grid_dims or min(self.counts) < 1:
            raise ValueError(f"blocks must be positive, one number or one for each of {self.grid_dims} sides, got {blocks!r}")
        self.divisor, self.start = divisor, start
        kind: dict[str, Any] = {"device": options.get("device"), "dtype": options.get("dtype")}
        self.norm = nn.LayerNorm(dim, **kind)
        self.q_rms, self.k_rms = nn.RMSNorm(dim, **kind), nn.RMSNorm(dim, **kind)
        number = torch.Size(self.counts).numel()
        self.mixing = nn.Parameter(torch.empty(number, number, **kind))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """P by the distance of blocks, its columns normalised; the norms start as their own."""
        with torch.no_grad():
            self.mixing.copy_(starting_mixing(self.counts, self.start))

    def project_queries(self, x: Tensor) -> Tensor:
        """Through the layer's own norms."""
        return _apply(self.q_rms, super().project_queries(self.norm(x)))

    def project_keys_values(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Through the layer's own norms."""
        k, v = super().project_keys_values(self.norm(source))
        return _apply(self.k_rms, k), v

    def attend(  # type: ignore[override]
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, layout: Layout, rotation: Rotation | None = None
    ) -> Tensor:
        """A state for each block, mixed, and read by the queries of each block."""
        prefix, grid = layout.num_prefix_tokens, layout.grid
        assert grid is not None  # needs_grid
        mapped, k, v = _phi(q), zero_masked(_phi(k), mask), zero_masked(v, mask)
        rotated_q, rotated_k, q, k = rotate(mapped, k, rotation)
        keys, rotated_keys, values, queries, rotated_queries = (
            to_blocks(tokens[:, :, prefix:], grid, self.counts) for tokens in (k, rotated_k, v, q, rotated_q)
        )
        sums, outer, mixing = keys.sum(-2).unsqueeze(-1), rotated_keys.mT @ values, self._mixing(prefix, q.dtype)
        if prefix:
            sums = torch.cat([sums, k[:, :, :prefix].sum(-2)[:, :, None, :, None]], 2)
            outer = torch.cat([outer, (rotated_k[:, :, :prefix].mT @ v[:, :, :prefix]).unsqueeze(2)], 2)
        mixed_sums, mixed_outer = (torch.einsum("mn,bhnde->bhmde", mixing, state) for state in (sums, outer))
        number = len(self.mixing)
        divisor = queries @ mixed_sums[:, :, :number]
        if self.divisor == "published":
            asked = to_blocks(zero_masked(q, layout.mask)[:, :, prefix:], grid, self.counts) @ sums[:, :, :number]
            divisor = torch.einsum("mn,bhnwe->bhmwe", mixing[:number, :number], asked)
            if prefix:
                divisor = divisor + mixing[:number, number, None, None] * (queries @ sums[:, :, number:])
        out = from_blocks(rotated_queries @ mixed_outer[:, :, :number] / (divisor + EPS), grid, self.counts)
        if not prefix:
            return out
        alone = rotated_q[:, :, :prefix] @ mixed_outer[:, :, number] / (q[:, :, :prefix] @ mixed_sums[:, :, number] + EPS)
        return torch.cat([alone, out], 2)

    # In bands, with the divisor of the paper

    @property
    def works_in_bands(self) -> bool:
        """The published divisor needs a number of every token of the other blocks: it does not."""
        return super().works_in_bands and self.divisor == "paper"

    def sum_tokens(self, band: BandInput, before: Summaries) -> Sums:
        """The sums of each block, those of prefix tokens last: of keys, and of keys and values."""
        k = zero_masked(_phi(band.k), band.mask)
        turned = band.turned_keys(k)
        tokens = (band.in_divisor(k, turned), turned, band.v)
        if band.grid is None:
            keys, turned, values = (part.unsqueeze(2) for part in tokens)
            before_it, after_it = len(self.mixing), 0
        else:
            (first, count), (keys, turned, values) = self._block_rows(band), (self._blocks_of(band, part) for part in tokens)
            before_it, after_it = first, len(self.mixing) + 1 - first - count
        padding = (before_it, after_it)
        return Sums((F.pad(keys.sum(-2), (0, 0, *padding)), F.pad(turned.mT @ values, (0, 0, 0, 0, *padding))))

    def read(self, band: BandInput, summaries: Summaries) -> Tensor:
        """Each block of queries from its mixed state."""
        q = _phi(band.q)
        turned = band.turned_queries(q)
        sums, outer = summaries[0].sums
        mixing = self._mixing(1, q.dtype)
        rows = slice(len(self.mixing), None) if band.grid is None else slice(*_limits(*self._block_rows(band)))
        sums = torch.einsum("mn,bhnd->bhmd", mixing[rows], sums).unsqueeze(-1)
        outer = torch.einsum("mn,bhnde->bhmde", mixing[rows], outer)
        if band.grid is None:
            return turned @ outer[:, :, 0] / (band.in_divisor(q, turned) @ sums[:, :, 0] + EPS)
        divisor = self._blocks_of(band, band.in_divisor(q, turned)) @ sums
        return self._tokens_of(band, self._blocks_of(band, turned) @ outer / (divisor + EPS))

    def _block_rows(self, band: BandInput) -> tuple[int, int]:
        """The number of the first block that a band has tokens of, and of how many blocks, whole rows of blocks."""
        start, stop, height = self._rows_of(band)
        across = torch.Size(self.counts[1:]).numel()
        first = start // height
        return first * across, (-(-stop // height) - first) * across

    def _rows_of(self, band: BandInput) -> tuple[int, int, int]:
        """The first row of a band, the one after its last, and how many rows a block has."""
        assert band.grid is not None
        (start, stop), image = band.place.inner_rows(band.grid), band.place.image_grid(band.grid)
        return start, stop, block_sides(image, self.counts)[0]

    def _framed(self, band: BandInput) -> tuple[Grid, tuple[int, ...], int, int]:
        """The grid of a band with rows before and after it to whole blocks; how many blocks; the rows before and after."""
        assert band.grid is not None
        start, stop, height = self._rows_of(band)
        above, below = start % height, -stop % height
        rows = above + stop - start + below
        return (rows, *band.grid[1:]), (rows // height, *self.counts[1:]), above, below

    def _blocks_of(self, band: BandInput, tokens: Tensor) -> Tensor:
        """(B, heads, n, d) -> (B, heads, blocks of the band, w, d)."""
        grid, counts, above, below = self._framed(band)
        width = torch.Size(grid[1:]).numel()
        return to_blocks(F.pad(tokens, (0, 0, above * width, below * width)), grid, counts)

    def _tokens_of(self, band: BandInput, blocks: Tensor) -> Tensor:
        """The way back."""
        grid, counts, above, below = self._framed(band)
        width = torch.Size(grid[1:]).numel()
        tokens = from_blocks(blocks, grid, counts)
        return tokens[:, :, above * width : tokens.shape[2] - below * width]

    def weights(  # type: ignore[override]
        self, q: Tensor, k: Tensor, mask: Tensor | None, layout: Layout, rotation: Rotation | None = None
    ) -> Tensor:
        """With the paper's divisor rows sum to 1, without rotary positions."""
        prefix, grid = layout.num_prefix_tokens, layout.grid
        assert grid is not None  # needs_grid
        block, place = block_of_token(grid, self.counts, q.device)
        numbers = torch.arange(prefix, device=q.device)
        block = torch.cat([torch.full_like(numbers, len(self.mixing)), block])
        place = torch.cat([-1 - numbers, place])  # alone at its place
        mixing = self._mixing(prefix, q.dtype)[block][:, block]
        divisor, own = None, mixing if layout.chosen is None else mixing[layout.chosen]
        if self.divisor == "published":
            queries, keys = _phi(layout.queries(q)), _phi(k)
            divisor = published_divisor(queries, keys, mixing, block, place, mask=mask)
            own_sum = queries @ zero_masked(keys, mask).mT
            to_prefix = own_sum[..., :prefix].sum(-1, keepdim=True) * (mixing[:, :1] if prefix else 0)
            divisor = torch.where((block < len(self.mixing))[:, None], divisor + to_prefix, (mixing * own_sum).sum(-1, True))
            divisor = layout.of_chosen(divisor)
        return block_weights(_phi(q), _phi(k), own, divisor=divisor, mask=mask, eps=EPS, rotation=rotation)

    def _mixing(self, prefix: int, dtype: torch.dtype) -> Tensor:
        """P, and with prefix tokens a block for them whose row and column are the means of P's."""
        mixing = self.mixing.to(dtype)
        if not prefix:
            return mixing
        mixing = torch.cat([mixing, mixing.mean(1, keepdim=True)], 1)
        return torch.cat([mixing, mixing.mean(0, keepdim=True)], 0)


def _limits(first: int, count: int) -> tuple[int, int]:
    return first, first + count


def _apply(norm: nn.RMSNorm, tokens: Tensor) -> Tensor:
    """In the precision of its weights, which autocast does not see to."""
    normed: Tensor = norm(tokens.to(norm.weight.dtype))
    return normed


def _phi(x: Tensor) -> Tensor:
    return torch.relu(x) + EPS


def starting_mixing(counts: tuple[int, ...], start: Start) -> Tensor:
    """P, (M, M), by the Euclidean distance of blocks; each column is divided by its sum."""
    places = torch.cartesian_prod(*(torch.arange(float(count)) for count in counts)).view(-1, len(counts))
    distances = torch.cdist(places, places, compute_mode="donot_use_mm_for_euclid_dist")
    largest = float(distances.max()) or 1.0
    values = [[STARTS[start](distance, largest) for distance in row] for row in distances.tolist()]
    mixing = torch.tensor(values)
    return mixing / mixing.sum(0)
