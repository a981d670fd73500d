"""The size that a mixer's size-bound parameters are made for."""

from torch import nn

from ..ops.checks import Grid, is_whole
from .layout import reduced_grid
from .mixer_parts import SpatialReduction


def check_sides(grid_size: int | Grid, grid_dims: int, reduction: nn.Module | None = None) -> Grid:
    """The sides of the keys' grid; raise unless `grid_size` is one positive number, or one for each side."""
    sides = (grid_size,) * grid_dims if isinstance(grid_size, int) else tuple(grid_size)
    if len(sides) != grid_dims or not all(is_whole(side) and side > 0 for side in sides):
        raise ValueError(f"grid_size must be a positive number, or one for each of {grid_dims} sides, got {grid_size!r}")
    ratio = reduction.ratio if isinstance(reduction, SpatialReduction) else 1
    return reduced_grid(sides, ratio) or sides
