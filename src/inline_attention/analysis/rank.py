"""Rank and entropy of the attention weights of a layer."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import torch

from .attention import Attention
from .capture import Captured


@dataclass(frozen=True)
class RankStats:
    """One layer: means over heads and images."""

    layer: str
    tokens: int
    rank: float
    """Number of singular values above a thousandth of the largest."""
    effective_rank: float
    """exp of the entropy of the normalised singular values (Roy and Vetterli, 2007)."""
    entropy: float
    """Entropy of the absolute weights of a row over that of even weights: 1 for even weights, 0 for a single token."""
    negative: float
    """The share of weights below zero."""
    images: int


def rank_stats(captured: Captured | Sequence[Attention]) -> list[RankStats]:
    """Of every layer with more than one key; computes the dense weights of one layer at a time, N x N per head and image.

    Local parts are left out.
    """
    return [_rank_stats(layer) for layer in captured if layer.project()[1].shape[2] > 1]


def _rank_stats(layer: Attention) -> RankStats:
    weights = layer.weights().cpu().double()  # some accelerators have no float64
    values = torch.linalg.svdvals(weights)
    shares = values / values.sum(-1, keepdim=True)
    rows = weights.abs() / weights.abs().sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
    return RankStats(
        layer.name,
        layer.tokens,
        float((values > 1e-3 * values[..., :1]).sum(-1).double().mean()),
        float(torch.special.entr(shares).sum(-1).exp().mean()),
        float(torch.special.entr(rows).sum(-1).mean()) / log(weights.shape[-1]),
        float((weights < 0).double().mean()),
        len(weights),
    )


def mean_rank_stats(batches: Sequence[list[RankStats]]) -> list[RankStats]:
    """The mean over several batches, weighted by their numbers of images."""
    found = []
    for parts in zip(*batches, strict=True):
        images = sum(part.images for part in parts)
        mean = {
            name: sum(getattr(part, name) * part.images for part in parts) / images
            for name in ("rank", "effective_rank", "entropy", "negative")
        }
        found.append(RankStats(parts[0].layer, parts[0].tokens, **mean, images=images))
    return found
