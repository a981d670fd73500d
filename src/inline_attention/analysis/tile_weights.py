"""How a model weighs the tiles of a bag: the exact attention of its class token, or of all tiles together, in one layer.

Shapes: a bag of N tiles on a grid of H x W cells; heads h.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..models.finite import check_outputs
from .attention import Attention, MixerAttention
from .capture import NoAttentionError, capture, evaluating
from .maps import key_grid

CHUNK = 2**24
"""Weights that are computed at once."""


@dataclass(frozen=True)
class TileWeights:
    """The weights of N tiles. Linear attention may have negative ones."""

    layer: str
    kind: str
    """The name of the mixer."""
    whose: str
    """'class token', or 'mean of all tiles' where the output is pooled from them."""
    weights: Tensor
    """(h, N)."""
    rest: Tensor
    """(h,): the weight of the class token on itself; 0 without one. Together with the tiles' it is the sum of the row."""
    keys: int
    """Tiles, and the class token if there is one: the even share is 1 / keys."""

    @property
    def mean(self) -> Tensor:
        """(N,): the mean over heads."""
        return self.weights.mean(0)

    @property
    def relative(self) -> Tensor:
        """(N,): the mean over heads, as a multiple of the even share."""
        return self.mean * self.keys


@torch.no_grad()
def tile_weights(model: nn.Module, maps: Tensor, mask: Tensor, places: Tensor, layer: int | str = -1) -> TileWeights:
    """The weights of one layer over the tiles of one bag.

    A token of a later stage stands for several tiles, among which its weight is shared evenly. A model without a class token
    averages its output over all tiles, and so are their rows here; local parts, of the neighbouring tiles, are left out.

    Args:
        model: a backbone of this package.
        maps, mask: (1, C, H, W) and (1, H, W), as `to_maps` makes them.
        places: (N, 2), row and column of each tile.
        layer: its number, the last one by default, or its name.
    """
    with evaluating(model), capture(model) as captured:
        check_outputs(model(maps, mask), ["the bag"])
    if not captured.layers:
        raise NoAttentionError(f"{type(model).__name__} has no layer whose attention can be laid over the tiles")
    try:
        chosen = captured[layer]
    except (IndexError, KeyError) as error:
        last = len(captured) - 1
        raise ValueError(f"there is no layer {layer}: they are numbered from 0 to {last}, or -1 for the last") from error
    valid = chosen.options.get("mask") if isinstance(chosen, MixerAttention) else None
    of_class = chosen.num_prefix_tokens > 0
    row = chosen.rows([0]).mixed[0, :, 0] if of_class else _mean_row(chosen, valid)
    skip = chosen.num_prefix_tokens if chosen.whole else 0
    shape = key_grid(chosen, row.shape[1] - skip)
    cells = row[:, skip:].unflatten(1, shape)
    weights = _shared_evenly(cells, places, (mask.shape[1], mask.shape[2]))
    return TileWeights(chosen.name, chosen.kind, _WHOSE[of_class], weights, row[:, :skip].sum(1), len(places) + skip)


_WHOSE = {True: "class token", False: "mean of all tiles"}


def _mean_row(layer: Attention, valid: Tensor | None) -> Tensor:
    """(h, keys): the mean of the rows of all valid tokens, some rows at a time."""
    queries = torch.arange(layer.tokens) if valid is None else valid[0].nonzero().flatten().cpu()
    total: Tensor | None = None
    for some in queries.split(max(1, CHUNK // layer.tokens)):
        rows = layer.rows(some).mixed[0].sum(1)
        total = rows if total is None else total + rows
    assert total is not None
    return total / len(queries)


def _shared_evenly(cells: Tensor, places: Tensor, grid: tuple[int, int]) -> Tensor:
    """(h, H', W') -> (h, N): the weight of each tile's cell, divided by the number of tiles in it."""
    rows, columns = (-(-side // cell) for side, cell in zip(grid, cells.shape[1:], strict=True))
    cell = places[:, 0] // rows * cells.shape[2] + places[:, 1] // columns
    counts = torch.bincount(cell, minlength=cells.shape[1] * cells.shape[2])
    return cells.flatten(1)[:, cell] / counts[cell]
