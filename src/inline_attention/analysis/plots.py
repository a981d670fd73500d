"""Pictures of what the other files of this room compute."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from .maps import QueryMap


@dataclass(frozen=True)
class Looked:
    """One picture, as (H, W, 3) in 0..1, and the maps of one query on it."""

    name: str
    shown: Tensor
    maps: Sequence[QueryMap]


def draw_maps(pictures: Sequence[Looked], path: Path) -> Path:
    """A row for each picture: the query, then for each block its global weights, and these with the local part.

    Global weights are shown against an even share, 1 / N: red is more, blue less. With the local part: red counts for, blue
    against. Each map has a scale of its own, written below it.
    """
    from matplotlib.figure import Figure

    rows, columns = len(pictures), 1 + 2 * len(pictures[0].maps)
    height, width = pictures[0].shown.shape[:2]
    figure = Figure(figsize=(1.75 * columns, (1.6 * height / width + 0.35) * rows + 1.0), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for row, picture in enumerate(pictures):
        first = axes[row][0]
        first.imshow(picture.shown.numpy(), extent=(0, width, height, 0), interpolation="nearest")
        (y, x), (down, across) = picture.maps[0].query, picture.maps[0].mixed.shape[1:]
        first.plot(
            (x + 0.5) * width / across,
            (y + 0.5) * height / down,
            "o",
            markersize=9,
            color="#e4572e",
            fillstyle="none",
            markeredgewidth=2,
        )
        first.set_ylabel(picture.name, fontsize=10)
        for column, found in enumerate(picture.maps):
            left, right = axes[row][1 + 2 * column], axes[row][2 + 2 * column]
            tokens = found.mixed[0].numel()
            _draw(left, found.mixed[0] * tokens - 1, found.query, "{:.2f} of an even share")
            _draw(right, found.mixed[0] + found.local[0], found.query, "{:.2f} at most")
            if row == 0:
                block, size = found.block.removesuffix(".mixer"), "{} x {} tokens".format(*found.mixed.shape[1:])
                left.set_title(f"{block}, {size}\nglobal, to an even share", fontsize=9, loc="left")
                right.set_title("\nwith the local part", fontsize=9, loc="left")
    for axis in axes.flat:
        axis.set_xticks([])
        axis.set_yticks([])
    figure.suptitle("What the marked point looks at: red more, blue less", fontsize=11)
    figure.savefig(path, dpi=110)
    return path


def _draw(axis: Any, values: Tensor, query: tuple[int, int], scale: str) -> None:
    largest = float(values.abs().max()) or 1.0
    extent = (0, values.shape[1], values.shape[0], 0)
    axis.imshow(values.numpy(), cmap="RdBu_r", vmin=-largest, vmax=largest, extent=extent, interpolation="nearest")
    axis.plot(query[1] + 0.5, query[0] + 0.5, "o", markersize=6, color="black", fillstyle="none")
    axis.set_xlabel("±" + scale.format(largest), fontsize=8)
