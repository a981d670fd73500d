"""A picture of what a trained model looks at, for the end of a run."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..training.recipe import Recipe

if TYPE_CHECKING:
    from torch import Tensor

    from ..analysis.maps import QueryMap

PICTURES = 4
BLOCKS = 2
SMALLEST = 4
"""Tokens a side below which a map shows nothing."""


def draw_attention(run: Path, recipe: Recipe) -> Path | None:
    """A few held-out pictures, each of another class, with the attention of one point; None if there is nothing to show."""
    from ..analysis.maps import query_maps
    from ..analysis.plots import Looked, draw_maps
    from ..plain.decode import BadPictureError
    from ..training.pictures import Stream
    from ..training.source import open_source
    from ..training.trained import load_trained
    from ..training.view import evaluation_view

    source = open_source(recipe.data)
    if isinstance(source.val, Stream):
        return None
    trained = load_trained(str(run))
    data = trained.data
    raw, normal = evaluation_view(replace(data, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))), evaluation_view(data)
    found: dict[int, Looked] = {}
    for index in range(len(source.val)):
        try:
            picture, label = source.val.load(index, data.channels)
        except BadPictureError:
            continue
        if label in found:
            continue
        shown = raw(picture)
        maps = _chosen(query_maps(trained.model, normal(picture)[None], _striking(shown)))
        if not maps:
            return None
        found[label] = Looked(source.classes[label], shown.permute(1, 2, 0).expand(-1, -1, 3), maps)
        if len(found) == min(PICTURES, len(source.classes)):
            break
    return draw_maps(list(found.values()), run / "attention.png") if found else None


def _chosen(maps: Sequence["QueryMap"]) -> Sequence["QueryMap"]:
    """The last block of each of the finest grids."""
    whole = [found for found in maps if found.mixed.shape[2:] == found.grid]
    by_grid = {found.grid: found for found in whole if min(found.grid) >= SMALLEST}
    return list(by_grid.values())[:BLOCKS]


def _striking(shown: "Tensor") -> tuple[float, float]:
    """The point near the middle that differs most from the rest, as shares of height and width."""
    grey = shown.mean(0)
    height, width = grey.shape
    inner = grey[height // 4 : height - height // 4, width // 4 : width - width // 4]
    place = int((inner - grey.mean()).abs().argmax())
    return (height // 4 + place // inner.shape[1] + 0.5) / height, (width // 4 + place % inner.shape[1] + 0.5) / width
