"""Reads images with a class for each pixel: ADE20K, Pascal VOC, Oxford-IIIT Pet, and folders of images and masks."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..lite.decode import BadImageError, decode_file, first_line, open_pillow, why, without_pillows_limit
from ..lite.image_paths import IMAGE_SUFFIXES
from .datasets import check_classes, file_entry
from .splits import ALL, SPELLINGS, by_split, canonical, choose_split

IGNORED = 255
"""Pixels of this label count neither in the loss nor in the scores."""
MASK_MODES = ("1", "L", "P", "I", "I;16", "I;16B")
VOC_CLASSES = (
    *("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable"),
    *("dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
PET_CLASSES = ("pet", "background")
ADE_COUNT = 150


class LabelMapDataset:
    """Images with their label maps.

    Args:
        images, masks: their files, in the same order.
        numbers: the class of each number in the mask files, as {number: class}; 255 for ignored.
    """

    def __init__(self, images: Sequence[Path], masks: Sequence[Path], numbers: dict[int, int]) -> None:
        self._images, self._masks, self._numbers = tuple(images), tuple(masks), numbers
        self._classes = np.full(256, -1, np.int64)
        self._classes[list(numbers)] = list(numbers.values())
        named = [number for number in numbers if number != IGNORED]
        self._range = f"{min(named)} to {max(named)}"

    def __len__(self) -> int:
        return len(self._images)

    def name(self, index: int) -> str:
        """The image's path."""
        return str(self._images[index])

    def load(self, index: int, channels: int) -> tuple[Image.Image, NDArray[np.uint8]]:
        """The image, and its label map (H, W) of classes from 0 on, 255 for ignored."""
        name, mask = self.name(index), self._masks[index]
        image, numbers = decode_file(name, channels), _read_mask(mask)
        height, width = numbers.shape
        if image.size != (width, height):
            raise BadImageError(
                f"{mask} is {width} x {height} (width x height), and its image {name} is {image.width} x {image.height}"
            )
        inside = (numbers >= 0) & (numbers < len(self._classes))
        classes = np.where(inside, self._classes[np.where(inside, numbers, 0)], -1)
        if (classes < 0).any():
            row, column = np.argwhere(classes < 0)[0]
            raise BadImageError(
                f"{mask} holds class {numbers[row, column]} at row {row}, column {column}, and there are {self._range}"
            )
        return image, classes.astype(np.uint8)

    def choose(self, indices: Iterable[int]) -> "LabelMapDataset":
        """The images at these indices."""
        chosen = list(indices)
        return LabelMapDataset([self._images[i] for i in chosen], [self._masks[i] for i in chosen], self._numbers)

    def files(self) -> list[str]:
        """Names of all files without their folders."""
        return [path.name for path in self._images]

    def labels(self) -> None:
        """None: an image has no class of its own."""

    def digest(self) -> str:
        """Empty: masks are files of their own."""
        return ""

    def entries(self) -> list[str]:
        """A line for each image, for `fingerprint`: its file and its mask's."""
        pairs = zip(self._images, self._masks, strict=True)
        return [f"{file_entry(image.name, image)}\t{file_entry(mask.name, mask)}" for image, mask in pairs]


def _read_mask(path: Path) -> NDArray[Any]:
    """The numbers (H, W) in a mask file."""
    try:
        with open_pillow(path) as mask, without_pillows_limit():
            mode, numbers = mask.mode, np.asarray(mask)
    except Exception as error:  # Pillow raises many kinds for a broken file
        raise BadImageError(f"{path} cannot be read: {why(error)}") from error
    if mode not in MASK_MODES:
        raise BadImageError(
            f"{path} is {mode}: a mask holds one class number for each pixel, in mode {', '.join(MASK_MODES[:5])}"
        )
    return numbers.astype(np.int64)


def open_label_maps(
    root: Path, split: str, *, classes: tuple[str, ...] | None = None
) -> tuple[LabelMapDataset, tuple[str, ...]]:
    """Open one split of a folder, whose layout is recognised by the folders in it.

    - ADE20K: `images/` and `annotations/`, each with `training/` and `validation/`. 0 is ignored, 1..150 are the classes, named
      by `objectInfo150.txt` if it is there.
    - Pascal VOC: `JPEGImages/`, `SegmentationClass/`, `ImageSets/Segmentation/{train,val}.txt`. 255 is ignored.
    - Oxford-IIIT Pet: `images/`, `annotations/trimaps/`, `annotations/trainval.txt`, `annotations/test.txt`. The
      classes are pet and background, the border is ignored.
    - Plain: `images/{train,val}/` with `masks/{train,val}/` (or `labels/`), or `images/` and `masks/` with `train.txt` and
      `val.txt`, which list file names without suffix. Without any of these, all images are for training. 255 is ignored.
      `classes.txt` lists the class names, a line each; without it, all training masks are read to count the classes.

    Args:
        root: the folder.
        split: which, by any spelling of its name; 'train' and 'all' are all images of a folder without splits.
        classes: class names that the folder must have, e.g. those of the training split.

    Returns:
        The dataset, ordered by name or as listed; and the class names.
    """
    find_splits, open_one = _layout(root)
    there = find_splits(root)
    place = there[ALL] if ALL in there and canonical(split) == "train" else choose_split(split, there, root)
    return open_one(root, place, classes)


