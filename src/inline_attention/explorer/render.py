"""Draws attention maps for the page, fast and without axes, and curves with matplotlib."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Literal

import numpy as np
from PIL import Image, ImageDraw
from torch import Tensor

from ..analysis.locality import LayerLocality
from ..analysis.map_plots import LARGEST_ASPECT, SIGNED
from ..analysis.maps import centre_of
from ..analysis.plots import COLOURS, MARKERS, figure_of_rays
from ..analysis.rays import Ray
from ..lite.decode import open_pillow
from .inspect import Inspection

Part = Literal["together", "global", "local", "all layers"]
SIDE = 448
"""Pixels of the shorter side of a map."""


def weights_of(found: Inspection, part: Part, head: int) -> Tensor | None:
    """(h, w) in even shares: the chosen part, of one head from 1 or the mean for 0; None if the layer has no such part."""
    if part == "all layers":
        return None if found.rollout is None else found.rollout * found.rollout.numel()
    weights = {"together": found.map.together, "global": found.map.mixed, "local": found.map.local}[part]
    if weights is None:
        return None
    chosen = weights[0].mean(0) if head == 0 else weights[0, min(head, weights.shape[1]) - 1]
    return chosen * found.map.mixed[0, 0].numel()


def draw_map(found: Inspection, part: Part, head: int) -> Image.Image:
    """The image in grey, with the weights over it, and a ring around the query.

    Red is more than an even share and blue less; of the local part alone, which has no even share, more or less than nothing.
    """
    weights = weights_of(found, part, head)
    return overlay(found.image, None if weights is None else weights - int(part != "local"), found.map.query, found.map.grid)


def overlay(
    image: Image.Image,
    weights: Tensor | None,
    query: tuple[int, int],
    grid: tuple[int, int],
    span: tuple[float, float] = (1.0, 1.0),
) -> Image.Image:
    """The image in grey, with weights (h, w) over it, red above zero and blue below, and a ring around the query.

    What reaches beyond the image, see `QueryMap.span`, is not drawn.
    """
    width, height = image.size
    scale = SIDE / max(min(width, height), max(width, height) / LARGEST_ASPECT)
    size = (max(round(width * scale), SIDE), max(round(height * scale), SIDE))
    base = image.convert("L").resize(size, Image.Resampling.BILINEAR).point(lambda value: 90 + 0.65 * value).convert("RGB")
    if weights is not None:
        from matplotlib import colormaps

        largest = float(weights.abs().max()) or 1.0
        coloured = colormaps[SIGNED]((weights / largest / 2 + 0.5).cpu().numpy())[..., :3]
        strength = (weights.abs() / largest).sqrt().mul(0.85 * 255).byte().cpu().numpy()
        box = (0, 0, weights.shape[1] / span[1], weights.shape[0] / span[0])
        over = Image.fromarray((coloured * 255).astype(np.uint8)).resize(size, Image.Resampling.NEAREST, box)
        base.paste(over, mask=Image.fromarray(strength).resize(size, Image.Resampling.NEAREST, box))
    y, x = (share * side for share, side in zip(centre_of(query, grid, span), size[::-1], strict=True))
    draw = ImageDraw.Draw(base)
    for radius, colour, line in ((9, "white", 5), (8, "black", 2)):
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), outline=colour, width=line)
    return base


def draw_kernel(kernel: Tensor) -> Image.Image:
    """The local kernel: a square for each weight, with its value."""
    from matplotlib import colormaps

    largest = float(kernel.abs().max()) or 1.0
    coloured = (colormaps[SIGNED]((kernel / largest / 2 + 0.5).cpu().numpy())[..., :3] * 255).astype(np.uint8)
    cell, top = 72, 26
    taps = Image.fromarray(coloured).resize((cell * kernel.shape[1], cell * kernel.shape[0]), Image.Resampling.NEAREST)
    image = Image.new("RGB", (taps.width, taps.height + top), "white")
    image.paste(taps, (0, top))
    draw = ImageDraw.Draw(image)
    draw.text((taps.width / 2, top / 2), "local kernel, mean over channels", fill="black", anchor="mm", font_size=13)
    for row, values in enumerate(kernel.tolist()):
        for column, value in enumerate(values):
            ink = "white" if abs(value) > 0.6 * largest else "black"
            draw.text(((column + 0.5) * cell, top + (row + 0.5) * cell), f"{value:.3f}", fill=ink, anchor="mm", font_size=17)
    return image


def describe(found: Inspection, part: Part, head: int) -> str:
    """The map in words, also for those who cannot see it."""
    weights = weights_of(found, part, head)
    grid = found.map.grid
    heads = found.map.mixed.shape[1]
    which = f"mean of {heads} heads" if head == 0 else f"head {min(head, heads)} of {heads}"
    where = f"Layer {found.number} of {found.layers} ({found.layer.kind}, {grid[0]} x {grid[1]} tokens), {which}."
    if part == "all layers":
        where = f"Attention through all layers of its map ({found.layer.kind})."
    state = "" if found.trained else " Untrained: its weights are random."
    if weights is None:
        return f"{where} It has no {part} part.{state}"
    place = int(weights.abs().argmax())
    row, column = place // weights.shape[1], place % weights.shape[1]
    most = float(weights.flatten()[place])
    against = ", against" if most < 0 else ""
    strongest = f"Strongest at row {row + 1}, column {column + 1}: {most:.3g} even shares{against}."
    y, x = (at * side // cells for at, side, cells in zip(found.map.query, weights.shape, grid, strict=True))
    around = float(weights[max(0, y - 1) : y + 2, max(0, x - 1) : x + 2].abs().sum() / weights.abs().sum())
    negative = float((weights < 0).double().mean())
    below = f" {100 * negative:.0f} % of the weights are negative." if negative else ""
    near = f"{100 * around:.0f} % of the weight, whatever the sign, is on the 3 x 3 tokens around it."
    ray = " It attends in windows: it has no ray." if found.ray is None else ""
    return f"{where} {strongest} {near}{below}{ray}{state}"


def draw_rays(rays: Sequence[Ray], head: int) -> Image.Image | None:
    """Attention of each model's query, made shorter and longer."""
    return _to_image(figure_of_rays(rays, max(0, head - 1))) if rays else None


