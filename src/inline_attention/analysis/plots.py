"""Figures of all analyses except maps: curves and histograms that compare models."""

from collections.abc import Mapping, Sequence
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .confusion import DEFAULT_TOLERANCE, Confusion
from .locality import LayerLocality
from .masked_accuracy import RULES, MaskedAccuracy
from .rank import RankStats
from .rays import Ray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours, which colour-blind readers can distinguish; markers distinguish the lines once more."""
MARKERS = "osD^vPX"


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure; matplotlib is imported when the first one is made."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save(figure: "Figure", path: Path) -> Path:
    """Write a figure as PNG; returns the path."""
    figure.savefig(path, dpi=110)
    return path


def draw_confusion(models: Mapping[str, Confusion], path: Path, stated: float = DEFAULT_TOLERANCE) -> Path:
    """Confused pairs of queries by image, by layer and by tolerance."""
    figure = new_figure(12, 3.8)
    images, layers, tolerances = figure.subplots(1, 3)
    counts = {label: torch.tensor(found.by_image(stated)).double() for label, found in models.items()}
    top = max(float(count.max()) for count in counts.values())
    edges = torch.linspace(0, max(top, 1.0) * 1.02, 25).tolist()
    for number, (label, found) in enumerate(models.items()):
        colour, marker = COLOURS[number % 7], MARKERS[number % 7]
        images.hist(counts[label].tolist(), bins=edges, histtype="stepfilled", alpha=0.35, color=colour, label=label)
        images.hist(counts[label].tolist(), bins=edges, histtype="step", color=colour, linewidth=1.5)
        shares = [100 * share for share in found.by_layer(stated)]
        layers.plot(range(1, len(shares) + 1), shares, color=colour, marker=marker, markersize=5, label=label)
        curve = [100 * found.share(tolerance) for tolerance in found.tolerances]
        tolerances.plot(found.tolerances, curve, color=colour, marker=marker, markersize=5, label=label)
    images.set(xlabel="confused pairs of queries in an image", ylabel="images", title="By image")
    _whole_numbers(images.yaxis)
    layers.set(xlabel="layer", ylabel="confused pairs, %", title="By layer")
    _whole_numbers(layers.xaxis)
    tolerances.set(xlabel="tolerance", ylabel="confused pairs, %", title="By tolerance", xscale="log")
    tolerances.set_yscale("symlog", linthresh=0.01)
    tolerances.set_ylim(bottom=0)
    tolerances.axvline(stated, color="grey", linewidth=1, linestyle=":")
    _legend_below(figure, images, len(models))
    figure.suptitle(f"Pairs of different queries with the same weights (tolerance {stated:g})", fontsize=11)
    return save(figure, path)


def draw_plane(queries: Tensor, keys: Tensor, rays: Sequence[Ray], path: Path) -> Path:
    """Queries on a ray in the plane, and their weights over a few keys (the paper's first figure)."""
    figure = new_figure(13, 3.6)
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
    figure.suptitle("Queries of one direction and four lengths: do their weights differ?", fontsize=11)
    return save(figure, path)


def draw_rays(rays: Sequence[Ray], path: Path, head: int = 0) -> Path:
    """For each model the weights of one query of an image at several lengths, keys sorted by the query's own weights."""
    return save(figure_of_rays(rays, head), path)


def figure_of_rays(rays: Sequence[Ray], head: int = 0) -> "Figure":
    """The same as a figure; of a model with fewer heads the first head is drawn."""
    figure = new_figure(max(7.0, 3.6 * len(rays) + 0.4), 3.9)
    for axis, found in zip(figure.subplots(1, len(rays), squeeze=False)[0], rays, strict=True):
        drawn = head if head < len(found.weights) else 0
        own = found.lengths.index(1.0) if 1.0 in found.lengths else 0
        weights = found.weights[drawn] * found.weights.shape[-1]
        _draw_ray(axis, found, weights[:, weights[own].argsort(descending=True)], None, head=drawn)
        axis.set(xlabel="keys, sorted by the query's own weights", ylabel="weight / even share")
        axis.axhline(1, color="grey", linewidth=1, linestyle=":")
        _whole_numbers(axis.xaxis)
    _legend_below(figure, axis, len(rays[0].lengths))
    figure.suptitle("One query of the image at several lengths: do its weights differ?", fontsize=11)
    return figure


def draw_locality(models: Mapping[str, Sequence[LayerLocality]], path: Path) -> Path:
    """The share of weights around the query, by layer: solid lines for global weights, dashed with the local part."""
    sizes = next(iter(models.values()))[0].sizes
    figure = new_figure(3.9 * len(sizes) + 0.6, 4.0)
    axes = figure.subplots(1, len(sizes), squeeze=False)[0]
    for place, (axis, size) in enumerate(zip(axes, sizes, strict=True)):
        for number, (label, found) in enumerate(models.items()):
            colour, marker = COLOURS[number % 7], MARKERS[number % 7]
            layers = range(1, len(found) + 1)
            own, both = ([100 * getattr(layer, part)[place] for layer in found] for part in ("attention", "together"))
            axis.plot(layers, own, color=colour, marker=marker, markersize=5, label=label)
            if own != both:
                axis.plot(
                    layers, both, color=colour, marker=marker, markersize=5, linestyle="--", label=f"{label}, with local part"
                )
        longest = max(models.values(), key=len)
        even = [100 * layer.even[place] for layer in longest]
        axis.plot(range(1, len(even) + 1), even, color="grey", linestyle=":", label="even weights")
        axis.set(xlabel="layer", ylabel="share of the weights' magnitude, %", title=f"{size} x {size} around the query")
        axis.set_ylim(bottom=0)
        _whole_numbers(axis.xaxis)
    _legend_below(figure, axes[0], 3)
    figure.suptitle("Share of attention around the query", fontsize=11)
    return save(figure, path)


def draw_masking(models: Mapping[str, MaskedAccuracy], path: Path) -> Path:
    """Accuracy against the size of the masked window: solid lines for the neighbourhood, dashed for random tokens."""
    figure = new_figure(7.5, 4.6)
    axis = figure.subplots()
    for number, (label, found) in enumerate(models.items()):
        colour, marker = COLOURS[number % 7], MARKERS[number % 7]
        for rule, style in zip(RULES, ("-", "--"), strict=True):
            values = [found.top1, *found.found[rule]]
            errors = [100 * sqrt(value / 100 * (1 - value / 100) / found.images) for value in values]
            places = [place + 0.03 * number for place in range(len(values))]
            axis.errorbar(
                places, values, errors, color=colour, marker=marker, linestyle=style, capsize=2, label=f"{label}: {rule}"
            )
    sizes = next(iter(models.values())).sizes
    axis.set_xticks(range(1 + len(sizes)), ["nothing", *(f"{size} x {size}" for size in sizes)])
    axis.set(
        xlabel="keys masked for every query, in every layer with a larger grid", ylabel="top-1, % (bars: one standard error)"
    )
    _legend_below(figure, axis, 2)
    figure.suptitle("Accuracy with the window around each query masked, and with as many random tokens", fontsize=11)
    return save(figure, path)


def draw_rank(models: Mapping[str, Sequence[RankStats]], path: Path) -> Path:
    """Effective rank, entropy and negative weights, by layer."""
    figure = new_figure(12.5, 3.9)
    axes = figure.subplots(1, 3)
    for number, (label, found) in enumerate(models.items()):
        style = {"color": COLOURS[number % 7], "marker": MARKERS[number % 7], "markersize": 5, "label": label}
        layers = range(1, len(found) + 1)
        axes[0].plot(layers, [one.effective_rank for one in found], **style)
        axes[1].plot(layers, [one.entropy for one in found], **style)
        axes[2].plot(layers, [100 * one.negative for one in found], **style)
    axes[0].set(ylabel="effective rank", title="Rank of the weights")
    axes[1].set(ylabel="entropy / entropy of even weights", title="Entropy of the weights")
    axes[2].set(ylabel="negative weights, %", title="Negative weights")
    for axis in axes:
        axis.set_xlabel("layer")
        axis.set_ylim(bottom=0)
        _whole_numbers(axis.xaxis)
    _legend_below(figure, axes[0], len(models))
    figure.suptitle("Rank and entropy, mean over heads and images", fontsize=11)
    return save(figure, path)


def _whole_numbers(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))


def _legend_below(figure: "Figure", axis: Any, columns: int) -> None:
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(columns, 4), fontsize=9, frameon=False)


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
