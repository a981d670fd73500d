"""Locality: how much of a query's attention stays near it, layer by layer."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .capture import Attention, Captured
from .neighbours import chunks, magnitudes, near, visible

SIZES = (3, 5, 7)


@dataclass(frozen=True)
class Near:
    """One layer: the share of the weights' magnitude in the window around the query, for each size of window."""

    layer: str
    sizes: tuple[int, ...]
    attention: list[float]
    """Of the attention's own weights, in the mean over queries, heads and pictures."""
    together: list[float]
    """With the local parts; the same where there are none."""
    even: list[float]
    """What even weights would give, over the tokens that a query can look at."""
    heads: list[list[float]]
    """`attention` by head, for each size."""
    pictures: int


def locality(seen: Captured | Sequence[Attention], sizes: Sequence[int] = SIZES) -> list[Near]:
    """Of every layer whose keys are the picture's own tokens."""
    return [_near(layer, tuple(sizes), chunks(layer)) for layer in seen if layer.whole]


def locality_at(seen: Captured | Sequence[Attention], point: tuple[float, float], sizes: Sequence[int] = SIZES) -> list[Near]:
    """The same of one query, at a point of the picture given as shares of its height and width."""
    layers = [layer for layer in seen if layer.whole]
    return [_near(layer, tuple(sizes), (torch.tensor([layer.index(layer.place(point))]),)) for layer in layers]


def _near(layer: Attention, sizes: tuple[int, ...], queries: Sequence[torch.Tensor]) -> Near:
    heads = layer.rows(queries[0][:1]).mixed.shape[1]
    own, both, even = torch.zeros(heads, len(sizes)), torch.zeros(heads, len(sizes)), torch.zeros(len(sizes))
    total = sum(map(len, queries))
    for these in queries:
        windows = torch.stack([near(layer, these, size) for size in sizes])  # (sizes, queries, N)
        alone, together = (magnitudes(layer, these, local=local) for local in (False, True))
        own, both = own + _share(alone, windows), both + _share(together, windows)
        seen = visible(layer, these)
        even = even + ((windows & seen).sum(-1) / seen.sum(-1)).sum(-1).cpu()
    own, both = own / total, both / total
    return Near(
        layer.name,
        sizes,
        own.mean(0).tolist(),
        both.mean(0).tolist(),
        (even / total).tolist(),
        own.T.tolist(),
        len(layer.project()[0]),
    )


def _share(weights: torch.Tensor, windows: torch.Tensor) -> torch.Tensor:
    """(heads, sizes): weights (B, heads, queries, N) within the windows, summed over queries, mean over pictures."""
    shares = weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
    return torch.einsum("bhqn,sqn->hs", shares, windows.to(shares)).cpu() / len(weights)


def mean_over(batches: Sequence[list[Near]]) -> list[Near]:
    """The mean of several batches, each counted by its pictures."""
    found = []
    for parts in zip(*batches, strict=True):
        pictures = torch.tensor([part.pictures for part in parts], dtype=torch.float64)
        mean = {
            name: torch.einsum(
                "p...,p->...", torch.tensor([getattr(part, name) for part in parts], dtype=torch.float64), pictures
            )
            / pictures.sum()
            for name in ("attention", "together", "even", "heads")
        }
        kept = {name: value.tolist() for name, value in mean.items()}
        found.append(Near(parts[0].layer, parts[0].sizes, **kept, pictures=int(pictures.sum())))
    return found