def label_map_splits(root: Path) -> dict[str, Path]:
    """The splits of such a folder, and the folder or list of the images of each; 'all' for one that has none."""
    return _layout(root)[0](root)


def _layout(root: Path) -> "tuple[Callable[[Path], dict[str, Path]], Callable[[Path, Path, Classes | None], Opened]]":
    """How a folder is laid out: what finds its splits, and what opens one."""
    if not root.is_dir():
        raise ValueError(f"there is no folder {root}")
    for folder, find_splits, open_one in (
        ("annotations/training", _ade_splits, _open_ade),
        ("annotations/validation", _ade_splits, _open_ade),
        ("SegmentationClass", _voc_splits, _open_voc),
        ("annotations/trimaps", _pets_splits, _open_pets),
        ("images", _plain_splits, _open_plain),
    ):
        if (root / folder).is_dir():
            return find_splits, open_one
    raise ValueError(
        f"{root} holds no label maps: annotations/training (ADE20K), SegmentationClass (Pascal VOC), annotations/trimaps "
        "(Oxford-IIIT Pet) or images with masks (plain) is expected in it"
    )


Classes = tuple[str, ...]
Paths = tuple[tuple[Path, ...], tuple[Path, ...]]
"""Files of images, and of their masks in the same order."""
Opened = tuple[LabelMapDataset, Classes]


def _ade_splits(root: Path) -> dict[str, Path]:
    return by_split({path.name: path for path in (root / "annotations").iterdir() if path.is_dir()})


def _open_ade(root: Path, folder: Path, expected: Classes | None) -> Opened:
    images, masks = _match_folders(root / "images" / folder.name, folder)
    table = root / "objectInfo150.txt"
    classes = _ade_names(table) if table.is_file() else expected or tuple(map(str, range(1, ADE_COUNT + 1)))
    if len(classes) != ADE_COUNT:
        raise ValueError(f"{root} is ADE20K, which has {ADE_COUNT} classes, and the model has {len(classes)}")
    _check_classes(table, classes, expected)
    numbers = {0: IGNORED} | {number: number - 1 for number in range(1, ADE_COUNT + 1)}
    return LabelMapDataset(images, masks, numbers), classes


def _ade_names(table: Path) -> tuple[str, ...]:
    """Class names: the last column of the lines that begin with a number."""
    rows = [line.split("\t") for line in _lines(table)]
    rows = [row for row in rows if row[0].strip().isdigit()]
    if [int(row[0]) for row in rows] != list(range(1, ADE_COUNT + 1)):
        raise ValueError(f"{table} must have a line for each of the classes 1 to {ADE_COUNT}, in order, separated by tabs")
    return tuple(row[-1].strip() for row in rows)


def _voc_splits(root: Path) -> dict[str, Path]:
    return by_split({path.stem: path for path in root.glob("ImageSets/Segmentation/*.txt")})


def _open_voc(root: Path, listing: Path, expected: Classes | None) -> Opened:
    images, masks = _match_listed(listing, _lines(listing), root / "JPEGImages", root / "SegmentationClass")
    _check_classes(root, VOC_CLASSES, expected)
    return LabelMapDataset(images, masks, _same_numbers(len(VOC_CLASSES))), VOC_CLASSES


def _pets_splits(root: Path) -> dict[str, Path]:
    """The dataset has no validation images of its own: here they are its test images."""
    train, test = (root / "annotations" / f"{name}.txt" for name in ("trainval", "test"))
    return {"train": train, "val": test, "test": test}


def _open_pets(root: Path, listing: Path, expected: Classes | None) -> Opened:
    stems = [line.split()[0] for line in _lines(listing) if not line.startswith("#")]  # class, species, breed follow
    images, masks = _match_listed(listing, stems, root / "images", root / "annotations" / "trimaps")
    _check_classes(root, PET_CLASSES, expected)
    return LabelMapDataset(images, masks, {1: 0, 2: 1, 3: IGNORED}), PET_CLASSES


def _plain_splits(root: Path) -> dict[str, Path]:
    """Folders in images/ or masks/ and lists beside them that have the name of a split; else images/ is all there is."""
    masks = _mask_folder(root)
    lists = {path.stem: path for path in root.glob("*.txt")}
    folders = {path.name: root / "images" / path.name for place in (root / "images", masks) for path in place.iterdir()}
    found = {name: path for name, path in {**lists, **folders}.items() if canonical(name) in SPELLINGS}
    return by_split(found) or {ALL: root / "images"}


