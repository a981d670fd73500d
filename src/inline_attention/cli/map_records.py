"""The record of a finished map: a JSON file beside it, written last, so that a second start knows what is done."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ..lite.json_file import read_object

VERSION = 1
"""Of the records: results of another version are made again."""
MAP_ENDINGS = (".ome.tif", ".ome.tiff", ".ome.zarr", ".tif", ".tiff", ".zarr")
"""How the file of a map may be called."""


@dataclass(frozen=True)
class MapPaths:
    """Where the results of one image are.

    Attributes:
        stem: their path without an ending.
        given: the map's, if the user gave it; else its ending follows from its format.
        polygons: GeoJSON, if it is wanted.
    """

    stem: Path
    given: Path | None = None
    polygons: Path | None = None

    @property
    def record(self) -> Path:
        """The JSON file."""
        return self._beside(".json")

    @property
    def preview(self) -> Path:
        """The drawing."""
        return self._beside(".png")

    def map(self, ending: str) -> Path:
        """The map, if its format has this ending."""
        return self.given or self._beside(ending)

    def possible(self) -> list[Path]:
        """All that may be written."""
        paths = [self.record, self.preview, *(self.map(ending) for ending in MAP_ENDINGS)]
        return paths if self.polygons is None else [*paths, self.polygons]

    def _beside(self, ending: str) -> Path:
        return self.stem.with_name(f"{self.stem.name}{ending}")


def file_hash(path: Path) -> str:
    """Of a file's contents."""
    digest = blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(2**24):
            digest.update(block)
    return digest.hexdigest()


def file_state(path: Path) -> list[Any]:
    """Size and time of change, by which a file is known to be the same."""
    return [_size(path), path.stat().st_mtime_ns]


def finished(paths: MapPaths, image: Path, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """The record of an image whose results are whole, and were made from this very file with these settings; else None."""
    try:
        facts = read_object(paths.record)
        whole = all(_size(paths.record.parent / name) == size for name, size in facts["files"].items())
        same = facts["settings"] == settings and facts["image_file"] == file_state(image)
        named = paths.given is None or facts["map"] == str(paths.given)
        polygons = paths.polygons is None or facts["polygons"] == str(paths.polygons)
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None
    return facts if whole and same and named and polygons else None


def write_record(
    record: Path, facts: Mapping[str, Any], written: Sequence[Path], image: Path, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Write the record of results that are whole, and return it."""
    from ..large.whole_path import whole_path

    here = record.parent.resolve()
    resolved = [path.resolve() for path in written]
    files = {str(path.relative_to(here) if here in path.parents else path): _size(path) for path in resolved}
    whole = {**facts, "files": files, "settings": dict(settings), "image_file": file_state(image)}
    with whole_path(record) as temporary:
        temporary.write_text(json.dumps(whole, indent=1) + "\n")
    return whole


def _size(path: Path) -> int | list[int]:
    """In bytes; of a folder, such as a Zarr, how many files are below it, and their bytes."""
    if not path.is_dir():
        return path.stat().st_size
    sizes = [each.stat().st_size for each in path.rglob("*") if each.is_file()]
    return [len(sizes), sum(sizes)]