def draw_locality(models: Mapping[str, Sequence[LayerLocality]]) -> Image.Image:
    """The share of the query's weights on the 3 x 3 tokens around it, layer by layer."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7, 4), layout="constrained")
    axis = figure.subplots()
    for number, (label, layers) in enumerate(models.items()):
        places, shares = range(1, len(layers) + 1), [100 * near.together[0] for near in layers]
        axis.plot(places, shares, label=label, color=COLOURS[number], marker=MARKERS[number])
        axis.plot(places, [100 * near.even[0] for near in layers], color=COLOURS[number], linestyle=":", linewidth=1)
    axis.set(xlabel="layer", ylabel="weight on 3 x 3 around the query, %", title="Locality of this query (dots: even weights)")
    axis.set_ylim(bottom=0)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.legend(frameon=False, fontsize=9)
    return _to_image(figure)


def draw_times(models: Mapping[str, Sequence[tuple[int, int, float]]]) -> Image.Image:
    """Time of all attention layers against the image's side: (side, tokens, seconds) for each model."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

    figure = Figure(figsize=(7, 4), layout="constrained")
    axis = figure.subplots()
    for number, (label, points) in enumerate(models.items()):
        sides, milliseconds = [side for side, _, _ in points], [1000 * seconds for _, _, seconds in points]
        axis.plot(sides, milliseconds, color=COLOURS[number], marker=MARKERS[number], label=label)
    sides = sorted({side for points in models.values() for side, _, _ in points})
    axis.set(
        xscale="log", yscale="log", xlabel="pixels a side", ylabel="all attention layers, ms", title="Time of attention here"
    )
    axis.set_xticks(sides, [str(side) for side in sides])
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(ScalarFormatter())
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.legend(frameon=False, fontsize=9)
    return _to_image(figure)


def _to_image(figure: object) -> Image.Image:
    from matplotlib.figure import Figure

    assert isinstance(figure, Figure)
    file = BytesIO()
    figure.savefig(file, dpi=90)
    return open_pillow(file).convert("RGB")
