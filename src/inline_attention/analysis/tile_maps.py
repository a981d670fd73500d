"""Maps of the tiles of slides: GeoJSON that QuPath opens over the slide, and figures."""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .attention import layer_label
from .map_plots import SIGNED
from .plots import new_figure, save
from .tile_weights import TileWeights


def write_geojson(path: Path, coords: Tensor, tile: int, measurements: Mapping[str, Tensor]) -> Path:
    """A square for each tile in pixels of the slide, with measurements; the file is whole, or not there.

    QuPath reads them as tiles, and colours them by Measure > Show measurement maps.

    Args:
        path: of the file.
        coords: (N, 2), x and y of each tile's upper left corner.
        tile: its side.
        measurements: name -> (N,).
    """
    columns = {name: values.tolist() for name, values in measurements.items()}
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w") as file:
            file.write('{"type": "FeatureCollection", "features": [')
            for index, (x, y) in enumerate(coords.tolist()):
                corners = [[x, y], [x + tile, y], [x + tile, y + tile], [x, y + tile], [x, y]]
                feature = {
                    "type": "Feature",
                    "geometry": {"type": "Polygon", "coordinates": [corners]},
                    "properties": {
                        "objectType": "tile",
                        "measurements": {name: values[index] for name, values in columns.items()},
                    },
                }
                file.write(("," if index else "") + "\n" + json.dumps(feature))
            file.write("\n]}\n")
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    return path


def attention_measurements(found: TileWeights) -> dict[str, Tensor]:
    """Measurements of a map of attention: the mean over heads, the same over the even share, and each head."""
    heads = {f"attention head {head}": weights for head, weights in enumerate(found.weights)}
    return {"attention": found.mean, "attention over even share": found.relative, **heads}


def draw_tile_weights(slides: Sequence[tuple[str, Tensor, TileWeights]], path: Path) -> Path:
    """The weights of each slide's tiles on their grid, relative to the even share: red above it, blue below.

    Args:
        slides: title, places (N, 2) and weights of each.
        path: the PNG file.
    """
    columns = min(4, len(slides))
    rows = -(-len(slides) // columns)
    figure = new_figure(3.4 * columns + 0.6, 3.4 * rows + 0.7)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat[len(slides) :]:
        axis.set_visible(False)
    for axis, (title, places, found) in zip(axes.flat, slides, strict=False):
        values = _on_grid(places, found.relative - 1)
        most = float(np.nanmax(np.abs(values))) or 1.0
        drawn = axis.imshow(values, cmap=SIGNED, vmin=-most, vmax=most, interpolation="nearest")
        axis.set_title(title, fontsize=9)
        axis.set_xlabel(f"{len(places):,} tiles, ±{most:.3g} around the even share", fontsize=8)
        axis.set_xticks([])
        axis.set_yticks([])
        figure.colorbar(drawn, ax=axis, shrink=0.8)
    first = slides[0][2]
    layer = layer_label(first.layer)
    figure.suptitle(f"Attention of the {first.whose}, {layer}: red above the even share, blue below", fontsize=10)
    return save(figure, path)


def _on_grid(places: Tensor, values: Tensor) -> "np.ndarray[Any, Any]":
    """(H, W), NaN where there is no tile."""
    height, width = (places.amax(0) + 1).tolist()
    grid = torch.full((height, width), float("nan"))
    grid[places[:, 0], places[:, 1]] = values.float().cpu()
    found: np.ndarray[Any, Any] = grid.numpy()
    return found
