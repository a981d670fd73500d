"""Pictures of what the other files of this room compute."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .capture import in_words
from .confusion import STATED, Confusion
from .locality import Near
from .maps import QueryMap
from .masking import RULES, Masked
from .rays import Ray
from .spectrum import Spectrum

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, which colour-blind people tell apart; markers tell them apart once more."""
MARKERS = "osD^vPX"
SIGNED = "RdBu_r"
"""Red counts for, blue against."""


@dataclass(frozen=True)
class Looked:
    """One picture, as (H, W, 3) in 0..1, and the maps of one query on it."""

    name: str
    shown: Tensor
    maps: Sequence[QueryMap]


def draw_maps(pictures: Sequence[Looked], path: Path) -> Path:
    """A row for each picture: the query, then for each layer its global weights, and these with the local part.

    Weights are shown against an even share, 1 / N: red is more, blue less, and negative beyond one share. Each map has a scale
    of its own, written below it. Means over heads.
    """
    rows, columns = len(pictures), 1 + 2 * len(pictures[0].maps)
    height, width = pictures[0].shown.shape[:2]
    figure = _figure(1.75 * columns, (1.6 * height / width + 0.35) * rows + 1.0)
    axes = figure.subplots(rows, columns, squeeze=False)
    for row, picture in enumerate(pictures):
        _draw_picture(axes[row][0], picture.shown, picture.maps[0].query, picture.maps[0].grid)
        axes[row][0].set_ylabel(picture.name, fontsize=10)
        for column, found in enumerate(picture.maps):
            left, right = axes[row][1 + 2 * column], axes[row][2 + 2 * column]
            tokens = found.mixed[0, 0].numel()
            _draw_map(left, found.mixed[0].mean(0) * tokens - 1, found, "±{:.3g} around an even share")
            _draw_map(right, found.together[0].mean(0) * tokens - 1, found, "±{:.3g} around an even share")
            if row == 0:
                layer, size = found.layer.removesuffix(".mixer"), "{} x {} tokens".format(*found.grid)
                left.set_title(f"{layer}, {size}\nglobal", fontsize=9, loc="left")
                right.set_title("\nwith the local part", fontsize=9, loc="left")
    _bare(axes)
    figure.suptitle("What the marked point looks at: red more, blue less", fontsize=11)
    return _save(figure, path)


def draw_models(shown: Tensor, models: Mapping[str, Sequence[QueryMap]], followed: Mapping[str, Tensor], path: Path) -> Path:
    """A row for each model: the picture and the query, the weights of some layers, and what follows from all of them.

    Args:
        shown: (H, W, 3) in 0..1.
        models: label -> maps of the layers to draw, as many for each.
        followed: label -> rollout, (H, W).
    """
    columns = 2 + max(map(len, models.values()))
    height, width = shown.shape[:2]
    figure = _figure(1.9 * columns, (1.75 * height / width + 0.55) * len(models) + 0.7)
    axes = figure.subplots(len(models), columns, squeeze=False)
    for row, (label, maps) in zip(axes, models.items(), strict=True):
        _draw_picture(row[0], shown, maps[0].query, maps[0].grid)
        row[0].set_ylabel(_wrapped(label), fontsize=9)
        for axis, found in zip(row[1:], maps, strict=False):
            _draw_overlay(axis, shown, found.together[0].mean(0) * found.mixed[0, 0].numel() - 1, found)
            axis.set_title(in_words(found.layer), fontsize=9)
        _draw_overlay(row[-1], shown, followed[label] * followed[label].numel() - 1, maps[0])
        row[-1].set_title("all layers (rollout)", fontsize=9)
    _bare(axes)
    figure.suptitle(
        "What the marked point looks at, both parts, mean over heads: red more than an even share, blue less", fontsize=10
    )
    return _save(figure, path)


