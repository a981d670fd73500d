"""The entries of a COCO file: every image and annotation checked, polygons and run lengths turned into masks."""

import json
import os
import warnings
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as rle

from ..lite.decode import first_line
from ..lite.limits import excess
from ..lite.text import CONTROL, printable

MAX_POLYGON_DISTANCE = 10
"""Polygon points farther away than so many times the image's size are mistakes; drawing them would take all memory."""
MAX_NUMBER = 2**53
"""Numbers must be smaller: beyond it, a float64 does not hold every integer."""
MIN_BOX_SIDE = 0.01
"""Pixels: a narrower box may lose its area by rounding when it is flipped or scaled."""

Entry = dict[str, Any]


class _BadEntryError(ValueError):
    """One wrong entry."""


class EntryChecker:
    """Checks a file's entries one by one. A bad one raises, or with `skip_bad` is left out.

    Attributes:
        left_out: a line for each entry that was left out.
        masks: whether annotations must have a segmentation; otherwise it is not looked at.
    """

    def __init__(self, coco_json: Path, folder: Path, skip_bad: bool, *, masks: bool = True) -> None:
        self.coco_json, self.folder, self.skip_bad, self.masks = coco_json, folder, skip_bad, masks
        self.left_out: list[str] = []
        self._listings: dict[str, set[str]] = {}
        self._bad_images: set[int] = set()

    def images(self, entries: list[Any]) -> dict[int, Entry]:
        """All good images by their ids, sorted."""
        by_id = self._by_id("image", entries)
        good = {number: by_id[number] for number in sorted(by_id) if self._is_good("image", by_id[number], self._check_image)}
        self._bad_images = by_id.keys() - good.keys()
        return good

    def annotations(self, entries: list[Any], images: dict[int, Entry], categories: Container[int]) -> Iterator[Entry]:
        """All good annotations of the good images."""
        for entry in self._by_id("annotation", entries).values():
            number = entry.get("image_id")
            if is_integer(number) and number in self._bad_images:
                continue  # left out together with its image
            if self._is_good("annotation", entry, lambda entry: self._check_annotation(entry, images, categories)):
                yield entry

    def _by_id(self, kind: str, entries: list[Any]) -> dict[int, Entry]:
        found: dict[int, Entry] = {}
        for place, entry in enumerate(entries):
            if not isinstance(entry, dict) or not is_integer(entry.get("id")):
                self._leave_out(f"{kind} at place {place} has no whole number as its id")
            elif entry["id"] in found:
                self._leave_out(f"{kind} {entry['id']} is there twice: ids must differ")
            else:
                found[entry["id"]] = entry
        return found

    def _is_good(self, kind: str, entry: Entry, check: Callable[[Entry], None]) -> bool:
        try:
            check(entry)
        except _BadEntryError as error:
            self._leave_out(f"{kind} {entry['id']} {error}")
            return False
        return True

    def _leave_out(self, what: str) -> None:
        line = printable(f"{self.coco_json}: {what}")
        if not self.skip_bad:
            raise ValueError(f"{line} (--skip-bad goes on without such entries)")
        self.left_out.append(line)

    def _check_image(self, entry: Entry) -> None:
        for side in ("height", "width"):
            if not is_integer(entry.get(side)) or entry[side] < 1:
                raise _BadEntryError(f"has a {side} of {_short(entry.get(side))}: a whole number of pixels is expected")
        file = entry.get("file_name")
        if not isinstance(file, str) or not file:
            raise _BadEntryError("has no file_name")
        if CONTROL.search(file):
            raise _BadEntryError(f"has the file_name {_short(file)}, with control characters or half a character")
        if found := excess(entry["width"], entry["height"]):
            raise _BadEntryError(f"is too large: {found}")
        posix, windows = PurePosixPath(file), PureWindowsPath(file)
        if ".." in windows.parts or posix.is_absolute() or windows.anchor:
            raise _BadEntryError(f"is {_short(file)}, which is outside of {self.folder}")
        parent = str(posix.parent)
        if parent not in self._listings:
            self._listings[parent] = _list_files(self.folder / parent)
        if posix.name not in self._listings[parent]:
            raise _BadEntryError(f"is {_short(file)}, which is not in {self.folder}")

    def _check_annotation(self, entry: Entry, images: dict[int, Entry], categories: Container[int]) -> None:
        number, category = entry.get("image_id"), entry.get("category_id")
        if not is_integer(number) or number not in images:
            raise _BadEntryError(f"is of image_id {_short(number)}, which is no image of the file")
        if not is_integer(category) or category not in categories:
            raise _BadEntryError(f"has category_id {_short(category)}, which is no category of the file")
        height, width = images[number]["height"], images[number]["width"]
        _check_box(entry.get("bbox"), height, width)
        if self.masks:
            _check_segmentation(entry.get("segmentation"), height, width)


def has_segmentation(entry: Any) -> bool:
    """Whether an annotation says anything about its object's shape."""
    return isinstance(entry, dict) and bool(entry.get("segmentation"))


def _list_files(folder: Path) -> set[str]:
    """Names of all files, listed once: COCO's training folder holds more than 100,000."""
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries if entry.is_file()}
    except (FileNotFoundError, NotADirectoryError):
        return set()
    except OSError as error:
        raise ValueError(f"{folder} cannot be listed: {error.strerror or first_line(error)}") from error


