"""Which tokens lie around a query."""

import torch
from torch import Tensor

from .capture import Attention


def near(layer: Attention, queries: Tensor, size: int) -> Tensor:
    """(queries, M), True where a token lies in the window of size x size around a query, clipped at the picture's edge.

    Prefix tokens have no window and lie in none.
    """
    if size < 1 or size % 2 == 0:
        raise ValueError(f"a window around a token has an odd side, got {size}")
    where = torch.arange(layer.tokens, device=queries.device) - layer.num_prefix_tokens
    row, column = where // layer.grid[1], where % layer.grid[1]
    reach = size // 2
    close = (row[queries, None] - row).abs().le(reach) & (column[queries, None] - column).abs().le(reach)
    return close & (where >= 0) & (where[queries] >= 0).unsqueeze(1)


def visible(layer: Attention, queries: Tensor) -> Tensor:
    """(queries, N), True where a query can look at all: everywhere, or within its window."""
    if not layer.windowed:
        return torch.ones(len(queries), layer.tokens, dtype=torch.bool, device=queries.device)
    return (layer.rows(queries).mixed != 0).any(0).any(0).to(queries.device)


def magnitudes(layer: Attention, queries: Tensor, *, local: bool = True) -> Tensor:
    """How much each key counts for chosen queries, whatever the sign: (B, heads, queries, N).

    With local parts, which weigh each channel by itself, the mean over a head's channels of |global + local|.
    """
    rows = layer.rows(queries)
    if not local or rows.local is None:
        return rows.mixed.abs()
    heads = rows.mixed.shape[1]
    together = rows.mixed.unsqueeze(2) + rows.local.unflatten(1, (heads, -1))
    return together.abs().mean(2)


def chunks(layer: Attention, largest: int = 2**24) -> tuple[Tensor, ...]:
    """Queries of the grid, in parts whose weights fit: `largest` numbers, by channel."""
    q, k, _ = layer.project()
    height = max(1, largest // (q.shape[0] * q.shape[1] * q.shape[3] * k.shape[2]))
    return torch.arange(layer.num_prefix_tokens, layer.tokens, device=q.device).split(height)
