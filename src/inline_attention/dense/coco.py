"""Objects on pictures, as COCO's files of instances tell them."""

import json
import os
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from hashlib import blake2b
from io import StringIO
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pycocotools import mask as rle
from pycocotools.coco import COCO

from ..plain.decode import BadPictureError, decode
from ..plain.wording import first_line
from .splits import NoSplitError, Split

FAR = 10
"""Points of polygons farther away than so many times the picture's size are mistakes, which would take all memory to draw."""
LARGEST = 2**53
"""Numbers are smaller: beyond it, whole numbers are no longer told apart."""
SLIVER = 0.01
"""Pixels: a narrower box may lose its area by rounding, when it is flipped or scaled."""
FOLDERS = {"train": ("train",), "val": ("val", "valid")}
"""What Roboflow calls the folders of a split."""

Entry = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Objects:
    """What is on a picture, n objects."""

    boxes: NDArray[np.float32]
    """(n, 4) as x1, y1, x2, y2, clipped to the picture."""
    labels: NDArray[np.int64]
    """(n,) from 1 on."""
    segmentations: tuple[Any, ...]
    """As COCO writes them: lists of polygons, or run lengths in a dict."""
    ids: NDArray[np.int64]
    """(n,) COCO's numbers of the annotations."""
    crowd: NDArray[np.bool_]
    """(n,) true for many objects in one annotation, which are not told apart."""
    image_id: int
    height: int
    width: int

    def masks(self, which: Sequence[int] | NDArray[np.int64] | None = None) -> NDArray[np.uint8]:
        """(n, height, width), 1 where an object is: of all, or of some."""
        chosen = range(len(self.segmentations)) if which is None else which
        masks = np.zeros((len(chosen), self.height, self.width), np.uint8)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)  # pycocotools with numpy 2
            for mask, place in zip(masks, chosen, strict=True):
                mask[:] = rle.decode(_code(self.segmentations[place], self.height, self.width))
        return masks


def _code(segmentation: Any, height: int, width: int) -> Any:
    """Polygons or run lengths as one compressed code."""
    if isinstance(segmentation, list):
        return rle.merge(rle.frPyObjects(segmentation, height, width))
    if isinstance(segmentation["counts"], list):
        return rle.frPyObjects(segmentation, height, width)
    return segmentation


@dataclass(frozen=True, eq=False)
class _Held:
    """One picture of the file."""

    image_id: int
    file: str
    height: int
    width: int
    annotations: bytes
    """JSON: hundreds of thousands of lists would be copied into every worker as they are touched."""


class CocoPictures:
    """Pictures with their objects, by image id.

    Attributes:
        coco_json: the file that tells of them.
        category_ids: COCO's numbers of the classes; label 1 is the first. A known class that the file does not have gets a
            number that the file does not use.
    """

    def __init__(
        self, coco_json: Path, folder: Path, classes: Sequence[str], category_ids: Sequence[int], held: Sequence[_Held]
    ) -> None:
        self.coco_json, self.category_ids = coco_json, tuple(category_ids)
        self._folder, self._classes, self._held = folder, tuple(classes), tuple(held)
        self._label = {number: label for label, number in enumerate(self.category_ids, 1)}

    def __len__(self) -> int:
        return len(self._held)

    def name(self, index: int) -> str:
        """The picture's path."""
        return str(self._folder / self._held[index].file)

    def load(self, index: int, channels: int) -> tuple[Image.Image, Objects]:
        """The picture, and what is on it."""
        held, name = self._held[index], self.name(index)
        try:
            opened = Path(name).open("rb")  # noqa: SIM115 - decode closes it
        except OSError as error:
            raise BadPictureError(f"{name} cannot be read: {error.strerror or first_line(error)}") from error
        picture = decode(opened, name, channels)
        if picture.size != (held.width, held.height):
            raise BadPictureError(
                f"{name} is {picture.width} x {picture.height} (width x height), and {self.coco_json} says "
                f"{held.width} x {held.height}"
            )
        return picture, self._objects(held)

    def choose(self, indices: Iterable[int]) -> "CocoPictures":
        """Some of them."""
        held = [self._held[index] for index in indices]
        return CocoPictures(self.coco_json, self._folder, self._classes, self.category_ids, held)

    def files(self) -> list[str]:
        """Names of all files without their folders."""
        return [PurePosixPath(held.file).name for held in self._held]

    def labels(self) -> None:
        """A picture has no class of its own."""

    def digest(self) -> str:
        """A hash of all annotations."""
        return blake2b(b"\n".join(held.annotations for held in self._held), digest_size=16).hexdigest()

    def ground_truth(self) -> COCO:
        """What COCO's evaluation compares with: exactly these pictures and their objects, with boxes as the file has them."""
        annotations = []
        for held in self._held:
            for annotation in json.loads(held.annotations):
                if not _is_number(annotation["area"]):
                    annotation["area"] = float(rle.area(_code(annotation["segmentation"], held.height, held.width)))
                annotations.append({**annotation, "image_id": held.image_id})
        coco = COCO()
        coco.dataset = {
            "images": [
                {"id": held.image_id, "file_name": held.file, "height": held.height, "width": held.width} for held in self._held
            ],
            "annotations": annotations,
            "categories": [{"id": number, "name": name} for number, name in zip(self.category_ids, self._classes, strict=True)],
        }
        with redirect_stdout(StringIO()):
            coco.createIndex()
        return coco

    def _objects(self, held: _Held) -> Objects:
        found: list[Entry] = json.loads(held.annotations)
        boxes = [_clipped(annotation["bbox"], held.height, held.width) for annotation in found]
        return Objects(
            boxes=np.stack(boxes) if boxes else np.zeros((0, 4), np.float32),
            labels=np.array([self._label[annotation["category_id"]] for annotation in found], np.int64),
            segmentations=tuple(annotation["segmentation"] for annotation in found),
            ids=np.array([annotation["id"] for annotation in found], np.int64),
            crowd=np.array([annotation["iscrowd"] for annotation in found], np.bool_),
            image_id=held.image_id,
            height=held.height,
            width=held.width,
        )


