"""Writes a map as OME-Zarr, a folder of compressed chunks: version 0.4, in Zarr's second format, that most programs read."""

from pathlib import Path
from typing import Any

from ..lite.label_drawing import class_colour
from .map_levels import TILE, MapLevels
from .segmented_map import SegmentedMap
from .whole_path import whole_path

VERSION = "0.4"
UNITS = {"µm": "micrometer", "m": "meter"}


def write_ome_zarr(path: Path, found: SegmentedMap) -> None:
    """Write the probabilities if there are any, (classes, H, W), else the labels, (H, W)."""
    import zarr

    planes = found.probabilities or found.labels
    second_format: dict[str, Any] = {"zarr_format": 2} if int(zarr.__version__.partition(".")[0]) >= 3 else {}
    with whole_path(path) as temporary:
        group = zarr.open_group(str(temporary), mode="w", **second_format)
        group.attrs.update(_attributes(path, found))
        for number, level in enumerate(planes.levels):
            array = zarr.create(
                shape=level.shape if found.probabilities else level.shape[1:],
                chunks=(1, TILE, TILE) if found.probabilities else (TILE, TILE),
                dtype=planes.dtype.str,
                fill_value=0,
                store=str(temporary / str(number)),
                dimension_separator="/",
                **second_format,
            )
            _fill(array, planes, number)


def _fill(array: Any, planes: MapLevels, number: int) -> None:
    """Write a level, a row of chunks at a time."""
    for plane, level in enumerate(planes.levels[number]):
        for start in range(0, len(level), TILE):
            rows = slice(start, start + TILE)
            array[(plane, rows) if array.ndim == 3 else rows] = level[rows]
            planes.release()


def _attributes(path: Path, found: SegmentedMap) -> dict[str, Any]:
    planes, place = found.probabilities or found.labels, found.place
    size = place.pixel_size
    unit = {} if size is None else {"unit": UNITS[size.unit]}
    axes: list[dict[str, str]] = [{"name": "c", "type": "channel"}] if found.probabilities else []
    axes += [{"name": name, "type": "space", **unit} for name in "yx"]
    steps = (1.0, 1.0) if size is None else (size.height, size.width)
    datasets = []
    for number in range(len(planes.levels)):
        scale = [1.0] * (len(axes) - 2) + [step * 2**number for step in steps]
        datasets.append({"path": str(number), "coordinateTransformations": [{"type": "scale", "scale": scale}]})
    attributes: dict[str, Any] = {
        "multiscales": [{"version": VERSION, "name": path.name, "axes": axes, "datasets": datasets}],
        "classes": list(found.classes),
        "ignored": found.ignored,
    }
    if place.georeference is not None:
        attributes["georeference"] = {"crs": place.georeference.crs, "transform": list(place.georeference.transform)}
    if found.probabilities is not None:
        channels = [{"label": name, "active": True} for name in found.classes]
        return {**attributes, "omero": {"channels": channels}}
    numbers = range(len(found.classes))
    colours = [{"label-value": number, "rgba": [*class_colour(number), 255]} for number in numbers]
    names = [{"label-value": number, "class": found.classes[number]} for number in numbers]
    return {**attributes, "image-label": {"version": VERSION, "colors": colours, "properties": names}}