def draw_parts(shown: Tensor, maps: Sequence[QueryMap], title: str, path: Path, head: int | None = None) -> Path:
    """A row for each layer: its global weights, the local part, both, and both laid over the picture; one head, or the mean.

    Against an even share: red is more, blue less, and negative beyond one share; the local part by itself against nothing.
    """
    height, width = shown.shape[:2]
    figure = _figure(8.2, (1.75 * height / width + 0.5) * len(maps) + 0.7)
    axes = figure.subplots(len(maps), 4, squeeze=False)
    for row, found in zip(axes, maps, strict=True):
        tokens = found.mixed[0, 0].numel()
        together = _head(found.together, head) * tokens - 1
        _draw_map(row[0], _head(found.mixed, head) * tokens - 1, found, "±{:.3g} around an even share", shown)
        if found.local is None:
            row[1].text(0.5, 0.5, "no local part", ha="center", va="center", fontsize=9, transform=row[1].transAxes)
            row[1].set_frame_on(False)
        else:
            _draw_map(row[1], _head(found.local, head) * tokens, found, "±{:.3g} even shares", shown)
        _draw_map(row[2], together, found, "±{:.3g} around an even share", shown)
        _draw_overlay(row[3], shown, together, found)
        row[0].set_ylabel(f"{in_words(found.layer)}\n{found.grid[0]} x {found.grid[1]} tokens", fontsize=9)
    for axis, name in zip(axes[0], ("global", "local", "together", "over the picture"), strict=True):
        axis.set_title(name, fontsize=10)
    _bare(axes)
    figure.suptitle(
        f"{title}: weights of the marked point, {'mean over heads' if head is None else f'head {head + 1}'}", fontsize=10
    )
    return _save(figure, path)


def draw_heads(maps: Sequence[QueryMap], title: str, path: Path, most: int = 8) -> Path:
    """A row for each layer, a column for each head (the first `most`): both parts together."""
    columns = min(most, max(found.mixed.shape[1] for found in maps))
    height, width = maps[0].grid
    figure = _figure(1.6 * columns + 0.6, (1.5 * height / width + 0.4) * len(maps) + 0.7)
    axes = figure.subplots(len(maps), columns, squeeze=False)
    for row, found in zip(axes, maps, strict=True):
        row[0].set_ylabel(in_words(found.layer), fontsize=9)
        for head, axis in enumerate(row):
            if head >= found.mixed.shape[1]:
                axis.set_visible(False)
                continue
            _draw_map(axis, found.together[0, head] * found.mixed[0, 0].numel() - 1, found, "±{:.3g}")
            axis.set_title(f"head {head + 1}", fontsize=9)
    _bare(axes)
    figure.suptitle(f"{title}: weights of the marked point by head, around an even share", fontsize=10)
    return _save(figure, path)


def draw_confusion(models: Mapping[str, Confusion], path: Path, stated: float = STATED) -> Path:
    """Confused pairs by picture, by layer, and by tolerance."""
    figure = _figure(12, 3.8)
    pictures, layers, tolerances = figure.subplots(1, 3)
    counts = {label: torch.tensor(found.by_picture(stated)).double() for label, found in models.items()}
    top = max(float(count.max()) for count in counts.values())
    edges = torch.linspace(0, max(top, 1.0) * 1.02, 25).tolist()
    for number, (label, found) in enumerate(models.items()):
        colour, marker = COLOURS[number % 7], MARKERS[number % 7]
        pictures.hist(counts[label].tolist(), bins=edges, histtype="stepfilled", alpha=0.35, color=colour, label=label)
        pictures.hist(counts[label].tolist(), bins=edges, histtype="step", color=colour, linewidth=1.5)
        shares = [100 * share for share in found.by_layer(stated)]
        layers.plot(range(1, len(shares) + 1), shares, color=colour, marker=marker, markersize=5, label=label)
        curve = [100 * found.share(tolerance) for tolerance in found.tolerances]
        tolerances.plot(found.tolerances, curve, color=colour, marker=marker, markersize=5, label=label)
    pictures.set(xlabel="confused pairs of queries in a picture", ylabel="pictures", title="By picture")
    _whole_numbers(pictures.yaxis)
    layers.set(xlabel="layer", ylabel="confused pairs, %", title="By layer")
    _whole_numbers(layers.xaxis)
    tolerances.set(xlabel="tolerance", ylabel="confused pairs, %", title="By tolerance", xscale="log")
    tolerances.set_yscale("symlog", linthresh=0.01)
    tolerances.set_ylim(bottom=0)
    tolerances.axvline(stated, color="grey", linewidth=1, linestyle=":")
    _legend_below(figure, pictures, len(models))
    figure.suptitle(f"Different queries with the same weights, to {stated:g} of their length", fontsize=11)
    return _save(figure, path)