def _clipped(box: Sequence[float], height: int, width: int) -> NDArray[np.float32]:
    """COCO's x, y, width, height -> (4,) x1, y1, x2, y2 inside the picture."""
    x, y, across, down = box
    limits = (x, width), (y, height), (x + across, width), (y + down, height)
    return np.array([min(max(place, 0), limit) for place, limit in limits], np.float32)


def open_coco(
    root: Path,
    split: Split,
    *,
    known: tuple[str, ...] | None = None,
    skip_bad: bool = False,
) -> tuple[CocoPictures, tuple[str, ...], tuple[str, ...]]:
    """Pictures and objects of one split of a folder in COCO's layout.

    Args:
        root: has `annotations/instances_<split>2017.json` (or of another year; of several the newest that has pictures) with
            `<split>2017/`, or `annotations/instances_<split>.json` with `<split>/`, both also with pictures in
            `images/<split>...`; or, as Roboflow writes it, `<split>/_annotations.coco.json` (`valid/` for val).
        split: which.
        known: names of classes that are known already, whose order the labels follow. Else all of the file's, by category id.
        skip_bad: go on without entries that are wrong.

    Returns:
        The pictures by image id, with or without objects on them; names of the classes; and what was left out, a line each.
    """
    coco_json, folder = _find(root, split)
    content = _read(coco_json)
    classes, category_ids = _classes(coco_json, content["categories"], known)
    reader = _Reader(coco_json, folder, skip_bad)
    used = {entry["id"] for entry in content["categories"]}
    held = reader.held(content["images"], content["annotations"], used)
    if not held:
        raise ValueError(f"{coco_json} names no picture" + " that is good" * bool(reader.left_out))
    return CocoPictures(coco_json, folder, classes, category_ids, held), classes, tuple(reader.left_out)


def _find(root: Path, split: str) -> tuple[Path, Path]:
    """A split's file, and the folder of its pictures."""
    if not root.is_dir():
        raise ValueError(f"there is no folder {root}")
    annotations = root / "annotations"
    named = [path.name for path in annotations.iterdir()] if annotations.is_dir() else []
    found = sorted((name for name in named if re.fullmatch(rf"instances_{split}(20\d\d)?\.json", name)), reverse=True)
    for name in found:
        part = name.removeprefix("instances_").removesuffix(".json")
        for folder in (root / part, root / "images" / part):
            if folder.is_dir():
                return annotations / name, folder
    for part in FOLDERS[split]:
        if (root / part / "_annotations.coco.json").is_file():
            return root / part / "_annotations.coco.json", root / part
    if found:
        part = found[0].removeprefix("instances_").removesuffix(".json")
        raise ValueError(
            f"{annotations / found[0]} is there, but not its pictures: neither {part}/ nor images/{part}/ in {root}"
        )
    raise NoSplitError(
        f"{root} has no {split} split: neither annotations/instances_{split}2017.json (or of another year, or of none) nor "
        f"{FOLDERS[split][-1]}/_annotations.coco.json"
    )


