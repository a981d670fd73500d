"""Bags: the features of a slide's tiles, and where each tile lies on the slide's grid.

Tiles that were cut contour by contour, as CLAM cuts them, share a step but not an origin: each goes to the nearest free cell.
Shapes: N tiles, C channels, a grid of H x W cells.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..lite.decode import BadImageError
from .config import OffGrid

MOST_CELLS = 2**22
"""Of a grid: 2,048 x 2,048."""
CLEAR_SHARE = 0.9
"""Share of neighbouring tiles whose distance must be a multiple of the commonest distance, for this to be the step."""


@dataclass(frozen=True)
class TileFeatures:
    """What a file of features holds."""

    name: str
    """Of the file, for messages."""
    features: Tensor
    """(N, C), float32."""
    coords: NDArray[np.int64]
    """(N, 2): x and y of the upper left corner of each tile, in pixels of the slide's finest level."""
    tile: int | None = None
    """Side of a tile in these pixels, where the file says."""
    step: float | None = None
    """Pixels from one tile to the next, where the file says: less than `tile` where tiles overlap."""


@dataclass(frozen=True)
class Bag:
    """The tiles of a slide on their grid."""

    features: Tensor
    """(N, C)."""
    places: Tensor
    """(N, 2), int64: row and column of each tile's cell, from 0 on."""
    coords: Tensor
    """(N, 2), int64: x and y of each tile's corner in pixels of the slide."""
    tile: int
    """Side of a tile in these pixels."""
    moved: int = 0
    """Tiles that lay between cells."""

    @property
    def grid(self) -> tuple[int, int]:
        """(H, W)."""
        rows, columns = (self.places.amax(0) + 1).tolist()
        return rows, columns


@dataclass(frozen=True)
class TileOptions:
    """How tiles are put on their grid."""

    channels: int = 0
    """Of the features, if the model takes this number alone; 0: any."""
    step: int = 0
    """Pixels from one tile to the next; 0: as the file says, or as the coordinates show."""
    off_grid: OffGrid = "nearest"
    """What to do with tiles between the cells."""


def make_bag(found: TileFeatures, options: TileOptions | None = None) -> Bag:
    """Put tiles on their grid. What is wrong with them is a BadImageError of one line."""
    coords, name, options = found.coords, found.name, options or TileOptions()
    if options.channels not in (0, found.features.shape[1]):
        raise BadImageError(
            f"{name} has features of {found.features.shape[1]} channels, and the model takes {options.channels}"
        )
    step = options.step or found.step or find_step(coords) or found.tile or 1
    order = np.lexsort((coords[:, 0], coords[:, 1]))
    again = (np.diff(coords[order], axis=0) == 0).all(1)
    if again.any():
        first, second = sorted(order[again.argmax() : again.argmax() + 2].tolist())
        x, y = coords[first].tolist()
        raise BadImageError(f"{name}: the tiles {first} and {second} have the same coordinates, x {x} and y {y}")
    exact = (coords - coords.min(0)) / step
    height, width = (int(side) + 1 for side in np.rint(exact.max(0))[::-1])
    if height * width > MOST_CELLS:
        raise BadImageError(
            f"{name}: a step of {step:g} pixels puts its {len(coords):,} tiles on a grid of {height:,} x {width:,} cells, more "
            f"than {MOST_CELLS:,}: --task.tile-step says how far tiles are apart"
        )
    nearest = np.rint(exact).astype(np.int64)
    off = (np.abs(exact - nearest) * step > 1).any(1)  # coordinates are rounded to pixels
    if off.any() and options.off_grid == "refuse":
        x, y = coords[off.argmax()].tolist()
        raise BadImageError(
            f"{name}: {int(off.sum()):,} of {len(coords):,} tiles are off the grid with a step of {step:g} pixels, the first "
            f"at x {x} and y {y}: --task.off-grid nearest puts them into the nearest cells"
        )
    places = nearest if not off.any() else _free_cells(exact, nearest)
    places = places - places.min(0)
    rows_columns = torch.from_numpy(np.ascontiguousarray(places[:, ::-1]))
    return Bag(found.features, rows_columns, torch.from_numpy(coords), found.tile or round(step), int(off.sum()))


def find_step(coords: NDArray[np.int64]) -> int:
    """The distance between neighbouring tiles of a row or a column; 0 if no two tiles share a row or a column.

    It is the commonest one, if the others are multiples of it, and else, as of few tiles far between, their common divisor.
    """
    gaps = np.concatenate([_gaps(coords, axis) for axis in (0, 1)])
    if not len(gaps):
        return 0
    values, counts = np.unique(gaps, return_counts=True)
    commonest = int(values[counts.argmax()])
    if (gaps % commonest == 0).mean() >= CLEAR_SHARE:
        return commonest
    return int(np.gcd.reduce(gaps))