def draw_plane(queries: Tensor, keys: Tensor, rays: Sequence[Ray], path: Path) -> Path:
    """Queries on a ray in the plane, and their weights over a few keys."""
    figure = _figure(13, 3.6)
    axes = figure.subplots(1, 1 + len(rays))
    first = axes[0]
    first.axhline(0, color="lightgrey", linewidth=1)
    first.axvline(0, color="lightgrey", linewidth=1)
    first.plot([0, float(queries[-1, 0])], [0, float(queries[-1, 1])], color="grey", linewidth=1, zorder=1)
    for number, query in enumerate(queries.tolist()):
        first.plot(*query, marker=MARKERS[number], color=COLOURS[number], markersize=8, linestyle="")
    for number, (x, y) in enumerate(keys.tolist()):
        first.plot(x, y, marker="x", color="black", markersize=7)
        first.annotate(f"k{number + 1}", (x, y), textcoords="offset points", xytext=(5, 4), fontsize=9)
    first.set_title("Four queries on a ray, seven keys", fontsize=10)
    first.set_aspect("equal")
    first.margins(0.12)
    for axis, found in zip(axes[1:], rays, strict=True):
        _draw_ray(axis, found, found.weights[0], [f"k{number + 1}" for number in range(keys.shape[0])])
        axis.set(xlabel="key", ylabel="weight")
    _legend_below(figure, axes[1], len(rays[0].lengths))
    figure.suptitle("The same direction, four lengths: do the weights differ?", fontsize=11)
    return _save(figure, path)


def draw_rays(rays: Sequence[Ray], path: Path, head: int = 0) -> Path:
    """For each model the weights of a real query at several lengths, keys in the order of its own."""
    return _save(figure_of_rays(rays, head), path)


def figure_of_rays(rays: Sequence[Ray], head: int = 0) -> "Figure":
    """The same, not yet written; a model with fewer heads shows its first."""
    figure = _figure(max(7.0, 3.6 * len(rays) + 0.4), 3.9)
    for axis, found in zip(figure.subplots(1, len(rays), squeeze=False)[0], rays, strict=True):
        shown = head if head < len(found.weights) else 0
        own = found.lengths.index(1.0) if 1.0 in found.lengths else 0
        weights = found.weights[shown] * found.weights.shape[-1]
        _draw_ray(axis, found, weights[:, weights[own].argsort(descending=True)], None, head=shown)
        axis.set(xlabel="keys, in the order of the query's own weights", ylabel="weight, in even shares")
        axis.axhline(1, color="grey", linewidth=1, linestyle=":")
        _whole_numbers(axis.xaxis)
    _legend_below(figure, axis, len(rays[0].lengths))
    figure.suptitle("A query of the picture, made shorter and longer: do the weights differ?", fontsize=11)
    return figure