def _read(coco_json: Path) -> dict[str, list[Any]]:
    """The three lists of the file."""
    try:
        content = json.loads(coco_json.read_bytes())
    except OSError as error:
        raise ValueError(f"{coco_json} cannot be read: {error.strerror or first_line(error)}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{coco_json} is not JSON: {first_line(error)}") from error
    for part in ("images", "annotations", "categories"):
        if not isinstance(content, dict) or not isinstance(content.get(part), list):
            raise ValueError(f'{coco_json} has no list "{part}": it is no file of COCO\'s instances')
    return content


def _classes(coco_json: Path, categories: list[Any], known: tuple[str, ...] | None) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Names of classes in the order of labels, and COCO's number of each."""
    numbers: dict[str, int] = {}
    for place, entry in enumerate(categories):
        if not isinstance(entry, dict) or not _is_whole(entry.get("id")):
            raise ValueError(f"{coco_json}: category at place {place} has no whole number as its id")
        number, name = entry["id"], entry.get("name")
        if not isinstance(name, str) or not name:
            raise ValueError(f"{coco_json}: category {number} has no name")
        if number in numbers.values():
            raise ValueError(f"{coco_json}: category {number} is there twice: ids must differ")
        if name in numbers:
            raise ValueError(f"{coco_json}: categories {numbers[name]} and {number} are both called {name!r}: rename one")
        if known is not None and name not in known:
            raise ValueError(f"{coco_json}: category {number}, {name!r}, is not known; known: {', '.join(known)}"[:300])
        numbers[name] = number
    if not numbers:
        raise ValueError(f"{coco_json} has no category: there is nothing to find")
    if known is None:
        known = tuple(sorted(numbers, key=lambda name: numbers[name]))
    free = max(numbers.values())
    return known, tuple(numbers.get(name, free + place) for place, name in enumerate(known, 1))


class _BadEntryError(ValueError):
    """One entry that is wrong."""


class _Reader:
    """Goes through a file's entries; each is good, left out, or the end."""

    def __init__(self, coco_json: Path, folder: Path, skip_bad: bool) -> None:
        self.coco_json, self.folder, self.skip_bad = coco_json, folder, skip_bad
        self.left_out: list[str] = []
        self.listed: dict[str, set[str]] = {}

    def held(self, images: list[Any], annotations: list[Any], categories: set[int]) -> list[_Held]:
        """All good pictures by their ids, with their good annotations."""
        entries = self._by_id("image", images)
        good: dict[int, Entry] = {}
        for number in sorted(entries):
            if self._is_good("image", number, self._check_image, entries[number]):
                good[number] = entries[number]
        found: dict[int, list[Entry]] = {number: [] for number in good}
        for number, entry in self._by_id("annotation", annotations).items():
            image: Any = entry.get("image_id")
            if _is_whole(image) and image in entries and image not in good:
                continue  # goes with its picture
            if self._is_good("annotation", number, lambda entry: _check_annotation(entry, good, categories), entry):
                kept = {key: entry[key] for key in ("id", "category_id", "bbox", "segmentation")}
                found[image].append({**kept, "iscrowd": int(bool(entry.get("iscrowd"))), "area": entry.get("area")})
        return [
            _Held(number, entry["file_name"], entry["height"], entry["width"], json.dumps(found[number]).encode())
            for number, entry in good.items()
        ]

    def _by_id(self, kind: str, entries: list[Any]) -> dict[int, Entry]:
        found: dict[int, Entry] = {}
        for place, entry in enumerate(entries):
            if not isinstance(entry, dict) or not _is_whole(entry.get("id")):
                self._bad(f"{kind} at place {place} has no whole number as its id")
            elif entry["id"] in found:
                self._bad(f"{kind} {entry['id']} is there twice: ids must differ")
            else:
                found[entry["id"]] = entry
        return found

    def _is_good(self, kind: str, number: int, check: Callable[[Entry], None], entry: Entry) -> bool:
        try:
            check(entry)
        except _BadEntryError as error:
            self._bad(f"{kind} {number} {error}")
            return False
        return True

    def _bad(self, what: str) -> None:
        line = f"{self.coco_json}: {what}"
        if not self.skip_bad:
            raise ValueError(f"{line} (--skip-bad goes on without such entries)")
        self.left_out.append(line)

    def _check_image(self, entry: Entry) -> None:
        for side in ("height", "width"):
            if not _is_whole(entry.get(side)) or entry[side] < 1:
                raise _BadEntryError(f"has a {side} of {_short(entry.get(side))}: a whole number of pixels is expected")
        file = entry.get("file_name")
        if not isinstance(file, str) or not file:
            raise _BadEntryError("has no file_name")
        posix, windows = PurePosixPath(file), PureWindowsPath(file)
        if ".." in windows.parts or posix.is_absolute() or windows.anchor:
            raise _BadEntryError(f"is {_short(file)}, which is outside of {self.folder}")
        parent = str(posix.parent)
        if parent not in self.listed:
            self.listed[parent] = _listing(self.folder / parent)
        if posix.name not in self.listed[parent]:
            raise _BadEntryError(f"is {_short(file)}, which is not in {self.folder}")


