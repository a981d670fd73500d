"""How much disk space a training pass takes, before it begins."""

from ..models.backbone import Backbone
from .stages import blocks_of, grids_of, stages_of


def disk_needed(model: Backbone, size: tuple[int, int], keep: int | None = None) -> int:
    """Bytes of the files of `stream_train` for an image, at most.

    Args:
        model: what the image goes through.
        size: (height, width) of the image.
        keep: as for `stream_train`.
    """
    bytes_each = next(model.parameters()).element_size()
    maps: list[int] = []
    for stage, grid in zip(stages_of(model), grids_of(model, size), strict=True):
        blocks = blocks_of(stage)
        maps += [grid[0] * grid[1] * blocks[0].mixer.dim * bytes_each] * (len(blocks) + 1)
    every = sum(maps) + maps[0]  # and a gradient
    return every if keep is None else min(every, sum(sorted(maps, reverse=True)[: keep + 3]))
