"""Reads images with a class for each pixel: ADE20K, Pascal VOC, Oxford-IIIT Pet, CamVid, and folders of images and masks."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..lite.decode import BadImageError, decode_file
from ..lite.label_drawing import IGNORED as IGNORED
from .datasets import check_classes, file_entry
from .mask_folders import (
    CLASS_MASKS,
    FolderPair,
    Paths,
    by_stem,
    choose_place,
    find_masks,
    find_pair,
    mask_splits,
    match_folders,
    match_listed,
    read_lines,
    read_mask,
)
from .splits import by_split

MAX_LABEL = 65_535
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
        self._classes = np.full(max(256, max(numbers) + 1), -1, np.int64)
        self._classes[list(numbers)] = list(numbers.values())
        named = [number for number, label in numbers.items() if label != IGNORED]
        self._range = f"{min(named)} to {max(named)}"
        self._ignored = [number for number, label in numbers.items() if label == IGNORED and number != IGNORED]

    def __len__(self) -> int:
        return len(self._images)

    def name(self, index: int) -> str:
        """The image's path."""
        return str(self._images[index])

    def load(self, index: int, channels: int) -> tuple[Image.Image, NDArray[np.uint8]]:
        """The image, and its label map (H, W) of classes from 0 on, 255 for ignored."""
        name, mask = self.name(index), self._masks[index]
        image, numbers = decode_file(name, channels), read_mask(mask)
        height, width = numbers.shape
        if image.size != (width, height):
            raise BadImageError(
                f"{mask} is {width} x {height} (width x height), and its image {name} is {image.width} x {image.height}"
            )
        return image, self.classes_of(numbers, mask)

    def paths(self, index: int) -> tuple[Path, Path]:
        """The image's file and its mask's."""
        return self._images[index], self._masks[index]

    def classes_of(self, numbers: NDArray[Any], mask: Path, first: int = 0) -> NDArray[np.uint8]:
        """Classes from 0 on, 255 for ignored, of the numbers in some rows of a mask file, the first of which is this one."""
        inside = (numbers >= 0) & (numbers < len(self._classes))
        classes = np.where(inside, self._classes[np.where(inside, numbers, 0)], -1)
        if (classes < 0).any():
            row, column = np.argwhere(classes < 0)[0]
            label = numbers[row, column]
            raise BadImageError(
                f"{mask} holds label {label} at row {first + row}, column {column}, and the classes are {self._range}: "
                f"--data.ignore {' '.join(map(str, [*self._ignored, label]))} leaves out the pixels of this label"
            )
        return classes.astype(np.uint8)

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


class _Labels(NamedTuple):
    """What a layout's reader finds."""

    files: Paths
    numbers: dict[int, int]
    """The class of each number in the mask files; 255 for ignored."""
    classes: tuple[str, ...]
    named_by: Path | None
    """What names the classes; None if their names are only their numbers."""


class _Layout(NamedTuple):
    """How a folder is laid out."""

    splits: Mapping[str, Any]
    """What is read for each split."""
    read: Callable[[Any, tuple[str, ...] | None, Sequence[int]], _Labels]
    """Reads one of these, for classes that are expected and labels that are ignored."""