def _check_box(box: Any, height: int, width: int) -> None:
    if not isinstance(box, list) or len(box) != 4 or not all(map(is_number, box)):
        raise _BadEntryError(f"has the bbox {_short(box)}: four finite numbers are expected (x, y, width, height)")
    x, y, across, down = box
    if across <= 0 or down <= 0:
        raise _BadEntryError(f"has a bbox of no area: {across:g} x {down:g} (width x height)")
    left, above, right, below = clip_box(box, height, width)
    if x >= width or y >= height or x + across <= 0 or y + down <= 0:
        raise _BadEntryError(f"has a bbox wholly outside its image: {_short(box)} on {width} x {height} (width x height)")
    if right - left < MIN_BOX_SIDE or below - above < MIN_BOX_SIDE:
        raise _BadEntryError(f"has a bbox of no area once it is clipped to its image: {_short(box)} on {width} x {height}")


def clip_box(box: Sequence[float], height: int, width: int) -> NDArray[np.float32]:
    """COCO's x, y, width, height -> (4,) x1, y1, x2, y2 inside the image."""
    x, y, across, down = box
    limits = (x, width), (y, height), (x + across, width), (y + down, height)
    return np.array([min(max(place, 0), limit) for place, limit in limits], np.float32)


def _check_segmentation(segmentation: Any, height: int, width: int) -> None:
    if not segmentation:
        raise _BadEntryError("has no segmentation, which this head is trained with: --task.head faster_rcnn takes boxes alone")
    if isinstance(segmentation, dict):
        _check_runs(segmentation, height, width)
    elif not isinstance(segmentation, list):
        raise _BadEntryError(f"has the segmentation {_short(segmentation)}: polygons or run lengths are expected")
    else:
        for polygon in segmentation:
            _check_polygon(polygon, height, width)


def _check_polygon(polygon: Any, height: int, width: int) -> None:
    """By numpy, since COCO's files have millions of points."""
    if not isinstance(polygon, list) or not set(map(type, polygon)) <= {int, float}:
        raise _BadEntryError(f"has the polygon {_short(polygon)}: a list of numbers is expected (x, y, x, y, ...)")
    if len(polygon) < 6 or len(polygon) % 2:
        raise _BadEntryError(f"has a polygon of {len(polygon)} numbers: an even count is expected, at least 6")
    try:
        points = np.array(polygon, np.float64).reshape(-1, 2)
    except OverflowError:
        points = np.array([[np.inf, np.inf]])
    if not (np.abs(points) <= (MAX_POLYGON_DISTANCE * width, MAX_POLYGON_DISTANCE * height)).all():  # false for nan, too
        raise _BadEntryError(f"has a polygon far outside its image of {width} x {height}: {_short(polygon)}")


def _check_runs(segmentation: Entry, height: int, width: int) -> None:
    size, counts = segmentation.get("size"), segmentation.get("counts")
    if size != [height, width]:
        raise _BadEntryError(
            f"has a mask of another size than its image: {_short(size)}, and the image is {[height, width]} (height, width)"
        )
    runs = _uncompressed(counts) if isinstance(counts, str) else counts
    if not isinstance(runs, list) or set(map(type, runs)) != {int} or min(runs) < 0 or sum(runs) != height * width:
        raise _BadEntryError(f"has a mask whose run lengths do not add up to {height} x {width} pixels: {_short(counts)}")


def _uncompressed(text: str) -> list[int] | None:
    """Run lengths of COCO's compressed text, or None if it is malformed: pycocotools does not notice when they end too soon.

    Each is written in groups of 5 bits, the lowest first, in characters from "0" on; the sixth bit says that another group
    follows, the fifth of the last group is the sign. From the fourth run on, the difference from the last but one is written.
    """
    runs: list[int] = []
    value = bits = 0
    for character in text:
        group = ord(character) - 48
        if not 0 <= group < 64 or bits > 30:
            return None
        value |= (group & 31) << bits
        bits += 5
        if group & 32:
            continue
        if group & 16:
            value -= 1 << bits
        runs.append(value + runs[-2] if len(runs) > 2 else value)
        value = bits = 0
    return None if bits else runs


def decode_masks(segmentations: Sequence[Any], height: int, width: int) -> NDArray[np.uint8]:
    """Polygons or run lengths as masks (n, height, width), 1 inside an object."""
    masks = np.zeros((len(segmentations), height, width), np.uint8)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)  # pycocotools with numpy 2
        for mask, segmentation in zip(masks, segmentations, strict=True):
            mask[:] = rle.decode(to_rle(segmentation, height, width))
    return masks


def to_rle(segmentation: Any, height: int, width: int) -> Any:
    """Polygons or run lengths as one compressed run-length code of pycocotools."""
    if isinstance(segmentation, list):
        return rle.merge(rle.frPyObjects(segmentation, height, width))
    if isinstance(segmentation["counts"], list):
        return rle.frPyObjects(segmentation, height, width)
    return segmentation


def is_integer(value: Any) -> bool:
    """Whether a JSON value is a whole number that float64 holds."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < MAX_NUMBER


def is_number(value: Any) -> bool:
    """Whether a JSON value is a finite number: the comparison is false for nan."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MAX_NUMBER


def _short(value: Any) -> str:
    """A value of the file, shortened to fit a message."""
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
