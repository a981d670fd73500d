"""Splits of a source: which ones there are, which one is asked for, and which images models are scored on."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any, TypeVar

from .config import DataConfig
from .datasets import ImageDataset, StreamingDataset, Subset

SPELLINGS = {"train": ("train", "training"), "val": ("val", "valid", "validation"), "test": ("test", "testing")}
"""The usual splits, and how their names are spelled. Test images are nobody's validation images."""
ALL = "all"
"""The images of a folder that has no splits."""

Found = TypeVar("Found")


class NoSplitError(ValueError):
    """A source does not have the split that is asked for."""

    def __init__(self, where: object, split: str, splits: Iterable[str]) -> None:
        self.splits = tuple(splits)
        super().__init__(f"{where} has no split {split}; there are: {', '.join(self.splits) or 'none'}")


def canonical(name: str) -> str:
    """'train', 'val' or 'test' for any spelling of them; other names as they are.

    Example:
        >>> canonical("validation"), canonical("Test"), canonical("minival")
        ('val', 'test', 'minival')
    """
    return next((split for split, spellings in SPELLINGS.items() if name.lower() in spellings), name)


def by_split(found: Mapping[str, Found], where: object) -> dict[str, Found]:
    """Splits by their canonical names, train, val and test first. Two spellings of one split are a ValueError.

    Example:
        >>> by_split({"test": 1, "extra": 2, "validation": 3}, "my_images")
        {'val': 3, 'test': 1, 'extra': 2}
    """
    lower = {name.lower(): value for name, value in found.items()}
    for names in SPELLINGS.values():
        if len(several := [name for name in names if name in lower]) > 1:
            raise ValueError(f"{where} has {' and '.join(several)}, two names of one split: rename or remove one of them")
    usual = {split: lower[name] for split, names in SPELLINGS.items() for name in names if name in lower}
    return {**usual, **{name: found[name] for name in sorted(found) if canonical(name) not in SPELLINGS}}


def choose_split(split: str, splits: Mapping[str, Found], where: object) -> Found:
    """The split of this name, in any spelling; a NoSplitError names those that there are."""
    if canonical(split) not in splits:
        raise NoSplitError(where, split, splits)
    return splits[canonical(split)]


def note_on_split(split: str, splits: Mapping[str, object]) -> str:
    """What to say of a split that is another one under its name."""
    return "the dataset's test images" if split == "val" and "val" in splits and splits["val"] == splits.get("test") else ""


