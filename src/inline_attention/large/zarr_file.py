"""Zarr folders of format 2 and 3: an array, or an OME-Zarr image with its levels, channels and pixel size.

The metadata is read here. Codecs are checked before anything is decoded: one of numcodecs unpickles, and so runs what it is
given.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from .image_file import COLOURS, Level, PixelSize
from .ome import IN_MICROMETRES
from .open_file import ZARR

CODECS = {
    *("bytes", "endian", "transpose", "sharding_indexed", "crc32c", "crc32", "adler32", "fletcher32", "jenkins_lookup3"),
    *("gzip", "zlib", "bz2", "lzma", "lz4", "blosc", "zstd", "zfpy", "pcodec", "packbits", "shuffle", "delta"),
    *("fixedscaleoffset", "quantize", "bitround", "astype"),
}
"""What compresses numbers; names are compared without "numcodecs." before them. imagecodecs' are allowed, too."""
LENGTHS = {
    **IN_MICROMETRES,
    "meter": 1e6,
    "decimeter": 1e5,
    "centimeter": 1e4,
    "millimeter": 1e3,
    "micrometer": 1.0,
    "nanometer": 1e-3,
    "angstrom": 1e-4,
    "picometer": 1e-6,
}
"""Micrometres in OME-Zarr's units, by name and by sign."""


class ZarrFile:
    """An image in a Zarr folder as an `ImageFile`."""

    georeference = nodata = None

    def __init__(self, path: Path) -> None:
        facts = _attributes(path)
        scales = facts.get("multiscales")
        if scales:
            axes = [str(axis["name"] if isinstance(axis, dict) else axis).lower() for axis in scales[0].get("axes", "tczyx")]
            self._arrays = [_array(path, str(each["path"])) for each in scales[0]["datasets"]]
        else:
            self._arrays = [_array(path, _only_array(path))]
            axes = _axes(self._arrays[0], _attributes(path / _only_array(path)))
        for array in self._arrays:
            if len(axes) != array.ndim or sorted({"y", "x"} & set(axes)) != ["x", "y"]:
                raise ValueError(f"its axes are {', '.join(axes)}, but an array has {array.ndim} dimensions")
        self._axes = axes
        first = self._arrays[0]
        for axis, length in zip(axes, first.shape, strict=True):
            if axis not in "yxc" and length > 1:
                raise ValueError(f"it has {length} images along its axis {axis}: an image of one is needed, extract it first")
        for number, array in enumerate(self._arrays):
            if array.dtype != first.dtype or self._count(array) != self._count(first):
                raise ValueError(
                    f"its level {number} has {self._count(array)} channels of {array.dtype}, and the finest "
                    f"{self._count(first)} of {first.dtype}"
                )
        self.dtype: np.dtype[Any] = np.dtype(first.dtype)
        self.channels = _channels(facts, self._count(first), self.dtype)
        self.pixel_size = _pixel_size(scales[0], axes) if scales else None
        self.levels = tuple(self._level(array) for array in self._arrays)

    def _size(self, array: Any) -> tuple[int, int]:
        return array.shape[self._axes.index("y")], array.shape[self._axes.index("x")]

    def _count(self, array: Any) -> int:
        """Of its channels."""
        return int(array.shape[self._axes.index("c")]) if "c" in self._axes else 1

    def _level(self, array: Any) -> Level:
        height, width = self._size(self._arrays[0])
        rows, columns = self._size(array)
        chunks = getattr(array, "shards", None) or array.chunks
        if min(*array.shape, *chunks) < 1:
            raise ValueError(f"an array of it is of {tuple(array.shape)} numbers in chunks of {tuple(chunks)}")
        return Level(rows, columns, (height / rows + width / columns) / 2, min(rows, chunks[self._axes.index("y")]))

    def read(self, level: int, start: int, stop: int, channels: Sequence[int] | None = None) -> NDArray[Any]:
        """(stop - start, width, channels): these rows."""
        array, wanted = self._arrays[level], list(range(len(self.channels)) if channels is None else channels)
        least, most = min(wanted), max(wanted) + 1
        parts = {"y": slice(start, stop), "x": slice(None), "c": slice(least, most)}
        rows = np.asarray(array[tuple(parts.get(axis, 0) for axis in self._axes)])
        kept = [axis for axis in self._axes if axis in parts]
        rows = rows.transpose([kept.index(axis) for axis in "yxc" if axis in kept])
        rows = rows.reshape(*rows.shape[:2], -1)
        return rows if wanted == list(range(least, most)) else rows[:, :, [number - least for number in wanted]]

    def close(self) -> None:
        """Nothing: chunks are files of their own."""