def draw_locality(models: Mapping[str, Sequence[Near]], path: Path) -> Path:
    """The share of the weights near the query, layer by layer: lines for attention, dashes with the local part."""
    sizes = next(iter(models.values()))[0].sizes
    figure = _figure(3.9 * len(sizes) + 0.6, 4.0)
    axes = figure.subplots(1, len(sizes), squeeze=False)[0]
    for place, (axis, size) in enumerate(zip(axes, sizes, strict=True)):
        for number, (label, found) in enumerate(models.items()):
            colour, marker = COLOURS[number % 7], MARKERS[number % 7]
            layers = range(1, len(found) + 1)
            own, both = ([100 * getattr(near, part)[place] for near in found] for part in ("attention", "together"))
            axis.plot(layers, own, color=colour, marker=marker, markersize=5, label=label)
            if own != both:
                axis.plot(
                    layers, both, color=colour, marker=marker, markersize=5, linestyle="--", label=f"{label}, local part too"
                )
        longest = max(models.values(), key=len)
        even = [100 * near.even[place] for near in longest]
        axis.plot(range(1, len(even) + 1), even, color="grey", linestyle=":", label="even weights")
        axis.set(xlabel="layer", ylabel="share of the weights' magnitude, %", title=f"{size} x {size} around the query")
        axis.set_ylim(bottom=0)
        _whole_numbers(axis.xaxis)
    _legend_below(figure, axes[0], 3)
    figure.suptitle("How much attention stays near the query", fontsize=11)
    return _save(figure, path)


def draw_masking(models: Mapping[str, Masked], path: Path) -> Path:
    """Accuracy against the size of what is hidden: lines for the query's own window, dashes for random tokens."""
    figure = _figure(7.5, 4.6)
    axis = figure.subplots()
    for number, (label, found) in enumerate(models.items()):
        colour, marker = COLOURS[number % 7], MARKERS[number % 7]
        for rule, style in zip(RULES, ("-", "--"), strict=True):
            values = [found.top1, *found.found[rule]]
            errors = [100 * sqrt(value / 100 * (1 - value / 100) / found.pictures) for value in values]
            places = [place + 0.03 * number for place in range(len(values))]
            axis.errorbar(
                places, values, errors, color=colour, marker=marker, linestyle=style, capsize=2, label=f"{label}: {rule}"
            )
    sizes = next(iter(models.values())).sizes
    axis.set_xticks(range(1 + len(sizes)), ["nothing", *(f"{size} x {size}" for size in sizes)])
    axis.set(xlabel="hidden from every query, in every layer that is larger", ylabel="top-1, % (bars: one standard error)")
    _legend_below(figure, axis, 2)
    figure.suptitle("What hiding a query's own window costs, against as many random tokens", fontsize=11)
    return _save(figure, path)


def draw_spectrum(models: Mapping[str, Sequence[Spectrum]], path: Path) -> Path:
    """Effective rank, entropy and negative weights, layer by layer."""
    figure = _figure(12.5, 3.9)
    axes = figure.subplots(1, 3)
    for number, (label, found) in enumerate(models.items()):
        style = {"color": COLOURS[number % 7], "marker": MARKERS[number % 7], "markersize": 5, "label": label}
        layers = range(1, len(found) + 1)
        axes[0].plot(layers, [one.effective_rank for one in found], **style)
        axes[1].plot(layers, [one.entropy for one in found], **style)
        axes[2].plot(layers, [100 * one.negative for one in found], **style)
    axes[0].set(ylabel="effective rank", title="Rank of the weights")
    axes[1].set(ylabel="entropy over that of even weights", title="How even the rows are")
    axes[2].set(ylabel="weights below zero, %", title="Negative weights")
    for axis in axes:
        axis.set_xlabel("layer")
        axis.set_ylim(bottom=0)
        _whole_numbers(axis.xaxis)
    _legend_below(figure, axes[0], len(models))
    figure.suptitle("Rank and entropy, in the mean over heads and pictures", fontsize=11)
    return _save(figure, path)


# What the figures are made of


def _figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: "Figure", path: Path) -> Path:
    figure.savefig(path, dpi=110)
    return path