def open_label_maps(
    root: Path,
    split: str,
    *,
    classes: tuple[str, ...] | None = None,
    ignore: Sequence[int] = (),
    images: str = "",
    masks: str = "",
) -> tuple[LabelMapDataset, tuple[str, ...]]:
    """Open one split of a folder, whose layout is recognised by the folders in it.

    - ADE20K: `images/` and `annotations/`, each with `training/` and `validation/`. 0 is ignored, 1..150 are the classes, named
      by `objectInfo150.txt` if it is there.
    - Pascal VOC: `JPEGImages/`, `SegmentationClass/`, `ImageSets/Segmentation/{train,val}.txt`. 255 is ignored.
    - Oxford-IIIT Pet: `images/`, `annotations/trimaps/`, `annotations/trainval.txt`, `annotations/test.txt`. The
      classes are pet and background, the border is ignored.
    - Plain: two folders of `mask_folders.CLASS_MASKS`, such as `images/{split}/` with `masks/{split}/`, or CamVid's
      `{split}/` with `{split}annot/`; or `images/` and `masks/` with `train.txt` and `val.txt`, which list file names without
      suffix. Without splits, all images are one. 255 is ignored. `classes.txt` lists the class names, the first line
      for label 0; without it, all training masks are read to count the classes.

    Args:
        root: the folder.
        split: which, by any spelling of its name; 'train' and 'all' are all images of a folder without splits.
        classes: class names that the folder must have, e.g. those of the training split.
        ignore: labels of the mask files that are ignored besides the layout's own. They are no classes, and the numbers of
            the classes after them move up.
        images, masks: patterns of a plain folder with other names, see `mask_folders.FolderPair`.

    Returns:
        The dataset, ordered by name or as listed; and the class names.
    """
    if wrong := [label for label in ignore if not 0 <= label <= MAX_LABEL]:
        raise ValueError(f"data.ignore must be labels from 0 to {MAX_LABEL}, got {wrong[0]}")
    layout = _layout(root, images, masks)
    found = layout.read(choose_place(split, layout.splits, root), classes, ignore)
    numbers, names = _without(found.numbers, found.classes, ignore)
    if classes is not None and found.named_by is None and len(classes) == len(names):
        names = classes
    check_classes(names, str(found.named_by or root))
    if not 2 <= len(names) <= IGNORED:
        raise ValueError(f"{found.named_by or root} names {len(names)} classes: 2 to {IGNORED} are expected")
    _check_classes(found.named_by or root, names, classes)
    return LabelMapDataset(*found.files, numbers), names


def label_map_splits(root: Path, images: str = "", masks: str = "") -> Mapping[str, Any]:
    """The splits of such a folder, and what is read for each; 'all' for one that has none."""
    return _layout(root, images, masks).splits


def _layout(root: Path, images: str, masks: str) -> _Layout:
    if not root.is_dir():
        raise ValueError(f"there is no folder {root}")
    pair = find_pair(root, CLASS_MASKS, images, masks)
    for folder, find_splits, reader in (
        ("annotations/training", _ade_splits, _open_ade),
        ("annotations/validation", _ade_splits, _open_ade),
        ("SegmentationClass", _voc_splits, _open_voc),
        ("annotations/trimaps", _pets_splits, _open_pets),
    ):
        if not images and (root / folder).is_dir():
            return _Layout(find_splits(root), lambda place, *_, reader=reader: reader(root, place))
    if pair:
        return _Layout(mask_splits(root, pair), partial(_open_plain, root, pair))
    if (root / "images").is_dir():
        raise ValueError(
            f"{root} has images/ but neither masks/ nor labels/ (or name the folders: --data.images, --data.masks)"
        )
    raise ValueError(
        f"{root} holds no label maps: annotations/training (ADE20K), SegmentationClass (Pascal VOC), annotations/trimaps "
        "(Oxford-IIIT Pet), train with trainannot (CamVid) or images with masks (plain) is expected in it, or other folders "
        "by --data.images and --data.masks"
    )


def _without(
    numbers: dict[int, int], classes: tuple[str, ...], ignore: Sequence[int]
) -> tuple[dict[int, int], tuple[str, ...]]:
    """Numbers and classes with some labels ignored: classes that no number is left of are dropped."""
    kept = {number: label for number, label in numbers.items() if label != IGNORED and number not in ignore}
    labels = sorted(set(kept.values()))
    ignored = dict.fromkeys([*ignore, *(number for number, label in numbers.items() if label == IGNORED)], IGNORED)
    return {number: labels.index(label) for number, label in kept.items()} | ignored, tuple(classes[k] for k in labels)


def _ade_splits(root: Path) -> dict[str, Path]:
    return by_split({path.name: path for path in (root / "annotations").iterdir() if path.is_dir()}, root)


