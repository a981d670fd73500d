"""How the tokens of one call lie: what a formula may need besides queries, keys, values and the mask."""

from typing import NamedTuple

import torch
from torch import Tensor

from ..ops.checks import Grid


class Layout(NamedTuple):
    """The argument `layout` of `attend` and `weights`, for mixers with `reads_layout`.

    A window is an image of its own: its grid is the window, and `heads` are those that attend in it.
    """

    grid: Grid | None
    """The grid of the queries; None where keys come from a context and no grid was given."""
    key_grid: Grid | None
    """The grid of the keys: smaller with spatial reduction, None for a context."""
    num_prefix_tokens: int = 0
    mask: Tensor | None = None
    """(B, M) over the queries, True where valid; None if all are."""
    heads: slice = slice(None)
    """Which of the mixer's heads these are."""
    all_queries: Tensor | None = None
    """(B, heads, M, d): the queries of all tokens, where a formula is asked for those of some."""
    chosen: Tensor | None = None
    """Their indices on the token axis; None for all."""

    def queries(self, q: Tensor) -> Tensor:
        """The queries of all tokens, whichever of them q holds."""
        return q if self.all_queries is None else self.all_queries.to(q.dtype)

    def of_chosen(self, tokens: Tensor) -> Tensor:
        """From (..., M, d) the rows that were chosen."""
        return tokens if self.chosen is None else tokens[..., self.chosen, :]

    def valid(self, like: Tensor) -> Tensor:
        """(B, M) of ones and zeros: which tokens are valid queries."""
        if self.mask is not None:
            return self.mask.to(like.dtype)
        return torch.ones(like.shape[0], self.queries(like).shape[2], dtype=like.dtype, device=like.device)


def reduced_grid(grid: Grid | None, ratio: int) -> Grid | None:
    """The grid of a map this many times smaller, sides rounded up."""
    return grid if grid is None or ratio == 1 else tuple(-(-side // ratio) for side in grid)
