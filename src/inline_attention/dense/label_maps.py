"""Pictures with a class for each pixel: ADE20K, Pascal VOC, Oxford-IIIT Pet, and plain folders."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from ..plain.decode import BadPictureError, decode
from ..plain.opening import ENDINGS
from ..plain.wording import first_line
from .overlap import IGNORED
from .splits import NoSplitError, Split

MODES = ("1", "L", "P", "I", "I;16", "I;16B")
VOC_CLASSES = (
    *("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable"),
    *("dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
PET_CLASSES = ("pet", "background")
ADE_COUNT = 150


class MapPictures:
    """Pictures with their maps.

    Args:
        pictures, masks: their files, in the same order.
        numbers: what is in the files, as {number: class}; 255 for ignored.
    """

    def __init__(self, pictures: Sequence[Path], masks: Sequence[Path], numbers: dict[int, int]) -> None:
        self._pictures, self._masks, self._numbers = tuple(pictures), tuple(masks), numbers
        self._classes = np.full(256, -1, np.int64)
        self._classes[list(numbers)] = list(numbers.values())
        named = [number for number in numbers if number != IGNORED]
        self._range = f"{min(named)} to {max(named)}"

    def __len__(self) -> int:
        return len(self._pictures)

    def name(self, index: int) -> str:
        """The picture's path."""
        return str(self._pictures[index])

    def load(self, index: int, channels: int) -> tuple[Image.Image, NDArray[np.uint8]]:
        """The picture, and its map (H, W) of classes from 0 on, 255 for ignored."""
        name, mask = self.name(index), self._masks[index]
        try:
            opened = Path(name).open("rb")  # noqa: SIM115 - decode closes it
        except OSError as error:
            raise BadPictureError(f"{name} cannot be read: {error.strerror or first_line(error)}") from error
        picture, numbers = decode(opened, name, channels), _read_mask(mask)
        height, width = numbers.shape
        if picture.size != (width, height):
            raise BadPictureError(
                f"{mask} is {width} x {height} (width x height), and its picture {name} is {picture.width} x {picture.height}"
            )
        inside = (numbers >= 0) & (numbers < len(self._classes))
        classes = np.where(inside, self._classes[np.where(inside, numbers, 0)], -1)
        if (classes < 0).any():
            row, column = np.argwhere(classes < 0)[0]
            raise BadPictureError(
                f"{mask} holds class {numbers[row, column]} at row {row}, column {column}, and there are {self._range}"
            )
        return picture, classes.astype(np.uint8)

    def choose(self, indices: Iterable[int]) -> "MapPictures":
        """Some of them."""
        chosen = list(indices)
        return MapPictures([self._pictures[i] for i in chosen], [self._masks[i] for i in chosen], self._numbers)

    def files(self) -> list[str]:
        """Names of all files without their folders."""
        return [path.name for path in self._pictures]

    def labels(self) -> None:
        """A picture has no class of its own."""

    def digest(self) -> str:
        """Nothing: masks are files of their own."""
        return ""


def _read_mask(path: Path) -> NDArray[Any]:
    """The numbers (H, W) in a file."""
    try:
        with Image.open(path) as mask:
            mode, numbers = mask.mode, np.asarray(mask)
    except Exception as error:  # Pillow raises many kinds for a broken file
        reason = "not a picture" if isinstance(error, UnidentifiedImageError) else first_line(error)
        if isinstance(error, OSError) and error.strerror:
            reason = error.strerror
        raise BadPictureError(f"{path} cannot be read: {reason}") from error
    if mode not in MODES:
        raise BadPictureError(f"{path} is {mode}: a mask holds one class number for each pixel, in mode {', '.join(MODES[:5])}")
    return numbers.astype(np.int64)