def _mask_folder(root: Path) -> Path:
    for name in ("masks", "labels"):
        if (root / name).is_dir():
            return root / name
    raise ValueError(f"{root} has images/ but neither masks/ nor labels/")


def _open_plain(root: Path, place: Path, expected: Classes | None) -> Opened:
    mask_folder, names = _mask_folder(root), root / "classes.txt"

    def find(place: Path) -> Paths:
        if place.suffix == ".txt":
            return _match_listed(place, _lines(place), root / "images", mask_folder)
        return _match_folders(place, mask_folder / place.relative_to(root / "images"))

    images, masks = find(place)
    if names.is_file():
        classes = check_classes(tuple(_lines(names, also_empty=True)), str(names))
        _check_classes(names, classes, expected)
    elif expected:
        classes = expected
    else:
        there = _plain_splits(root)
        training = masks if ALL in there else find(choose_split("train", there, root))[1]
        classes = tuple(map(str, range(_count_classes(training, root))))
    if not 2 <= len(classes) <= IGNORED:
        raise ValueError(f"{names} names {len(classes)} classes: 2 to {IGNORED} are expected")
    return LabelMapDataset(images, masks, _same_numbers(len(classes))), classes


def _same_numbers(count: int) -> dict[int, int]:
    return {number: number for number in range(count)} | {IGNORED: IGNORED}


def _count_classes(masks: Sequence[Path], root: Path) -> int:
    """The number of classes: one more than the greatest number in any of the masks."""
    greatest = -1
    for path in masks:
        numbers = _read_mask(path)
        if numbers.min() < 0 or numbers.max() > IGNORED:
            wrong = numbers.min() if numbers.min() < 0 else numbers.max()
            raise ValueError(f"{path} holds class {wrong}: classes are 0 to {IGNORED - 1}, and {IGNORED} for ignored")
        greatest = max(greatest, int(numbers[numbers != IGNORED].max(initial=-1)))
    if greatest < 1:
        found = "class 0 only" if greatest == 0 else "no class at all"
        raise ValueError(
            f"training masks of {root} hold {found}: there must be two classes or more "
            f"({IGNORED} is ignored; two classes are 0 and 1)"
        )
    return greatest + 1


def _check_classes(where: Path, classes: tuple[str, ...], expected: tuple[str, ...] | None) -> None:
    if expected is not None and expected != classes:
        place = next((place for place, (one, other) in enumerate(zip(classes, expected, strict=False)) if one != other), None)
        detail = (
            f"{len(classes)}, not {len(expected)}"
            if place is None
            else f"{place} is {classes[place]!r}, not {expected[place]!r}"
        )
        raise ValueError(f"{where} has other classes than the model: {detail}")


def _lines(path: Path, *, also_empty: bool = False) -> list[str]:
    """The lines of a text file that are not empty; with `also_empty`, all up to the last of these."""
    if not path.is_file():
        raise ValueError(f"there is no {path}")
    try:
        lines = [line.strip() for line in path.read_text("utf-8-sig").rstrip().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {first_line(error)}") from error
    if not any(lines):
        raise ValueError(f"{path} is empty")
    return [line for line in lines if line or also_empty]


def _by_stem(folder: Path) -> dict[str, Path]:
    """Images of a folder by file name without suffix, sorted; hidden files and files of other types are left out."""
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}")
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.suffix.lower() not in IMAGE_SUFFIXES:
            continue
        if path.stem in found:
            raise ValueError(f"{found[path.stem]} and {path} have the same name: remove one")
        found[path.stem] = path
    if not found:
        raise ValueError(f"{folder} holds no images")
    return found


def _match_folders(image_folder: Path, mask_folder: Path) -> Paths:
    """All images of a folder with their masks; both folders must have the same file names."""
    images, masks = _by_stem(image_folder), _by_stem(mask_folder)
    for ours, theirs, what, where in ((images, masks, "mask", mask_folder), (masks, images, "image", image_folder)):
        for stem, path in ours.items():
            if stem not in theirs:
                raise ValueError(f"{path} has no {what} of its name in {where}")
    return tuple(images.values()), tuple(masks[stem] for stem in images)


def _match_listed(listing: Path, stems: Sequence[str], image_folder: Path, mask_folder: Path) -> Paths:
    """The images that a text file lists, with their masks."""
    images, masks, seen = _by_stem(image_folder), _by_stem(mask_folder), set[str]()
    for stem in stems:
        if stem in seen:
            raise ValueError(f"{listing} names {stem} twice")
        for found, what, where in ((images, "image", image_folder), (masks, "mask", mask_folder)):
            if stem not in found:
                raise ValueError(f"{listing} names {stem}, and there is no such {what} in {where}")
        seen.add(stem)
    return tuple(images[stem] for stem in stems), tuple(masks[stem] for stem in stems)
