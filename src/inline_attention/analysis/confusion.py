"""Confusion: different queries that get the same attention weights.

A head confuses two queries of an image if their rows of weights are closer than a tolerance and the queries themselves are
not:

    |w_i - w_j| <= tolerance * max(|w_i|, |w_j|)    and    |q_i - q_j| > tolerance * max(|q_i|, |q_j|)

with Euclidean norms. By the paper's propositions, rows of InLine and of softmax attention differ whenever the queries differ
(if the keys span the space); rows of linear attention divided by its sum are equal for all queries along a ray.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .attention import Attention
from .capture import Captured

TOLERANCES = (0.001, 0.003, 0.01, 0.03, 0.1)
DEFAULT_TOLERANCE = 0.01
"""The tolerance of single numbers in reports."""
FEW, MANY = 0.0005, 0.001
"""Shares of confused pairs, at the default tolerance, that count as few and as many. Trained softmax and InLine attention have
0.02 % at most, trained linear attention and its relatives without the local residual 0.07 to 0.65 % (docs/results.md)."""
MAX_WEIGHTS = 2**24
"""Weights that are computed at once."""


LEVELS = (
    f"Few is good: {100 * FEW:g} % or less, as trained softmax and InLine attention have. Many is {100 * MANY:g} % or more, as "
    "trained linear attention has, and any attention that is hardly trained, whose weights are all nearly even."
)
"""What `level` says, in words."""


def level(share: float) -> str:
    """Whether a share of confused pairs, at the default tolerance, is few, some or many."""
    return "few" if share <= FEW else "many" if share >= MANY else "some"


@dataclass(frozen=True)
class Confusion:
    """Confused pairs of queries, by layer, image and head."""

    layers: tuple[str, ...]
    tolerances: tuple[float, ...]
    counts: tuple[Tensor, ...]
    """Per layer: (images, heads, tolerances)."""
    pairs: tuple[int, ...]
    """Per layer: the number of pairs of queries of one image and head."""

    def share(self, tolerance: float = DEFAULT_TOLERANCE) -> float:
        """The confused share of all pairs, over all layers and heads."""
        counts = self._at(tolerance)
        possible = sum(pairs * count.numel() for pairs, count in zip(self.pairs, counts, strict=True))
        return float(sum(float(count.sum()) for count in counts)) / possible

    def by_layer(self, tolerance: float = DEFAULT_TOLERANCE) -> list[float]:
        """The share of each layer."""
        return [
            float(count.sum()) / (pairs * count.numel()) for pairs, count in zip(self.pairs, self._at(tolerance), strict=True)
        ]

    def by_head(self, tolerance: float = DEFAULT_TOLERANCE) -> list[list[float]]:
        """The share of each head of each layer."""
        found = zip(self.pairs, self._at(tolerance), strict=True)
        return [(count.double().mean(0) / pairs).tolist() for pairs, count in found]

    def by_image(self, tolerance: float = DEFAULT_TOLERANCE) -> list[int]:
        """The number of confused pairs of each image, over all layers and heads."""
        totals: list[int] = torch.stack([count.sum(1) for count in self._at(tolerance)]).sum(0).tolist()
        return totals

    def _at(self, tolerance: float) -> list[Tensor]:
        if tolerance not in self.tolerances:
            raise ValueError(f"counted for tolerances {self.tolerances}, not for {tolerance}")
        return [count[..., self.tolerances.index(tolerance)] for count in self.counts]


def confusion(captured: Captured | Sequence[Attention], tolerances: Sequence[float] = TOLERANCES) -> Confusion:
    """Count confused pairs in every layer, over all pairs of queries, prefix tokens included; local parts are left out."""
    counts, pairs = [], []
    layers = [layer for layer in captured if layer.tokens > 1]
    if not layers:
        raise ValueError("every layer has one token only: there are no pairs of queries")
    for layer in layers:
        counts.append(count_confused(layer, tolerances))
        pairs.append(layer.tokens * (layer.tokens - 1) // 2)
    return Confusion(tuple(layer.name for layer in layers), tuple(tolerances), tuple(counts), tuple(pairs))


def count_confused(layer: Attention, tolerances: Sequence[float] = TOLERANCES) -> Tensor:
    """(images, heads, tolerances): exact counts, in chunks of queries, with distances in float64."""
    queries = layer.project()[0].cpu().double()  # some accelerators have no float64
    first = layer.compared([0])
    queries = queries_of_rows(queries, first.shape[1])
    height = max(1, MAX_WEIGHTS // first.numel())
    parts = torch.arange(layer.tokens).split(height)
    total = torch.zeros(*queries.shape[:2], len(tolerances), dtype=torch.long)
    for number, these in enumerate(parts):
        rows = layer.compared(these).cpu().double()
        for those in parts[number:]:
            others = rows if those is these else layer.compared(those).cpu().double()
            weight_distance = _relative_distance(rows, others)
            query_distance = _relative_distance(queries[:, :, these], queries[:, :, those])
            each_pair_once = these[:, None] < those[None, :]
            for place, tolerance in enumerate(tolerances):
                confused = (weight_distance <= tolerance) & (query_distance > tolerance) & each_pair_once
                total[..., place] += confused.sum((-1, -2))
    return total


def queries_of_rows(queries: Tensor, rows: int) -> Tensor:
    """The query of each of so many rows that a token has, from (B, heads, M, d): (B, rows, M, ...).

    There is a row for each head; one for each channel (Hydra); or some for each head, as in PolaFormer.
    """
    heads, channels = queries.shape[1], queries.shape[1] * queries.shape[3]
    if rows == channels:
        return queries.transpose(2, 3).flatten(1, 2).unsqueeze(-1)
    if rows < heads:  # a second branch, which does not attend
        return queries[:, :rows]
    return queries.repeat_interleave(rows // heads, 1)


def confused_pairs(queries: Tensor, weights: Tensor, tolerance: float = DEFAULT_TOLERANCE) -> Tensor:
    """The number of confused pairs, (...), of queries (..., M, d) with weights (..., M, N)."""
    each_pair_once = torch.ones(queries.shape[-2], queries.shape[-2], dtype=torch.bool, device=queries.device).triu(1)
    same = _relative_distance(weights.double(), weights.double()) <= tolerance
    return (same & (_relative_distance(queries.double(), queries.double()) > tolerance) & each_pair_once).sum((-1, -2))


def _relative_distance(a: Tensor, b: Tensor) -> Tensor:
    """Distances between all rows of a and b, over the larger of the two norms: (..., A, B)."""
    lengths = torch.maximum(a.norm(dim=-1).unsqueeze(-1), b.norm(dim=-1).unsqueeze(-2))
    return torch.cdist(a, b, compute_mode="use_mm_for_euclid_dist") / lengths.clamp(min=torch.finfo(a.dtype).tiny)


def merge_batches(parts: Sequence[Confusion]) -> Confusion:
    """The counts of several batches in one."""
    first = parts[0]
    counts = tuple(torch.cat(counts) for counts in zip(*(part.counts for part in parts), strict=True))
    return Confusion(first.layers, first.tolerances, counts, first.pairs)