def _open_ade(root: Path, folder: Path) -> _Labels:
    files = match_folders(root / "images" / folder.name, folder)
    table = root / "objectInfo150.txt"
    classes = _ade_names(table) if table.is_file() else tuple(map(str, range(1, ADE_COUNT + 1)))
    numbers = {0: IGNORED} | {number: number - 1 for number in range(1, ADE_COUNT + 1)}
    return _Labels(files, numbers, classes, table if table.is_file() else None)


def _ade_names(table: Path) -> tuple[str, ...]:
    """Class names: the last column of the lines that begin with a number."""
    rows = [line.split("\t") for line in read_lines(table)]
    rows = [row for row in rows if row[0].strip().isdigit()]
    if [int(row[0]) for row in rows] != list(range(1, ADE_COUNT + 1)):
        raise ValueError(f"{table} must have a line for each of the classes 1 to {ADE_COUNT}, in order, separated by tabs")
    return tuple(row[-1].strip() for row in rows)


def _voc_splits(root: Path) -> dict[str, Path]:
    return by_split({path.stem: path for path in root.glob("ImageSets/Segmentation/*.txt")}, root)


def _open_voc(root: Path, listing: Path) -> _Labels:
    files = match_listed(listing, read_lines(listing), by_stem(root / "JPEGImages"), by_stem(root / "SegmentationClass"))
    return _Labels(files, _same_numbers(len(VOC_CLASSES)), VOC_CLASSES, root)


def _pets_splits(root: Path) -> dict[str, Path]:
    """The dataset has no validation images of its own: here they are its test images."""
    train, test = (root / "annotations" / f"{name}.txt" for name in ("trainval", "test"))
    return {"train": train, "val": test, "test": test}


def _open_pets(root: Path, listing: Path) -> _Labels:
    stems = [line.split()[0] for line in read_lines(listing) if not line.startswith("#")]  # class, species, breed follow
    files = match_listed(listing, stems, by_stem(root / "images"), by_stem(root / "annotations" / "trimaps"))
    return _Labels(files, {1: 0, 2: 1, 3: IGNORED}, PET_CLASSES, root)


def _open_plain(root: Path, pair: FolderPair, place: str, expected: tuple[str, ...] | None, ignore: Sequence[int]) -> _Labels:
    files, names = find_masks(root, pair, place), root / "classes.txt"
    if names.is_file():
        classes = tuple(read_lines(names, also_empty=True))
        return _Labels(files, _same_numbers(len(classes)), classes, names)
    if expected is None:
        training = find_masks(root, pair, choose_place("train", mask_splits(root, pair), root))[1]
        count = _count_classes(training, root, ignore)
    else:  # as many labels as the model has classes, without the ignored ones
        count = [number for number in range(IGNORED) if number not in ignore][: len(expected)][-1] + 1
    return _Labels(files, _same_numbers(count), tuple(map(str, range(count))), None)


def _same_numbers(count: int) -> dict[int, int]:
    return {number: number for number in range(min(count, IGNORED))} | {IGNORED: IGNORED}


def _count_classes(masks: Sequence[Path], root: Path, ignore: Sequence[int]) -> int:
    """The number of classes: one more than the greatest number in any of the masks."""
    ignored = [*ignore, IGNORED]
    greatest = -1
    for path in masks:
        numbers = read_mask(path)
        numbers = numbers[~np.isin(numbers, ignored)]
        if numbers.min(initial=0) < 0 or numbers.max(initial=0) > IGNORED:
            wrong = numbers.min() if numbers.min() < 0 else numbers.max()
            raise ValueError(
                f"{path} holds label {wrong}: classes are 0 to {IGNORED - 1}, and {IGNORED} is ignored "
                f"(--data.ignore {' '.join(map(str, [*ignore, wrong]))} leaves out the pixels of this label, too)"
            )
        greatest = max(greatest, int(numbers.max(initial=-1)))
    if greatest < 1:
        found = "class 0 only" if greatest == 0 else "no class at all"
        raise ValueError(
            f"training masks of {root} hold {found}: there must be two classes or more "
            f"({', '.join(map(str, ignored))} is ignored; two classes are 0 and 1)"
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