def _bare(axes: Any) -> None:
    for axis in axes.flat:
        axis.set_xticks([])
        axis.set_yticks([])


def _whole_numbers(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))


def _legend_below(figure: "Figure", axis: Any, columns: int) -> None:
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(columns, 4), fontsize=9, frameon=False)


def _head(weights: Tensor, head: int | None) -> Tensor:
    return weights[0].mean(0) if head is None else weights[0, head]


def _wrapped(label: str, width: int = 18) -> str:
    from textwrap import fill

    return fill(label, width, break_long_words=False)


def _draw_picture(axis: Any, shown: Tensor, query: tuple[int, int], grid: tuple[int, int]) -> None:
    height, width = shown.shape[:2]
    axis.imshow(shown.cpu().numpy(), extent=(0, width, height, 0), interpolation="nearest")
    _mark(axis, (query[0] + 0.5) * height / grid[0], (query[1] + 0.5) * width / grid[1])


def _draw_map(axis: Any, values: Tensor, found: QueryMap, scale: str, shown: Tensor | None = None) -> None:
    """A map by itself, in the shape of its tokens, or of the picture that is shown."""
    largest = float(values.abs().max()) or 1.0
    height, width = values.shape if shown is None else shown.shape[:2]
    extent = (0, width, height, 0)
    axis.imshow(values.cpu().numpy(), cmap=SIGNED, vmin=-largest, vmax=largest, extent=extent, interpolation="nearest")
    _mark(axis, (found.query[0] + 0.5) * height / found.grid[0], (found.query[1] + 0.5) * width / found.grid[1])
    axis.set_xlabel(scale.format(largest), fontsize=8)


def _draw_overlay(axis: Any, shown: Tensor, values: Tensor, found: QueryMap) -> None:
    """A map over the picture in grey, the stronger the less of the picture is seen."""
    height, width = shown.shape[:2]
    largest = float(values.abs().max()) or 1.0
    grey = (0.35 + 0.65 * shown.mean(-1)).clamp(0, 1)
    axis.imshow(grey.cpu().numpy(), cmap="gray", vmin=0, vmax=1, extent=(0, width, height, 0))
    alpha = (values.abs() / largest).sqrt().mul(0.85).cpu().numpy()
    axis.imshow(
        values.cpu().numpy(), cmap=SIGNED, vmin=-largest, vmax=largest, alpha=alpha, extent=(0, width, height, 0),
        interpolation="nearest",
    )  # fmt: skip
    _mark(axis, (found.query[0] + 0.5) * height / found.grid[0], (found.query[1] + 0.5) * width / found.grid[1])
    axis.set_xlabel(f"±{largest:.3g} around an even share", fontsize=8)


def _mark(axis: Any, y: float, x: float) -> None:
    axis.plot(x, y, "o", markersize=9, color="white", fillstyle="none", markeredgewidth=3)
    axis.plot(x, y, "o", markersize=9, color="black", fillstyle="none", markeredgewidth=1.4)


def _draw_ray(axis: Any, found: Ray, weights: Tensor, names: Sequence[str] | None, head: int = 0) -> None:
    places = range(weights.shape[-1])
    for number, (length, row) in enumerate(zip(found.lengths, weights.tolist(), strict=True)):
        style = {"color": COLOURS[number % 7], "label": f"length x {length:g}"}
        if names is None:
            axis.plot(places, row, linewidth=1.6, **style)
        else:
            axis.plot(places, row, marker=MARKERS[number % 7], markersize=7, linestyle="", alpha=0.85, **style)
    if names is not None:
        axis.set_xticks(places, names)
    confused = int(found.confused[head])
    where = "" if names is not None else f"{found.layer}, head {head + 1}\n"
    axis.set_title(f"{found.title}\n{where}same weights: {confused} of {found.pairs} pairs", fontsize=10)
