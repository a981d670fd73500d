"""Confusion: different queries that look at the picture in the same way.

Two queries of a picture are confused by a head when their rows of weights are closer than a tolerance while they themselves are
not:

    |w_i - w_j| <= tolerance * max(|w_i|, |w_j|)    and    |q_i - q_j| > tolerance * max(|q_i|, |q_j|)

with Euclidean lengths. The paper's injectivity says when this cannot be: rows of InLine, and of softmax, differ as soon as
queries do (its propositions need keys that span the space); those of divided linear attention are the same all along a ray.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .capture import Attention, Captured

TOLERANCES = (0.001, 0.003, 0.01, 0.03, 0.1)
STATED = 0.01
"""The tolerance that one figure is told for."""
LARGEST = 2**24
"""Weights that are held at once."""


@dataclass(frozen=True)
class Confusion:
    """Confused pairs of queries, by layer, picture and head."""

    layers: tuple[str, ...]
    tolerances: tuple[float, ...]
    counts: tuple[Tensor, ...]
    """For each layer (pictures, heads, tolerances)."""
    pairs: tuple[int, ...]
    """For each layer the pairs of queries that a picture has, in each head."""

    def share(self, tolerance: float = STATED) -> float:
        """Of all pairs, in all layers and heads."""
        counts = self._at(tolerance)
        possible = sum(pairs * count.numel() for pairs, count in zip(self.pairs, counts, strict=True))
        return float(sum(float(count.sum()) for count in counts)) / possible

    def by_layer(self, tolerance: float = STATED) -> list[float]:
        """The share of each layer."""
        return [
            float(count.sum()) / (pairs * count.numel()) for pairs, count in zip(self.pairs, self._at(tolerance), strict=True)
        ]

    def by_head(self, tolerance: float = STATED) -> list[list[float]]:
        """The share of each head of each layer."""
        found = zip(self.pairs, self._at(tolerance), strict=True)
        return [(count.double().mean(0) / pairs).tolist() for pairs, count in found]

    def by_picture(self, tolerance: float = STATED) -> list[int]:
        """How many confused pairs each picture has, in all layers and heads."""
        totals: list[int] = torch.stack([count.sum(1) for count in self._at(tolerance)]).sum(0).tolist()
        return totals

    def _at(self, tolerance: float) -> list[Tensor]:
        if tolerance not in self.tolerances:
            raise ValueError(f"counted for tolerances {self.tolerances}, not for {tolerance}")
        return [count[..., self.tolerances.index(tolerance)] for count in self.counts]


def confusion(seen: Captured | Sequence[Attention], tolerances: Sequence[float] = TOLERANCES) -> Confusion:
    """Count in every layer, over all pairs of its queries, prefix tokens included; local parts do not count."""
    counts, pairs = [], []
    layers = [layer for layer in seen if layer.tokens > 1]
    if not layers:
        raise ValueError("every layer has one token only: there are no pairs of queries")
    for layer in layers:
        counts.append(count_confused(layer, tolerances))
        pairs.append(layer.tokens * (layer.tokens - 1) // 2)
    return Confusion(tuple(layer.name for layer in layers), tuple(tolerances), tuple(counts), tuple(pairs))


def count_confused(layer: Attention, tolerances: Sequence[float] = TOLERANCES) -> Tensor:
    """(pictures, heads, tolerances): exact, in chunks of queries; distances are taken in float64."""
    queries = layer.project()[0].cpu().double()  # some accelerators have no float64
    first = layer.rows([0]).mixed
    if first.shape[1] != queries.shape[1]:  # a head for each channel
        queries = queries.transpose(2, 3).flatten(1, 2).unsqueeze(-1)
    height = max(1, LARGEST // first.numel())
    parts = torch.arange(layer.tokens).split(height)
    total = torch.zeros(*queries.shape[:2], len(tolerances), dtype=torch.long)
    for number, these in enumerate(parts):
        rows = layer.rows(these).mixed.cpu().double()
        for those in parts[number:]:
            others = rows if those is these else layer.rows(those).mixed.cpu().double()
            weights_apart = _apart(rows, others)
            queries_apart = _apart(queries[:, :, these], queries[:, :, those])
            once = these[:, None] < those[None, :]
            for place, tolerance in enumerate(tolerances):
                confused = (weights_apart <= tolerance) & (queries_apart > tolerance) & once
                total[..., place] += confused.sum((-1, -2))
    return total


def confused_pairs(queries: Tensor, weights: Tensor, tolerance: float = STATED) -> Tensor:
    """The same for queries (..., M, d) and their rows (..., M, N) as they are: how many pairs, (...)."""
    once = torch.ones(queries.shape[-2], queries.shape[-2], dtype=torch.bool, device=queries.device).triu(1)
    same = _apart(weights.double(), weights.double()) <= tolerance
    return (same & (_apart(queries.double(), queries.double()) > tolerance) & once).sum((-1, -2))


def _apart(a: Tensor, b: Tensor) -> Tensor:
    """Distances of all rows of a from all of b, over the longer of the two: (..., A, B)."""
    lengths = torch.maximum(a.norm(dim=-1).unsqueeze(-1), b.norm(dim=-1).unsqueeze(-2))
    return torch.cdist(a, b, compute_mode="use_mm_for_euclid_dist") / lengths.clamp(min=torch.finfo(a.dtype).tiny)


def pictures_of(parts: Sequence[Confusion]) -> Confusion:
    """Counts of several batches as those of one."""
    first = parts[0]
    counts = tuple(torch.cat(counts) for counts in zip(*(part.counts for part in parts), strict=True))
    return Confusion(first.layers, first.tolerances, counts, first.pairs)
