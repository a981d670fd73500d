"""Writes the connected areas of each class as GeoJSON polygons, by GDAL, which goes over the labels once, row by row.

Coordinates are those of the map's reference system, or pixels of the image's finest level, as QuPath wants them. Memory holds
the polygons.
"""

import json
from pathlib import Path
from typing import Any

from ..lite.label_drawing import class_colour
from .segmented_map import SegmentedMap
from .whole_path import whole_path
from .write_cog import gdal_settings


def write_polygons(path: Path, found: SegmentedMap) -> int:
    """Write a GeoJSON file, whole or not at all; how many polygons it has.

    Pixels that share a side are connected. On maps, properties are `class` and `label`; on slides they are those that QuPath
    reads as annotations with a class.
    """
    from rasterio import Affine
    from rasterio.features import shapes

    georeference, (down, right) = found.place.georeference, found.place.downsample
    transform = Affine.scale(right, down) if georeference is None else Affine(*georeference.transform)
    count = 0
    with gdal_settings(), whole_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write(json.dumps({"type": "FeatureCollection", **_reference(found)})[:-1] + ', "features": [')
        for geometry, value in shapes(found.labels.levels[0][0], transform=transform):
            if int(value) == found.ignored:
                continue
            feature = {"type": "Feature", "properties": _properties(found, int(value)), "geometry": geometry}
            file.write((",\n" if count else "\n") + json.dumps(feature))
            count += 1
        file.write("\n]}\n")
    return count


def _reference(found: SegmentedMap) -> dict[str, Any]:
    """The reference system as GDAL and QGIS read it: GeoJSON's own is longitude and latitude."""
    from rasterio.crs import CRS

    if found.place.georeference is None:
        return {}
    crs = CRS.from_wkt(found.place.georeference.crs)
    authority = crs.to_authority()
    name = crs.to_wkt() if authority is None else f"urn:ogc:def:crs:{authority[0]}::{authority[1]}"
    return {"crs": {"type": "name", "properties": {"name": name}}}


def _properties(found: SegmentedMap, label: int) -> dict[str, Any]:
    name = found.classes[label]
    if found.place.georeference is not None:
        return {"class": name, "label": label}
    return {"objectType": "annotation", "classification": {"name": name, "color": list(class_colour(label))}}