def open_maps(root: Path, split: Split, *, known: tuple[str, ...] | None = None) -> tuple[MapPictures, tuple[str, ...]]:
    """Pictures and maps of one split of a folder, whose layout is told by what is in it.

    - ADE20K: `images/` and `annotations/`, each with `training/` and `validation/`. 0 is ignored, 1..150 are the classes, named
      by `objectInfo150.txt` if it is there.
    - Pascal VOC: `JPEGImages/`, `SegmentationClass/`, `ImageSets/Segmentation/{train,val}.txt`. 255 is ignored.
    - Oxford-IIIT Pet: `images/`, `annotations/trimaps/`, `annotations/trainval.txt`, `annotations/test.txt`. Pet and background
      are told apart, the border is ignored.
    - Plain: `images/{train,val}/` with `masks/{train,val}/` (or `labels/`), or `images/` and `masks/` with `train.txt` and
      `val.txt`, which name files without their endings, or without both, when all are to learn from. 255 is ignored.
      `classes.txt` names the classes, a line each; else all
      training masks are read to see how many there are.

    Args:
        root: the folder.
        split: which.
        known: names of classes that are known already; the folder must have the same.

    Returns:
        The pictures, by name or as their list has them; and the names of the classes.
    """
    if not root.is_dir():
        raise ValueError(f"there is no folder {root}")
    for folder, reader in (
        ("annotations/training", _open_ade),
        ("annotations/validation", _open_ade),
        ("SegmentationClass", _open_voc),
        ("annotations/trimaps", _open_pets),
        ("images", _open_plain),
    ):
        if (root / folder).is_dir():
            return reader(root, split, known)
    raise ValueError(
        f"{root} holds no label maps: annotations/training (ADE20K), SegmentationClass (Pascal VOC), annotations/trimaps "
        "(Oxford-IIIT Pet) or images with masks (plain) is expected in it"
    )


@dataclass(frozen=True)
class _Pairs:
    """Files of pictures and masks in the same order."""

    pictures: tuple[Path, ...]
    masks: tuple[Path, ...]


def _open_ade(root: Path, split: Split, known: tuple[str, ...] | None) -> tuple[MapPictures, tuple[str, ...]]:
    part = {"train": "training", "val": "validation"}[split]
    pairs = _all_of(root / "images" / part, root / "annotations" / part)
    table = root / "objectInfo150.txt"
    classes = _ade_names(table) if table.is_file() else known or tuple(map(str, range(1, ADE_COUNT + 1)))
    if len(classes) != ADE_COUNT:
        raise ValueError(f"{root} is ADE20K, which has {ADE_COUNT} classes, and {len(classes)} are known")
    _check_known(table, classes, known)
    numbers = {0: IGNORED} | {number: number - 1 for number in range(1, ADE_COUNT + 1)}
    return MapPictures(pairs.pictures, pairs.masks, numbers), classes


def _ade_names(table: Path) -> tuple[str, ...]:
    """The last column of lines that begin with a class's number."""
    rows = [line.split("\t") for line in _lines(table)]
    rows = [row for row in rows if row[0].strip().isdigit()]
    if [int(row[0]) for row in rows] != list(range(1, ADE_COUNT + 1)):
        raise ValueError(f"{table} must have a line for each of the classes 1 to {ADE_COUNT}, in order, separated by tabs")
    return tuple(row[-1].strip() for row in rows)


def _open_voc(root: Path, split: Split, known: tuple[str, ...] | None) -> tuple[MapPictures, tuple[str, ...]]:
    names = root / "ImageSets" / "Segmentation" / f"{split}.txt"
    pairs = _listed(names, _lines(names), root / "JPEGImages", root / "SegmentationClass")
    _check_known(root, VOC_CLASSES, known)
    return MapPictures(pairs.pictures, pairs.masks, _plain_numbers(len(VOC_CLASSES))), VOC_CLASSES


def _open_pets(root: Path, split: Split, known: tuple[str, ...] | None) -> tuple[MapPictures, tuple[str, ...]]:
    names = root / "annotations" / {"train": "trainval.txt", "val": "test.txt"}[split]
    stems = [line.split()[0] for line in _lines(names) if not line.startswith("#")]  # class, species, breed follow
    pairs = _listed(names, stems, root / "images", root / "annotations" / "trimaps")
    _check_known(root, PET_CLASSES, known)
    return MapPictures(pairs.pictures, pairs.masks, {1: 0, 2: 1, 3: IGNORED}), PET_CLASSES