def _listing(folder: Path) -> set[str]:
    """Names of all files, asked for at once: a folder of COCO's holds more than 100,000."""
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries if entry.is_file()}
    except (FileNotFoundError, NotADirectoryError):
        return set()
    except OSError as error:
        raise ValueError(f"{folder} cannot be listed: {error.strerror or first_line(error)}") from error


def _check_annotation(entry: Entry, images: dict[int, Entry], categories: set[int]) -> None:
    number, category = entry.get("image_id"), entry.get("category_id")
    if not _is_whole(number) or number not in images:
        raise _BadEntryError(f"is of image_id {_short(number)}, which is no image of the file")
    if not _is_whole(category) or category not in categories:
        raise _BadEntryError(f"has category_id {_short(category)}, which is no category of the file")
    height, width = images[number]["height"], images[number]["width"]
    _check_box(entry.get("bbox"), height, width)
    _check_segmentation(entry.get("segmentation"), height, width)


def _check_box(box: Any, height: int, width: int) -> None:
    if not isinstance(box, list) or len(box) != 4 or not all(map(_is_number, box)):
        raise _BadEntryError(f"has the bbox {_short(box)}: four finite numbers are expected (x, y, width, height)")
    x, y, across, down = box
    if across <= 0 or down <= 0:
        raise _BadEntryError(f"has a bbox of no area: {across:g} x {down:g} (width x height)")
    left, above, right, below = _clipped(box, height, width)
    if x >= width or y >= height or x + across <= 0 or y + down <= 0:
        raise _BadEntryError(f"has a bbox wholly outside its picture: {_short(box)} on {width} x {height} (width x height)")
    if right - left < SLIVER or below - above < SLIVER:
        raise _BadEntryError(f"has a bbox of no area once it is clipped to its picture: {_short(box)} on {width} x {height}")


def _check_segmentation(segmentation: Any, height: int, width: int) -> None:
    if not segmentation:
        raise _BadEntryError("has no segmentation: objects are learned with their masks")
    if isinstance(segmentation, dict):
        _check_runs(segmentation, height, width)
    elif not isinstance(segmentation, list):
        raise _BadEntryError(f"has the segmentation {_short(segmentation)}: polygons or run lengths are expected")
    else:
        for polygon in segmentation:
            _check_polygon(polygon, height, width)


def _check_polygon(polygon: Any, height: int, width: int) -> None:
    """Millions of numbers in COCO's files, hence by numpy."""
    if not isinstance(polygon, list) or not set(map(type, polygon)) <= {int, float}:
        raise _BadEntryError(f"has the polygon {_short(polygon)}: a list of numbers is expected (x, y, x, y, ...)")
    if len(polygon) < 6 or len(polygon) % 2:
        raise _BadEntryError(f"has a polygon of {len(polygon)} numbers: an even count is expected, at least 6")
    try:
        points = np.array(polygon, np.float64).reshape(-1, 2)
    except OverflowError:
        points = np.array([[np.inf, np.inf]])
    if not (np.abs(points) <= (FAR * width, FAR * height)).all():  # nan is not, either
        raise _BadEntryError(f"has a polygon far outside its picture of {width} x {height}: {_short(polygon)}")


def _check_runs(segmentation: Entry, height: int, width: int) -> None:
    size, counts = segmentation.get("size"), segmentation.get("counts")
    if size != [height, width]:
        raise _BadEntryError(
            f"has a mask of another size than its picture: {_short(size)}, and the picture is {[height, width]} (height, width)"
        )
    runs = _uncompressed(counts) if isinstance(counts, str) else counts
    if not isinstance(runs, list) or set(map(type, runs)) != {int} or min(runs) < 0 or sum(runs) != height * width:
        raise _BadEntryError(f"has a mask whose run lengths do not add up to {height} x {width} pixels: {_short(counts)}")


def _uncompressed(text: str) -> list[int] | None:
    """Run lengths of COCO's compressed text, or None. pycocotools does not tell when they end too soon.

    Each is written in groups of 5 bits, the lowest first, in characters from "0" on; the sixth bit says that there is more, the
    fifth of the last group is the sign. From the fourth on, only the difference from the last but one is written.
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


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST


def _is_number(value: Any) -> bool:
    """Finite, too: comparing is false for nan."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


def _short(value: Any) -> str:
    """A value of the file, for a line."""
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
