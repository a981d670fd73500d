"""Made bags, not slides, with a rule that needs two places far apart; and what InLine is compared with on them.

A bag is N tiles on a square grid with holes, noise in C channels. Two spots of different kinds, each of which adds a fixed
vector to its tiles, lie at least half a side apart. The label says which kind lies further left: neither spot alone tells it,
and neither does the set of tiles without their places.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

CHANNELS = 32
STRENGTH = 8.0
"""Length of a kind's vector; the noise of a tile has about 5.7."""
OCCUPIED = 0.75
"""Share of the cells of the grid that have a tile."""
SPOT_OF_SIDE = 4
"""A spot is a square of one cell for so many of the grid's side."""

Bag = tuple[Tensor, Tensor, int]
"""Maps (1, C, H, W), mask (1, H, W), label."""


def made_bag(tiles: int, seed: int) -> Bag:
    """The bag with this number, always the same."""
    generator = torch.Generator().manual_seed(seed)
    side = round((tiles / OCCUPIED) ** 0.5)
    spot = max(1, side // SPOT_OF_SIDE)
    label = int(torch.randint(2, (), generator=generator))
    left, right = _far_columns(side - spot + 1, side // 2, generator)
    rows = torch.randint(side - spot + 1, (2,), generator=generator).tolist()
    columns = (left, right) if label else (right, left)
    maps = torch.randn(CHANNELS, side, side, generator=generator)
    order = torch.rand(side, side, generator=generator)
    for row, column, kind in zip(rows, columns, _kinds(), strict=True):
        place = (slice(row, row + spot), slice(column, column + spot))
        order[place] = -1  # spots are never holes
        maps[(..., *place)] += STRENGTH * kind[:, None, None]
    mask = order <= order.flatten().kthvalue(min(tiles, side * side)).values
    return (maps * mask)[None], mask[None], label


def _kinds() -> Tensor:
    """(2, CHANNELS): orthogonal vectors of length one, none of them along an axis."""
    seeded = torch.randn(CHANNELS, 2, generator=torch.Generator().manual_seed(0))
    return torch.linalg.qr(seeded).Q.T


def _far_columns(places: int, apart: int, generator: torch.Generator) -> tuple[int, int]:
    """Two columns, the left one first, at least so many apart."""
    apart = min(apart, places - 1)
    left = int(torch.randint(places - apart, (), generator=generator))
    return left, int(torch.randint(left + apart, places, (), generator=generator))


def made_bags(tiles: int, first: int) -> Iterator[Bag]:
    """Bags without end, from this number on."""
    while True:
        yield made_bag(tiles, first)
        first += 1


class Pooled(nn.Module):
    """Tiles one by one through two layers, then one vector for the bag, then a classifier: what positions tell is lost.

    Args:
        weigh: from tiles (N, width) to their weights (N,); None for the mean.
    """

    def __init__(self, width: int = 96, classes: int = 2, weigh: Callable[[int], nn.Module] | None = None) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(CHANNELS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.weigh = None if weigh is None else weigh(width)
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes))

    def forward(self, maps: Tensor, mask: Tensor) -> Tensor:
        """(B, C, H, W), (B, H, W) -> (B, classes)."""
        bags = [self.embed(tiles[valid]) for tiles, valid in zip(maps.permute(0, 2, 3, 1), mask, strict=True)]
        pooled = [tiles.mean(0) if self.weigh is None else self.weigh(tiles) @ tiles for tiles in bags]
        logits: Tensor = self.head(torch.stack(pooled))
        return logits


class GatedAttention(nn.Module):
    """Weights of attention-based multiple-instance learning, with gates (Ilse et al., ICML 2018): (N, width) -> (N,)."""

    def __init__(self, width: int, hidden: int = 48) -> None:
        super().__init__()
        self.content, self.gate = nn.Linear(width, hidden), nn.Linear(width, hidden)
        self.score = nn.Linear(hidden, 1)

    def forward(self, tiles: Tensor) -> Tensor:
        """(N, width) -> (N,), which sum to one."""
        return self.score(self.content(tiles).tanh() * self.gate(tiles).sigmoid())[:, 0].softmax(0)