def _open_plain(root: Path, split: Split, known: tuple[str, ...] | None) -> tuple[MapPictures, tuple[str, ...]]:
    masks = next((root / name for name in ("masks", "labels") if (root / name).is_dir()), None)
    if masks is None:
        raise ValueError(f"{root} has images/ but neither masks/ nor labels/")
    split_up = any((root / path).exists() for path in ("images/train", "images/val", "train.txt", "val.txt"))

    def part(name: str) -> _Pairs:
        if (root / "images" / name).is_dir() or (masks / name).is_dir():
            return _all_of(root / "images" / name, masks / name)
        names = root / f"{name}.txt"
        if not names.is_file():
            if name == "train" and not split_up:
                return _all_of(root / "images", masks)
            raise NoSplitError(f"{root} has no {name} split: neither images/{name}/ nor {name}.txt")
        return _listed(names, _lines(names), root / "images", masks)

    pairs, named = part(split), root / "classes.txt"
    if named.is_file():
        classes = tuple(_lines(named))
        _check_known(named, classes, known)
    else:
        classes = known or tuple(map(str, range(_count(part("train").masks, root))))
    if not 2 <= len(classes) <= IGNORED:
        raise ValueError(f"{named} names {len(classes)} classes: 2 to {IGNORED} are expected")
    return MapPictures(pairs.pictures, pairs.masks, _plain_numbers(len(classes))), classes


def _plain_numbers(count: int) -> dict[int, int]:
    return {number: number for number in range(count)} | {IGNORED: IGNORED}


def _count(masks: Sequence[Path], root: Path) -> int:
    """How many classes there are, by the greatest number in any of the masks."""
    greatest = -1
    for path in masks:
        numbers = _read_mask(path)
        if numbers.min() < 0 or numbers.max() > IGNORED:
            strange = numbers.min() if numbers.min() < 0 else numbers.max()
            raise ValueError(f"{path} holds class {strange}: classes are 0 to {IGNORED - 1}, and {IGNORED} for ignored")
        greatest = max(greatest, int(numbers[numbers != IGNORED].max(initial=-1)))
    if greatest < 1:
        found = "class 0 only" if greatest == 0 else "no class at all"
        raise ValueError(
            f"training masks of {root} hold {found}: there is nothing to tell apart "
            f"({IGNORED} is ignored; two classes are 0 and 1)"
        )
    return greatest + 1


def _check_known(where: Path, classes: tuple[str, ...], known: tuple[str, ...] | None) -> None:
    if known is not None and known != classes:
        differ = next((place for place, pair in enumerate(zip(classes, known, strict=False)) if pair[0] != pair[1]), None)
        detail = (
            f"{len(classes)}, not {len(known)}" if differ is None else f"{differ} is {classes[differ]!r}, not {known[differ]!r}"
        )
        raise ValueError(f"{where} has other classes than those known: {detail}")


def _lines(path: Path) -> list[str]:
    """Lines of a text that are not empty."""
    if not path.is_file():
        raise ValueError(f"there is no {path}")
    try:
        lines = [line.strip() for line in path.read_text("utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {first_line(error)}") from error
    if not any(lines):
        raise ValueError(f"{path} is empty")
    return [line for line in lines if line]


def _by_stem(folder: Path) -> dict[str, Path]:
    """Pictures of a folder by their names without ending, sorted; hidden files and other droppings are none."""
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}")
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.suffix.lower() not in ENDINGS:
            continue
        if path.stem in found:
            raise ValueError(f"{found[path.stem]} and {path} have one name: take one away")
        found[path.stem] = path
    if not found:
        raise ValueError(f"{folder} holds no pictures")
    return found


def _all_of(folder: Path, masks: Path) -> _Pairs:
    """All pictures of a folder, which must be the same as those of the other."""
    pictures, maps = _by_stem(folder), _by_stem(masks)
    for ours, theirs, what, where in ((pictures, maps, "mask", masks), (maps, pictures, "picture", folder)):
        for stem, path in ours.items():
            if stem not in theirs:
                raise ValueError(f"{path} has no {what} of its name in {where}")
    return _Pairs(tuple(pictures.values()), tuple(maps[stem] for stem in pictures))


def _listed(names: Path, stems: Sequence[str], folder: Path, masks: Path) -> _Pairs:
    """Pictures that a list names."""
    pictures, maps, seen = _by_stem(folder), _by_stem(masks), set[str]()
    for stem in stems:
        if stem in seen:
            raise ValueError(f"{names} names {stem} twice")
        for found, what, where in ((pictures, "picture", folder), (maps, "mask", masks)):
            if stem not in found:
                raise ValueError(f"{names} names {stem}, and there is no such {what} in {where}")
        seen.add(stem)
    return _Pairs(tuple(pictures[stem] for stem in stems), tuple(maps[stem] for stem in stems))
