"""Figures of attention maps: the weights of one query over the image, by model, layer, part and head."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

from torch import Tensor

from .attention import layer_label
from .maps import QueryMap, centre_of
from .plots import new_figure, save

SIGNED = "RdBu_r"
"""Colour map of signed values: red above zero, blue below."""
LARGEST_ASPECT = 2.5
"""Width over height, or the reverse, up to which an image is drawn undistorted."""


@dataclass(frozen=True)
class ImageMaps:
    """One image, (H, W, 3) in 0..1, and the maps of one query on it."""

    name: str
    image: Tensor
    maps: Sequence[QueryMap]


def draw_maps(images: Sequence[ImageMaps], path: Path) -> Path:
    """One row per image: the query, then for each layer its global weights, and global plus local weights.

    Weights are drawn relative to the even share, 1 / N: red above it, blue below it, and negative below minus one share. Each
    map has its own scale, written below it. Means over heads.
    """
    rows, columns = len(images), 1 + 2 * len(images[0].maps)
    height, width = images[0].image.shape[:2]
    figure = new_figure(1.75 * columns, (1.6 * height / width + 0.35) * rows + 1.0)
    axes = figure.subplots(rows, columns, squeeze=False)
    for row, image in enumerate(images):
        _draw_image(axes[row][0], image.image, image.maps[0].query, image.maps[0].grid)
        axes[row][0].set_ylabel(image.name, fontsize=10)
        for column, found in enumerate(image.maps):
            left, right = axes[row][1 + 2 * column], axes[row][2 + 2 * column]
            tokens = found.mixed[0, 0].numel()
            _draw_map(left, found.mixed[0].mean(0) * tokens - 1, found, "±{:.3g} around the even share")
            _draw_map(right, found.together[0].mean(0) * tokens - 1, found, "±{:.3g} around the even share")
            if row == 0:
                layer, size = found.layer.removesuffix(".mixer"), "{} x {} tokens".format(*found.grid)
                left.set_title(f"{layer}, {size}\nglobal", fontsize=9, loc="left")
                right.set_title("\nwith the local part", fontsize=9, loc="left")
    _hide_ticks(axes)
    figure.suptitle("Attention of the marked point: red above the even share, blue below", fontsize=11)
    return save(figure, path)


def draw_models(image: Tensor, models: Mapping[str, Sequence[QueryMap]], followed: Mapping[str, Tensor], path: Path) -> Path:
    """One row per model: the image and the query, the weights of some layers, and the rollout of all layers.

    Args:
        image: (H, W, 3) in 0..1.
        models: label -> maps of the layers to draw, equally many for each model.
        followed: label -> rollout, (H, W).
        path: the PNG file.
    """
    columns = 2 + max(map(len, models.values()))
    height, width = image.shape[:2]
    figure = new_figure(1.9 * columns, (1.75 * height / width + 0.55) * len(models) + 0.7)
    axes = figure.subplots(len(models), columns, squeeze=False)
    for row, (label, maps) in zip(axes, models.items(), strict=True):
        _draw_image(row[0], image, maps[0].query, maps[0].grid)
        row[0].set_ylabel(_wrapped(label), fontsize=9)
        for axis, found in zip(row[1:], maps, strict=False):
            _draw_overlay(axis, image, found.together[0].mean(0) * found.mixed[0, 0].numel() - 1, found)
            axis.set_title(layer_label(found.layer), fontsize=9)
        _draw_overlay(row[-1], image, followed[label] * followed[label].numel() - 1, maps[0])
        row[-1].set_title("all layers (rollout)", fontsize=9)
    _hide_ticks(axes)
    figure.suptitle(
        "Attention of the marked point, global and local, mean over heads: red above the even share, blue below", fontsize=10
    )
    return save(figure, path)


def draw_parts(image: Tensor, maps: Sequence[QueryMap], title: str, path: Path, head: int | None = None) -> Path:
    """One row per layer: global weights, local weights, both, and both over the image; of one head, or the mean.

    Relative to the even share: red above it, blue below it; local weights alone relative to zero.
    """
    height, width = image.shape[:2]
    figure = new_figure(8.2, (1.75 * height / width + 0.5) * len(maps) + 0.7)
    axes = figure.subplots(len(maps), 4, squeeze=False)
    for row, found in zip(axes, maps, strict=True):
        tokens = found.mixed[0, 0].numel()
        together = _head(found.together, head) * tokens - 1
        _draw_map(row[0], _head(found.mixed, head) * tokens - 1, found, "±{:.3g} around the even share", image)
        if found.local is None:
            row[1].text(0.5, 0.5, "no local part", ha="center", va="center", fontsize=9, transform=row[1].transAxes)
            row[1].set_frame_on(False)
        else:
            _draw_map(row[1], _head(found.local, head) * tokens, found, "±{:.3g} even shares", image)
        _draw_map(row[2], together, found, "±{:.3g} around the even share", image)
        _draw_overlay(row[3], image, together, found)
        row[0].set_ylabel(f"{layer_label(found.layer)}\n{found.size} tokens", fontsize=9)
    for axis, name in zip(axes[0], ("global", "local", "together", "over the image"), strict=True):
        axis.set_title(name, fontsize=10)
    _hide_ticks(axes)
    figure.suptitle(
        f"{title}: weights of the marked point, {'mean over heads' if head is None else f'head {head + 1}'}", fontsize=10
    )
    return save(figure, path)


def draw_global(image: Tensor, maps: Sequence[QueryMap], title: str, path: Path, head: int | None = None) -> Path:
    """One row per layer: the global weights alone and over the image, of one head or the mean, relative to the even share.

    For images of many tokens, where the local part is too small to be seen.
    """
    height, width = image.shape[:2]
    figure = new_figure(8.2, (3.7 * height / width + 0.5) * len(maps) + 0.7)
    for row, found in zip(figure.subplots(len(maps), 2, squeeze=False), maps, strict=True):
        values = _head(found.mixed, head) * found.mixed[0, 0].numel() - 1
        _draw_map(row[0], values, found, "±{:.3g} around the even share", image)
        _draw_overlay(row[1], image, values, found)
        row[0].set_ylabel(f"{layer_label(found.layer)}\n{found.size} tokens", fontsize=9)
        _hide_ticks(row)
    which = "mean over heads" if head is None else f"head {head + 1}"
    figure.suptitle(f"{title}: global weights of the marked point, {which}", fontsize=10)
    return save(figure, path)


def draw_heads(maps: Sequence[QueryMap], title: str, path: Path, most: int = 8) -> Path:
    """One row per layer, one column per head (at most `most`): global plus local weights."""
    columns = min(most, max(found.mixed.shape[1] for found in maps))
    height, width = maps[0].grid
    figure = new_figure(1.6 * columns + 0.6, (1.5 * height / width + 0.4) * len(maps) + 0.7)
    axes = figure.subplots(len(maps), columns, squeeze=False)
    for row, found in zip(axes, maps, strict=True):
        row[0].set_ylabel(layer_label(found.layer), fontsize=9)
        for head, axis in enumerate(row):
            if head >= found.mixed.shape[1]:
                axis.set_visible(False)
                continue
            _draw_map(axis, found.together[0, head] * found.mixed[0, 0].numel() - 1, found, "±{:.3g}")
            axis.set_title(f"head {head + 1}", fontsize=9)
    _hide_ticks(axes)
    figure.suptitle(f"{title}: weights of the marked point by head, around the even share", fontsize=10)
    return save(figure, path)


def _hide_ticks(axes: Any) -> None:
    for axis in axes.flat:
        axis.set_xticks([])
        axis.set_yticks([])


def _head(weights: Tensor, head: int | None) -> Tensor:
    return weights[0].mean(0) if head is None else weights[0, head]


def _wrapped(label: str, width: int = 18) -> str:
    return fill(label, width, break_long_words=False)


def _draw_image(axis: Any, image: Tensor, query: tuple[int, int], grid: tuple[int, int]) -> None:
    height, width = image.shape[:2]
    axis.imshow(image.cpu().numpy(), extent=(0, width, height, 0), interpolation="nearest")
    _mark(axis, (query[0] + 0.5) * height / grid[0], (query[1] + 0.5) * width / grid[1])


def _draw_map(axis: Any, values: Tensor, found: QueryMap, scale: str, image: Tensor | None = None) -> None:
    """A map alone, with the aspect ratio of its grid or of the image."""
    largest = float(values.abs().max()) or 1.0
    height, width = (side / span for side, span in zip(values.shape, found.span, strict=True))
    if image is not None:
        height, width = image.shape[:2]
    extent = (0, width * found.span[1], height * found.span[0], 0)
    axis.imshow(values.cpu().numpy(), cmap=SIGNED, vmin=-largest, vmax=largest, extent=extent, interpolation="nearest")
    _mark_query(axis, found, height, width)
    axis.set_xlabel(scale.format(largest), fontsize=8)


def _draw_overlay(axis: Any, image: Tensor, values: Tensor, found: QueryMap) -> None:
    """A map over the grey image; stronger weights are more opaque."""
    height, width = image.shape[:2]
    largest = float(values.abs().max()) or 1.0
    grey = (0.35 + 0.65 * image.mean(-1)).clamp(0, 1)
    axis.imshow(grey.cpu().numpy(), cmap="gray", vmin=0, vmax=1, extent=(0, width, height, 0))
    alpha = (values.abs() / largest).sqrt().mul(0.85).cpu().numpy()
    extent = (0, width * found.span[1], height * found.span[0], 0)
    axis.imshow(
        values.cpu().numpy(), cmap=SIGNED, vmin=-largest, vmax=largest, alpha=alpha, extent=extent, interpolation="nearest"
    )
    _mark_query(axis, found, height, width)
    axis.set_xlabel(f"±{largest:.3g} around the even share", fontsize=8)


def _mark_query(axis: Any, found: QueryMap, height: float, width: float) -> None:
    """A ring around the query, and the axes cut at the image, which the last places may reach beyond."""
    axis.set(xlim=(0, width), ylim=(height, 0))
    y, x = centre_of(found.query, found.grid, found.span)
    _mark(axis, y * height, x * width)


def _mark(axis: Any, y: float, x: float) -> None:
    axis.plot(x, y, "o", markersize=9, color="white", fillstyle="none", markeredgewidth=3)
    axis.plot(x, y, "o", markersize=9, color="black", fillstyle="none", markeredgewidth=1.4)
