"""Folders of images with a folder of masks beside them: the common layouts, and those that are named by patterns."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..lite.decode import BadImageError, first_line, open_pillow, why, without_pillows_limit
from ..lite.image_paths import IMAGE_SUFFIXES
from .splits import ALL, SPELLINGS, Found, by_split, canonical, choose_split

SPLIT = "{split}"
"""Stands in a pattern for the name of a split."""
MASK_MODES = ("1", "L", "P", "I", "I;16", "I;16B")


class FolderPair(NamedTuple):
    """Patterns of a folder of images and of the folder of their masks, relative to the root.

    `{split}` stands for a split's name. A last part with `*`, such as `labels/*_mask.png`, stands for files: `*` is the name
    that an image and its mask share.
    """

    images: str
    masks: str

    def __str__(self) -> str:
        """Both folders, of the training split."""
        return " and ".join(f"{_folder(Path(), part, 'train')}/" for part in self)


CLASS_MASKS = (
    *(FolderPair(f"images/{SPLIT}", f"{name}/{SPLIT}") for name in ("masks", "labels")),
    *(FolderPair(SPLIT, f"{SPLIT}{name}") for name in ("annot", "_labels", "_masks")),
    *(FolderPair(f"{SPLIT}/images", f"{SPLIT}/{name}") for name in ("masks", "labels")),
    *(FolderPair(f"{SPLIT}_images", f"{SPLIT}_{name}") for name in ("masks", "labels")),
    FolderPair(f"img_dir/{SPLIT}", f"ann_dir/{SPLIT}"),
    *(FolderPair("images", name) for name in ("masks", "labels")),
)
"""Folders of images and label maps that are detected; CamVid is `{split}` and `{split}annot`."""
INSTANCE_MASKS = (
    FolderPair("PNGImages", "PedMasks/*_mask.png"),
    FolderPair(f"images/{SPLIT}", f"instances/{SPLIT}"),
    FolderPair(f"{SPLIT}/images", f"{SPLIT}/instances"),
    FolderPair("images", "instances"),
)
"""Folders of images and instance masks that are detected; PennFudan is the first."""

Paths = tuple[tuple[Path, ...], tuple[Path, ...]]
"""Files of images, and of their masks in the same order."""


def find_pair(root: Path, known: Sequence[FolderPair], images: str = "", masks: str = "") -> FolderPair | None:
    """The patterns that are given, or the first of the known ones whose folders are there; None if there is none."""
    if bool(images) != bool(masks):
        missing, given = ("masks", images) if images else ("images", masks)
        raise ValueError(f"data.{missing} is missing: data.images and data.masks name two folders together, got {given!r} only")
    if images:
        for name, pattern in (("images", images), ("masks", masks)):
            if Path(pattern).is_absolute() or ".." in Path(pattern).parts or (SPLIT in images) != (SPLIT in pattern):
                raise ValueError(f"data.{name} must be inside the data's folder, with {SPLIT} in both or none, got {pattern!r}")
        return FolderPair(images, masks)
    for pair in known:
        names = [name for name in _names(root, pair) if canonical(name) in SPELLINGS] if SPLIT in pair.images else [""]
        if any(all(_folder(root, part, name).is_dir() for part in pair) for name in names):
            return pair
    return None


def mask_splits(root: Path, pair: FolderPair) -> dict[str, str]:
    """The splits of such folders, and what `find_masks` takes for each: the name that `{split}` stands for, or a list's.

    A pair without `{split}` has its splits in `train.txt`, `val.txt` and `test.txt`, which list file names without suffix;
    without any of them, the one split is 'all'. Splits of the usual names are there if either folder is, others if both are.
    """
    if SPLIT not in pair.images:
        lists = {path.stem: path.name for path in root.glob("*.txt") if canonical(path.stem) in SPELLINGS}
        return by_split(lists, root) or {ALL: ""}
    needed = {name: any if canonical(name) in SPELLINGS else all for name in _names(root, pair)}
    return by_split({name: name for name, test in needed.items() if test(_is_there(root, part, name) for part in pair)}, root)


def choose_place(split: str, splits: Mapping[str, Found], root: Path) -> Found:
    """The split that is asked for; 'train' is all images of a folder without splits."""
    return splits[ALL] if ALL in splits and canonical(split) == "train" else choose_split(split, splits, root)


def find_masks(root: Path, pair: FolderPair, place: str) -> Paths:
    """Images of a split of `mask_splits` with their masks, ordered by name, or as its list has them."""
    images, masks = (_by_name(root, part, place) for part in pair)
    if place and SPLIT not in pair.images:
        return match_listed(root / place, read_lines(root / place), images, masks)
    return _match(images, masks)


def match_folders(image_folder: Path, mask_folder: Path) -> Paths:
    """All images of a folder with their masks; both folders must have the same file names."""
    return _match(by_stem(image_folder), by_stem(mask_folder))


def match_listed(listing: Path, stems: Sequence[str], images: dict[str, Path], masks: dict[str, Path]) -> Paths:
    """The images that a text file lists, with their masks."""
    seen = set[str]()
    for stem in stems:
        if stem in seen:
            raise ValueError(f"{listing} names {stem} twice")
        for found, what in ((images, "image"), (masks, "mask")):
            if stem not in found:
                where = next(iter(found.values())).parent
                raise ValueError(f"{listing} names {stem}, and there is no such {what} in {where}")
        seen.add(stem)
    return tuple(images[stem] for stem in stems), tuple(masks[stem] for stem in stems)


def by_stem(folder: Path, pattern: str = "*") -> dict[str, Path]:
    """Images of a folder by the part of their name that `*` stands for, sorted; hidden and other files are left out."""
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}")
    before, _, after = pattern.partition("*")
    with_suffix = Path(f"name{after}").suffix.lower() in IMAGE_SUFFIXES
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.suffix.lower() not in IMAGE_SUFFIXES:
            continue
        name = path.name if with_suffix else path.stem
        if not name.startswith(before) or not name.endswith(after) or len(name) < len(before) + len(after):
            continue
        stem = name[len(before) : len(name) - len(after)]
        if stem in found:
            raise ValueError(f"{found[stem]} and {path} have the same name: remove one")
        found[stem] = path
    if not found:
        raise ValueError(f"{folder} holds no images" + f" named like {pattern}" * (pattern != "*"))
    return found


def read_lines(path: Path, *, also_empty: bool = False) -> list[str]:
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


def read_mask(path: Path) -> NDArray[Any]:
    """The numbers (H, W) in a mask file."""
    try:
        with open_pillow(path) as mask, without_pillows_limit():
            mode, numbers = mask.mode, np.asarray(mask)
    except Exception as error:  # Pillow raises many kinds for a broken file
        raise BadImageError(f"{path} cannot be read: {why(error)}") from error
    if mode not in MASK_MODES:
        raise BadImageError(f"{path} is {mode}: a mask holds one number for each pixel, in mode {', '.join(MASK_MODES[:5])}")
    return numbers.astype(np.int64)


def _names(root: Path, pair: FolderPair) -> Iterator[str]:
    """What `{split}` may stand for: the usual names, and those that folders have in its place."""
    yield from (name for names in SPELLINGS.values() for name in names)
    for pattern in pair:
        parts = Path(pattern).parts
        depth = next(depth for depth, part in enumerate(parts) if SPLIT in part)
        named = re.compile(re.escape(parts[depth]).replace(re.escape(SPLIT), "(.+)", 1).replace(re.escape(SPLIT), r"\1"))
        folder = root.joinpath(*parts[:depth])
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.is_dir() and (found := named.fullmatch(path.name)):
                yield found[1]


def _is_there(root: Path, pattern: str, name: str) -> bool:
    """Whether a pattern's folder is there for a split; one of files whose names have the split: whether any of them is."""
    folder, last = _folder(root, pattern, name), Path(pattern).name
    return folder.is_dir() and ("*" not in last or SPLIT not in last or any(folder.glob(last.replace(SPLIT, name))))


def _folder(root: Path, pattern: str, name: str) -> Path:
    """The folder of a pattern, for a split of this name."""
    path = root / pattern.replace(SPLIT, name)
    return path.parent if "*" in path.name else path


def _by_name(root: Path, pattern: str, name: str) -> dict[str, Path]:
    last = Path(pattern).name
    return by_stem(_folder(root, pattern, name), last.replace(SPLIT, name) if "*" in last else "*")


def _match(images: dict[str, Path], masks: dict[str, Path]) -> Paths:
    """Images with the masks of the same names."""
    for ours, theirs, what in ((images, masks, "mask"), (masks, images, "image")):
        for stem, path in ours.items():
            if stem not in theirs:
                where = next(iter(theirs.values())).parent
                raise ValueError(f"{path} has no {what} of its name in {where}")
    return tuple(images.values()), tuple(masks[stem] for stem in images)