def open_zarr(path: Path) -> ZarrFile:
    """Open a Zarr folder. Nothing in it is executed."""
    return ZarrFile(path)


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    found = json.loads(path.read_text())
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} is no JSON object")
    return found


def _attributes(path: Path) -> dict[str, Any]:
    """The attributes of an array or group; OME's, where they have a place of their own."""
    attributes = _json(path / "zarr.json").get("attributes") or _json(path / ".zattrs")
    return {**attributes, **attributes.get("ome", {})}


def _only_array(path: Path) -> str:
    """The array of a folder without OME's metadata: itself, or the only one in it."""
    if (path / ".zarray").is_file() or _json(path / "zarr.json").get("node_type") == "array":
        return "."
    names = sorted(each.name for each in path.iterdir() if any((each / file).is_file() for file in ZARR))
    if len(names) != 1:
        raise ValueError(f"it is a Zarr group with {len(names)} arrays or groups and no multiscales: name the path of one")
    return names[0]


def _array(path: Path, name: str) -> Any:
    """An array of numbers, if it is in the folder and its codecs only compress."""
    place = (path / name).resolve()
    if not place.is_relative_to(path.resolve()):
        raise ValueError(f"its array {name!r} lies outside the folder")
    metadata = _json(place / "zarr.json") or _json(place / ".zarray")
    if not metadata:
        raise ValueError(f"its array {name!r} is missing")
    for codec in _codec_names(metadata):
        plain = codec.removeprefix("numcodecs.")
        if plain not in CODECS and not plain.startswith("imagecodecs_"):
            raise ValueError(f"its codec {codec!r} is not one of those that compress numbers")
    return zarr.open_array(str(place), mode="r")


def _codec_names(metadata: dict[str, Any]) -> list[str]:
    """The names of all codecs, those within shards included."""
    codecs = [*(metadata.get("codecs") or ()), *(metadata.get("filters") or ())]
    codecs += [metadata["compressor"]] if metadata.get("compressor") else []
    names: list[str] = []
    for codec in codecs:
        if isinstance(codec, str):
            names.append(codec)
            continue
        names.append(str(codec.get("name", codec.get("id"))))
        inner = codec.get("configuration") or {}
        names += _codec_names({"codecs": [*inner.get("codecs", ()), *inner.get("index_codecs", ())]})
    return names


def _axes(array: Any, attributes: dict[str, Any]) -> list[str]:
    """The axes of a plain array: as it says, or rows, columns and channels."""
    said = getattr(getattr(array, "metadata", None), "dimension_names", None) or attributes.get("_ARRAY_DIMENSIONS")
    axes = [
        {"row": "y", "column": "x", "band": "c", "channel": "c"}.get(str(name).lower(), str(name).lower())
        for name in said or ()
    ]
    if {"y", "x"} <= set(axes):
        return axes
    if array.ndim not in (2, 3):
        raise ValueError(f"an array must be (H, W) or (H, W, channels), got {tuple(array.shape)}")
    return list("yxc"[: array.ndim])


def _channels(facts: dict[str, Any], count: int, dtype: np.dtype[Any]) -> tuple[str, ...]:
    named = facts.get("omero", {}).get("channels", [])
    names = tuple(str(each.get("label") or number) for number, each in enumerate(named))
    if len(names) == count:
        return names
    return COLOURS if count == 3 and dtype == np.uint8 else tuple(str(number) for number in range(count))


def _pixel_size(scales: dict[str, Any], axes: list[str]) -> PixelSize | None:
    """By the scale of the finest level, times that of all levels."""
    sides, kinds = [1.0] * len(axes), scales.get("axes", [])
    found = False
    for each in (*scales["datasets"][0].get("coordinateTransformations", ()), *scales.get("coordinateTransformations", ())):
        if each.get("type") == "scale":
            sides, found = [one * float(other) for one, other in zip(sides, each["scale"], strict=True)], True
    units = [axis.get("unit") if isinstance(axis, dict) else None for axis in kinds]
    size = [(sides[axes.index(axis)], units[axes.index(axis)] if units else None) for axis in "yx"]
    if not found or any(unit not in LENGTHS or not side > 0 for side, unit in size):
        return None
    height, width = (side * LENGTHS[unit] for side, unit in size if unit is not None)
    return PixelSize(height, width, "µm")
