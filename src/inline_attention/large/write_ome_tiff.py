"""Writes a map as an OME-TIFF, by tifffile: tiled, compressed, with halvings, and with the size of a pixel on the slide."""

import json
from pathlib import Path
from typing import Any

from .map_levels import TILE, MapLevels
from .segmented_map import SegmentedMap
from .whole_path import whole_path

BIGTIFF_BYTES = 2**31
"""Of all levels before compression, from which on the file has 64-bit offsets."""
BUFFER_BYTES = 2**24
"""Of tiles that are compressed at once."""


def write_ome_tiff(path: Path, found: SegmentedMap) -> None:
    """Write the probabilities if there are any, a plane for each class, else the labels."""
    import tifffile

    planes = found.probabilities or found.labels
    if planes.dtype == "float16":
        raise ValueError("OME-TIFF has no float16: take --probabilities uint8 or float32, or write a .zarr")
    bigtiff = sum(level.nbytes for level in planes.levels) >= BIGTIFF_BYTES
    with whole_path(path) as temporary, tifffile.TiffWriter(temporary, bigtiff=bigtiff, ome=True) as file:
        for number in range(len(planes.levels)):
            first = number == 0
            file.write(
                planes.tiles(number),
                shape=_shape(planes, number),
                dtype=planes.dtype,
                tile=(TILE, TILE),
                photometric="minisblack",
                compression="zlib",
                buffersize=BUFFER_BYTES,
                subifds=len(planes.levels) - 1 if first else None,
                subfiletype=0 if first else 1,
                metadata=_metadata(path, found) if first else None,
                **_resolution(planes, number, found),
            )


def _shape(planes: MapLevels, number: int) -> tuple[int, ...]:
    """(classes, H, W), or (H, W) for one plane."""
    count, height, width = planes.levels[number].shape
    return (height, width) if count == 1 else (count, height, width)


def _metadata(path: Path, found: SegmentedMap) -> dict[str, Any]:
    """For the OME-XML. Class names are in the description, and name the channels of probabilities."""
    planes = found.probabilities or found.labels
    metadata: dict[str, Any] = {
        "axes": "YX" if len(planes.levels[0]) == 1 else "CYX",
        "Name": path.name,
        "Description": json.dumps({"classes": found.classes, "ignored": found.ignored}),
    }
    if found.place.pixel_size is not None:
        size = found.place.pixel_size
        metadata |= {"PhysicalSizeY": size.height, "PhysicalSizeYUnit": size.unit}
        metadata |= {"PhysicalSizeX": size.width, "PhysicalSizeXUnit": size.unit}
    if found.probabilities is not None:
        metadata["Channel"] = {"Name": list(found.classes)}
    return metadata


def _resolution(planes: MapLevels, number: int, found: SegmentedMap) -> dict[str, Any]:
    """Pixels of a level per centimetre, for programs that do not read OME-XML."""
    size = found.place.pixel_size
    if size is None:
        return {}
    centimetre = {"µm": 1e4, "m": 0.01}[size.unit]
    (_, height, width), (_, rows, columns) = planes.levels[0].shape, planes.levels[number].shape
    across, down = centimetre * columns / (size.width * width), centimetre * rows / (size.height * height)
    return {"resolution": (across, down), "resolutionunit": "CENTIMETER"}