def folder_splits(root: Path) -> dict[str, Path]:
    """Folders and tars of a folder's splits, each with a folder for each class; none if its folders are classes.

    They are splits where there is a training split, or where all of them have the name of a usual one.
    """
    if not root.is_dir():
        return {}
    folders = {path.name: path for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")}
    tars = {path.stem: path for path in root.glob("*.tar")}
    splits = by_split({**tars, **{name: path for name, path in folders.items() if _usual(name) or _holds_folders(path)}}, root)
    train = splits.get("train")
    if train is not None:
        is_class = train.is_dir() and not _holds_folders(train)
        return {} if is_class else splits
    only = bool(splits) and all(map(_usual, splits)) and all(map(_usual, folders))
    return splits if only and all(path.is_file() or _holds_folders(path) for path in splits.values()) else {}


def _usual(name: str) -> bool:
    return canonical(name) in SPELLINGS


def _holds_folders(path: Path) -> bool:
    return any(entry.is_dir() for entry in path.iterdir())


def fingerprint(entries: Iterable[str]) -> str:
    """16 hex digits that two sets of images share if they are the same: SHA-256 over their entries, whatever the order.

    An entry is the image's name below its split and the size of its file, with its annotations or its mask's size where it
    has any; without a file, its number and its label. No path and no date is in it, so it is the same on every machine.
    """
    return sha256("\n".join(sorted(entries)).encode("utf-8", "surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True)
class Source:
    """A training set, a validation set, and the names of the classes."""

    train: ImageDataset | StreamingDataset
    val: ImageDataset | StreamingDataset
    """What models are scored on: validation images, or those of another split that was asked for."""
    classes: tuple[str, ...]
    bad: tuple[str, ...] = ()
    """A line for each image or annotation that was left out."""
    labelled: bool = True
    """Whether the images' labels are these classes."""
    split: str = "val"
    """Which split `val` is: val, test, train, all, or a name of the source's own."""
    split_note: str = ""
    """Where it comes from, if the source has no such split itself."""

    @cached_property
    def scored(self) -> dict[str, Any]:
        """What scores on `val` are recorded with: the split, how many images it has, and their fingerprint."""
        note = {"split_note": self.split_note} if self.split_note else {}
        return {"split": self.split, **note, "images": len(self.val), "fingerprint": fingerprint(self.val.entries())}

    @property
    def split_text(self) -> str:
        """The split for people: 'val (20 % of train, split off by a hash of the names)'."""
        return f"{self.split} ({self.split_note})" if self.split_note else self.split

    def fingerprint(self) -> dict[str, Any]:
        """Compared when a run is resumed: the images must be the same."""
        return {"train": _fingerprint_of(self.train), "val": _fingerprint_of(self.val), "classes": list(self.classes)}


def _fingerprint_of(images: ImageDataset | StreamingDataset) -> list[int | str]:
    """Number of images, a hash of the file names in their order, and one of the annotations."""
    files = None if isinstance(images, StreamingDataset) else images.files()
    digest = "" if isinstance(images, StreamingDataset) else images.digest()
    names = "" if files is None else blake2b("\n".join(files).encode(errors="surrogateescape"), digest_size=16).hexdigest()
    return [len(images), names, *([digest] if digest else [])]


def with_val(
    train: ImageDataset,
    opener: Callable[[Any], ImageDataset],
    splits: Mapping[str, Any],
    classes: tuple[str, ...],
    data: DataConfig,
    *,
    share: bool = True,
) -> Source:
    """Training images, and those of the split that `data.val` names.

    Args:
        train: the training images.
        opener: opens a split.
        splits: what `opener` takes for each split of the source, by the split's name.
        share: without a validation split, split off a share of the training images.
    """
    name = canonical(data.val)
    if name == "train":
        return Source(train, train, classes, split=name)
    if name == "val" and name not in splits and share:
        return split_off(train, classes, data, "train" if splits else "the images")
    val = opener(choose_split(data.val, splits, data.source))
    return Source(train, val, classes, split=name, split_note=note_on_split(name, splits))


def split_off(whole: ImageDataset, classes: tuple[str, ...], data: DataConfig, what: str = "the images") -> Source:
    """Split off a share of every class for validation, see `split_by_name`."""
    labels = whole.labels()
    if labels is None:
        labels = [whole.load(index, 3)[1] for index in range(len(whole))]
    by_class: dict[int, list[int]] = {}
    for index, label in enumerate(labels):
        by_class.setdefault(label, []).append(index)
    val: set[int] = set()
    for label, indices in by_class.items():
        if len(indices) < 2:
            raise ValueError(f"{data.source}: class {classes[label]} has one image: none is left for validation")
        places = split_by_name([whole.name(index) for index in indices], data.val_share)[1]
        val |= {indices[place] for place in places}
    train = [index for index in range(len(whole)) if index not in val]
    return Source(Subset(whole, train), Subset(whole, sorted(val)), classes, split_note=share_note(data, what))


def split_by_name(names: Sequence[str], share: float) -> tuple[list[int], list[int]]:
    """Indices of (training, validation) by a hash of the file names: the same split on every machine and at every time."""
    if len(names) < 2:
        raise ValueError(f"there is one image, {''.join(names) or 'or none'}: none is left for validation (or data.val train)")
    order = sorted(
        range(len(names)), key=lambda index: blake2b(Path(names[index]).name.encode(errors="surrogateescape")).digest()
    )
    val = order[: min(max(1, round(share * len(names))), len(names) - 1)]
    return sorted(set(order) - set(val)), sorted(val)


def share_note(data: DataConfig, what: str) -> str:
    """What `Source.split_note` says of a share of 'train', or of 'the images' of a folder without splits."""
    return f"{100 * data.val_share:g} % of {what}, split off by a hash of the names"
