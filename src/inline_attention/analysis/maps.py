"""Attention maps: the weights of one query over the image, in every layer. Exact, also for linear attention."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .attention import Attention
from .capture import capture_pass
from .locality import magnitudes


@dataclass(frozen=True)
class QueryMap:
    """The weights of one query of one layer, laid out over the image."""

    layer: str
    kind: str
    query: tuple[int, int]
    """(row, column)."""
    grid: tuple[int, int]
    """(H, W) of the queries and of the local weights."""
    mixed: Tensor
    """(B, heads, h, w): the global weights over the keys, whose grid may be smaller."""
    local: Tensor | None
    """(B, heads, H, W): the local weights, averaged over the channels of each head."""
    prefix: Tensor
    """(B, heads, prefix tokens): the weights of class tokens and registers."""
    tokens: tuple[int, int] | None = None
    """(H, W) of the layer's tokens, padding too, where the map has fewer places: each has the mean of its tokens, times tokens
    per place."""
    span: tuple[float, float] = (1.0, 1.0)
    """Height and width of the map as shares of the image's: more than 1 where the last places reach beyond the image."""

    @property
    def size(self) -> str:
        """How many tokens the layer has, in words."""
        return "{} x {}".format(*(self.tokens or self.grid))

    @property
    def together(self) -> Tensor:
        """(B, heads, h, w): global plus local weights; global only where the keys have a smaller grid."""
        return self.mixed if self.local is None or self.local.shape != self.mixed.shape else self.mixed + self.local


def centre_of(query: tuple[int, int], grid: tuple[int, int], span: tuple[float, float]) -> tuple[float, float]:
    """The middle, (y, x) as shares of the image, of what a place of a map covers of it; see `QueryMap`."""
    y, x = (
        (at / side * share + min((at + 1) / side * share, 1.0)) / 2 for at, side, share in zip(query, grid, span, strict=True)
    )
    return y, x


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
    """The maps of the query at a point of the image, in every layer.

    Args:
        pixels: (B, C, H, W), the model's input.
        point: (y, x) of the query as fractions of the image's height and width.
    """
    return [query_map(layer, layer.place(point)) for layer in capture_pass(model, pixels)]


def key_grid(layer: Attention, keys: int) -> tuple[int, int]:
    """The grid of so many keys: that of the queries, or a smaller one of about the same aspect ratio."""
    height, width = layer.grid
    rows = height if keys == height * width else max(1, round((keys * height / width) ** 0.5))
    while keys % rows:
        rows -= 1
    return rows, keys // rows


def rollout(layers: Sequence[Attention], place: tuple[int, int]) -> Tensor:
    """Attention rollout (Abnar and Zuidema, 2020): the share of each token, (B, H, W), in one token of the last layer.

    A layer's output counts as half the token itself and half what it attends to: absolute weights with local parts, averaged
    over heads. One row is propagated backwards, so nothing quadratic is stored. The layers must share one grid.
    """
    first = layers[0]
    other = [layer.name for layer in layers if layer.grid != first.grid or not layer.whole]
    if other:
        raise ValueError(f"rollout needs layers of one grid; {other[0]} does not have that of {first.name}")
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
    """The layers with the most frequent grid: all layers of a plain vision transformer, one stage of a pyramid."""
    groups: dict[tuple[int, int], list[Attention]] = {}
    for layer in layers:
        if layer.whole:
            groups.setdefault(layer.grid, []).append(layer)
    if not groups:
        raise ValueError("rollout is not possible: every layer has reduced keys")
    return max(groups.values(), key=len)
