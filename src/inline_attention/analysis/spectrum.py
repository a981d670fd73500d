"""Rank and entropy: how rich the weights of a layer are, and how even."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import torch

from .capture import Attention, Captured


@dataclass(frozen=True)
class Spectrum:
    """One layer, in the mean over heads and pictures."""

    layer: str
    tokens: int
    rank: float
    """Singular values above a thousandth of the largest."""
    effective_rank: float
    """exp of the entropy of the singular values, taken as shares (Roy and Vetterli, 2007)."""
    entropy: float
    """Of the rows' magnitudes, over that of even weights: 1 looks everywhere alike, 0 at one token."""
    negative: float
    """The share of weights below zero."""
    pictures: int


def spectrum(seen: Captured | Sequence[Attention]) -> list[Spectrum]:
    """Of every layer of more than one key; holds the weights of one layer at a time, N x N for each head and picture.

    Local parts do not count.
    """
    return [_spectrum(layer) for layer in seen if layer.project()[1].shape[2] > 1]


def _spectrum(layer: Attention) -> Spectrum:
    weights = layer.weights().cpu().double()  # some accelerators have no float64
    values = torch.linalg.svdvals(weights)
    shares = values / values.sum(-1, keepdim=True)
    rows = weights.abs() / weights.abs().sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
    return Spectrum(
        layer.name,
        layer.tokens,
        float((values > 1e-3 * values[..., :1]).sum(-1).double().mean()),
        float(torch.special.entr(shares).sum(-1).exp().mean()),
        float(torch.special.entr(rows).sum(-1).mean()) / log(weights.shape[-1]),
        float((weights < 0).double().mean()),
        len(weights),
    )


def mean_spectrum(batches: Sequence[list[Spectrum]]) -> list[Spectrum]:
    """The mean of several batches, each counted by its pictures."""
    found = []
    for parts in zip(*batches, strict=True):
        pictures = sum(part.pictures for part in parts)
        mean = {
            name: sum(getattr(part, name) * part.pictures for part in parts) / pictures
            for name in ("rank", "effective_rank", "entropy", "negative")
        }
        found.append(Spectrum(parts[0].layer, parts[0].tokens, **mean, pictures=pictures))
    return found
