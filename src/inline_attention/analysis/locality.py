"""Locality: the share of a query's attention that falls on the tokens around it, layer by layer."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .attention import Attention
from .capture import Captured

SIZES = (3, 5, 7)


@dataclass(frozen=True)
class LayerLocality:
    """One layer: the share of the weights' magnitude in the window around the query, for each window size."""

    layer: str
    sizes: tuple[int, ...]
    attention: list[float]
    """Of the global weights, the mean over queries, heads and images."""
    together: list[float]
    """Of global and local weights together; equal to `attention` without local parts."""
    even: list[float]
    """The share with even weights over all keys that a query can attend to."""
    heads: list[list[float]]
    """`attention` by head, for each window size."""
    images: int


def locality(captured: Captured | Sequence[Attention], sizes: Sequence[int] = SIZES) -> list[LayerLocality]:
    """Of every layer whose keys are the same tokens as its queries."""
    return [_layer_locality(layer, tuple(sizes), chunks(layer)) for layer in captured if layer.whole]


def locality_at(
    captured: Captured | Sequence[Attention], point: tuple[float, float], sizes: Sequence[int] = SIZES
) -> list[LayerLocality]:
    """The same for one query, at a point of the image given as fractions of its height and width."""
    layers = [layer for layer in captured if layer.whole]
    return [_layer_locality(layer, tuple(sizes), (torch.tensor([layer.index(layer.place(point))]),)) for layer in layers]


def _layer_locality(layer: Attention, sizes: tuple[int, ...], queries: Sequence[torch.Tensor]) -> LayerLocality:
    heads = layer.rows(queries[0][:1]).mixed.shape[1]
    own, both, even = torch.zeros(heads, len(sizes)), torch.zeros(heads, len(sizes)), torch.zeros(len(sizes))
    total = sum(map(len, queries))
    for these in queries:
        windows = torch.stack([neighbourhood_mask(layer, these, size) for size in sizes])  # (sizes, queries, N)
        alone, together = (magnitudes(layer, these, local=local) for local in (False, True))
        own, both = own + _share(alone, windows), both + _share(together, windows)
        visible = visible_keys(layer, these)
        even = even + ((windows & visible).sum(-1) / visible.sum(-1)).sum(-1).cpu()
    own, both = own / total, both / total
    return LayerLocality(
        layer.name,
        sizes,
        own.mean(0).tolist(),
        both.mean(0).tolist(),
        (even / total).tolist(),
        own.T.tolist(),
        len(layer.project()[0]),
    )


def _share(weights: torch.Tensor, windows: torch.Tensor) -> torch.Tensor:
    """(heads, sizes): the share of weights (B, heads, queries, N) in the windows, summed over queries, mean over images."""
    shares = weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
    return torch.einsum("bhqn,sqn->hs", shares, windows.to(shares)).cpu() / len(weights)


def mean_locality(batches: Sequence[list[LayerLocality]]) -> list[LayerLocality]:
    """The mean over several batches, weighted by their numbers of images."""
    found = []
    for parts in zip(*batches, strict=True):
        images = torch.tensor([part.images for part in parts], dtype=torch.float64)
        mean = {
            name: torch.einsum(
                "p...,p->...", torch.tensor([getattr(part, name) for part in parts], dtype=torch.float64), images
            )
            / images.sum()
            for name in ("attention", "together", "even", "heads")
        }
        kept = {name: value.tolist() for name, value in mean.items()}
        found.append(LayerLocality(parts[0].layer, parts[0].sizes, **kept, images=int(images.sum())))
    return found


def neighbourhood_mask(layer: Attention, queries: Tensor, size: int) -> Tensor:
    """(queries, M): True where a token lies in the size x size window around a query, clipped at the image border.

    Prefix tokens have no window and lie in none.
    """
    if size < 1 or size % 2 == 0:
        raise ValueError(f"a window around a token has an odd side, got {size}")
    where = torch.arange(layer.tokens, device=queries.device) - layer.num_prefix_tokens
    row, column = where // layer.grid[1], where % layer.grid[1]
    reach = size // 2
    close = (row[queries, None] - row).abs().le(reach) & (column[queries, None] - column).abs().le(reach)
    return close & (where >= 0) & (where[queries] >= 0).unsqueeze(1)


def visible_keys(layer: Attention, queries: Tensor) -> Tensor:
    """(queries, N): True where a query can attend at all: everywhere, or within its window."""
    if not layer.windowed:
        return torch.ones(len(queries), layer.tokens, dtype=torch.bool, device=queries.device)
    return (layer.rows(queries).mixed != 0).any(0).any(0).to(queries.device)


def magnitudes(layer: Attention, queries: Tensor, *, local: bool = True) -> Tensor:
    """Absolute weights of chosen queries, (B, heads, queries, N).

    Local parts have weights per channel: with them it is the mean of |global + local| over the channels of a head.
    """
    rows = layer.rows(queries)
    if not local or rows.local is None:
        return rows.mixed.abs()
    heads = rows.mixed.shape[1]
    together = rows.mixed.unsqueeze(2) + rows.local.unflatten(1, (heads, -1))
    return together.abs().mean(2)


def chunks(layer: Attention, max_elements: int = 2**24) -> tuple[Tensor, ...]:
    """The queries of the grid in chunks whose weights, by channel, have at most `max_elements` numbers."""
    q, k, _ = layer.project()
    height = max(1, max_elements // (q.shape[0] * q.shape[1] * q.shape[3] * k.shape[2]))
    return torch.arange(layer.num_prefix_tokens, layer.tokens, device=q.device).split(height)