def _gaps(coords: NDArray[np.int64], axis: int) -> NDArray[np.int64]:
    """Distances along an axis between neighbours that share the other coordinate."""
    order = np.lexsort((coords[:, axis], coords[:, 1 - axis]))
    steps = np.diff(coords[order], axis=0)
    gaps: NDArray[np.int64] = steps[(steps[:, 1 - axis] == 0) & (steps[:, axis] > 0), axis]
    return gaps


def _free_cells(exact: NDArray[np.float64], nearest: NDArray[np.int64]) -> NDArray[np.int64]:
    """A cell for each tile: the nearest one, or the nearest free one if a tile that lies closer has it already."""
    distance = np.abs(exact - nearest).sum(1)
    taken: set[tuple[int, int]] = set()
    late = []
    for index in np.lexsort((nearest[:, 0], nearest[:, 1], distance)):
        cell = (int(nearest[index, 0]), int(nearest[index, 1]))
        if cell in taken:
            late.append(index)
        taken.add(cell)
    places = nearest.copy()
    for index in late:
        cell = _nearest_free(exact[index], (int(nearest[index, 0]), int(nearest[index, 1])), taken)
        places[index] = cell
        taken.add(cell)
    return places


def _nearest_free(point: NDArray[np.float64], cell: tuple[int, int], taken: set[tuple[int, int]]) -> tuple[int, int]:
    radius = 1
    while True:
        around = range(-radius, radius + 1)
        cells = [(cell[0] + i, cell[1] + j) for i in around for j in around if max(abs(i), abs(j)) == radius]
        if free := [other for other in cells if other not in taken]:
            return min(free, key=lambda other: (abs(other[0] - point[0]) + abs(other[1] - point[1]), other))
        radius += 1


def to_maps(bags: Sequence[dict[str, Tensor]], smallest: int = 1) -> tuple[Tensor, Tensor]:
    """Bags as images of features (B, C, H, W), zero where there is no tile, with the mask of the tiles (B, H, W).

    Args:
        bags: `features` (N, C) and `places` (N, 2) of each.
        smallest: cells a side of the grid at least.
    """
    places, features = [bag["places"] for bag in bags], [bag["features"] for bag in bags]
    height, width = (max(smallest, *(int(one[:, axis].amax()) + 1 for one in places)) for axis in (0, 1))
    maps = features[0].new_zeros(len(bags), height, width, features[0].shape[1])
    mask = torch.zeros(len(bags), height, width, dtype=torch.bool, device=maps.device)
    for number, (place, values) in enumerate(zip(places, features, strict=True)):
        maps[number, place[:, 0], place[:, 1]] = values
        mask[number, place[:, 0], place[:, 1]] = True
    return maps.permute(0, 3, 1, 2), mask


@dataclass(frozen=True)
class BagTransform:
    """A bag as the model's input: features of each tile normalised, and in training turned, flipped and thinned out."""

    options: TileOptions = TileOptions()
    normalize: bool = True
    """Each tile's features get a mean of 0 and a variance of 1, whatever encoder they are from."""
    hflip: float = 0.0
    vflip: float = 0.0
    turn: float = 0.0
    """Probability of turning the slide by one to three quarters."""
    drop: float = 0.0
    """Share of the tiles that are left out."""

    def __call__(self, found: TileFeatures, target: Any) -> tuple[dict[str, Tensor], Tensor]:
        """({"features" (N, C), "places" (N, 2)}, target)."""
        return self.inputs(make_bag(found, self.options)), torch.as_tensor(target)

    def inputs(self, bag: Bag) -> dict[str, Tensor]:
        """The same from a bag, without a target."""
        features, places = bag.features, bag.places
        if self.drop and len(features) > 1:
            kept = torch.rand(len(features)) >= self.drop
            kept[torch.randint(len(features), ())] = True
            features, places = features[kept], places[kept]
        for axis, share in ((1, self.hflip), (0, self.vflip)):
            if share and torch.rand(()) < share:
                places = places.clone()
                places[:, axis] = places[:, axis].amax() - places[:, axis]
        if self.turn and torch.rand(()) < self.turn:
            places = quarter_turns(places, int(torch.randint(1, 4, ())))
        if self.normalize:
            features = torch.nn.functional.layer_norm(features, features.shape[1:])
        return {"features": features, "places": places}


def quarter_turns(places: Tensor, number: int) -> Tensor:
    """(N, 2) -> (N, 2): the grid turned counterclockwise, as `torch.rot90` turns a map."""
    for _ in range(number % 4):
        rows, columns = places.unbind(1)
        places = torch.stack([columns.amax() - columns, rows], 1)
    return places
