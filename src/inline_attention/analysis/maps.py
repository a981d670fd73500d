"""Attention maps: what one query of a picture weighs, in every layer. Exact, also for linear attention."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .capture import Attention, seen_by
from .neighbours import magnitudes


@dataclass(frozen=True)
class QueryMap:
    """Weights of one query of one layer, laid out over the picture."""

    layer: str
    kind: str
    query: tuple[int, int]
    """(row, column)."""
    grid: tuple[int, int]
    """Of the queries, and of the local weights."""
    mixed: Tensor
    """(B, heads, h, w): the attention's own weights, over the keys, whose map may be smaller."""
    local: Tensor | None
    """(B, heads, H, W): what the local parts add, the mean over each head's channels."""
    prefix: Tensor
    """(B, heads, prefix tokens): what class tokens and registers weigh."""

    @property
    def together(self) -> Tensor:
        """(B, heads, h, w): both parts; the attention's own where the local one lies on another map."""
        return self.mixed if self.local is None or self.local.shape != self.mixed.shape else self.mixed + self.local


def query_map(layer: Attention, place: tuple[int, int]) -> QueryMap:
    """The map of the query at (row, column) of the layer's grid."""
    if not all(0 <= at < side for at, side in zip(place, layer.grid, strict=True)):
        raise ValueError(f"{place} is not on the grid {layer.grid} of {layer.name}")
    rows = layer.rows([layer.index(place)])
    skip = layer.num_prefix_tokens if layer.whole else 0
    mixed = rows.mixed[:, :, 0]
    heads = mixed.shape[1]
    local = None
    if rows.local is not None:
        local = rows.local[:, :, 0, layer.num_prefix_tokens :].unflatten(1, (heads, -1)).mean(2).unflatten(2, layer.grid)
    shape = key_grid(layer, mixed.shape[2] - skip)
    return QueryMap(layer.name, layer.kind, place, layer.grid, mixed[..., skip:].unflatten(2, shape), local, mixed[..., :skip])


def query_maps(model: nn.Module, pixels: Tensor, point: tuple[float, float]) -> list[QueryMap]:
    """The maps of the query at a point of the picture in every layer.

    Args:
        pixels: (B, C, H, W), as the model takes them.
        point: (y, x) of the query as shares of the picture's height and width.
    """
    return [query_map(layer, layer.place(point)) for layer in seen_by(model, pixels)]


def key_grid(layer: Attention, keys: int) -> tuple[int, int]:
    """The map that so many keys lie on: the queries' own, or a smaller one of the same shape."""
    height, width = layer.grid
    rows = height if keys == height * width else max(1, round((keys * height / width) ** 0.5))
    while keys % rows:
        rows -= 1
    return rows, keys // rows


def rollout(layers: Sequence[Attention], place: tuple[int, int]) -> Tensor:
    """What a token of the last layer is made of, (B, H, W), when attention is followed back through all of these layers.

    Each layer is half what it attends to, by magnitude, in the mean over heads, local parts included, and half the token itself
    (Abnar and Zuidema, 2020). Nothing quadratic is held: one row goes backwards. The layers must share one grid.
    """
    first = layers[0]
    apart = [layer.name for layer in layers if layer.grid != first.grid or not layer.whole]
    if apart:
        raise ValueError(f"attention is followed through layers of one grid; {apart[0]} does not have that of {first.name}")
    start = torch.zeros(len(first.project()[0]), first.tokens, device=first.project()[0].device)
    start[:, layers[-1].index(place)] = 1
    share = start
    for layer in reversed(layers):
        gathered = torch.zeros_like(share)
        heads, channels = layer.project()[0].shape[1::2]
        for these in torch.arange(layer.tokens).split(max(1, 2**24 // (len(share) * heads * channels * layer.tokens))):
            rows = magnitudes(layer, these).mean(1)
            rows = rows / rows.sum(-1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)
            gathered += (share[:, None, these] @ rows)[:, 0]
        share = (share + gathered) / 2
    return share[:, first.num_prefix_tokens :].unflatten(1, first.grid)


def one_grid(layers: Sequence[Attention]) -> list[Attention]:
    """The layers of the grid that most layers have: all of them in a plain vision transformer, a stage of a pyramid."""
    groups: dict[tuple[int, int], list[Attention]] = {}
    for layer in layers:
        if layer.whole:
            groups.setdefault(layer.grid, []).append(layer)
    if not groups:
        raise ValueError("attention cannot be followed: the keys of every layer lie on a smaller map")
    return max(groups.values(), key=len)
