"""Where images come from: class folders, archives, and two small sets by name."""

import gzip
import os
import struct
import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from timm.data import ImageNetInfo, create_reader, is_img_extension

from ..compat import add_image_suffixes
from ..lite.decode import first_line
from ..lite.image_paths import IMAGE_SUFFIXES, images_below
from ..lite.text import check_names
from .config import DataConfig
from .datasets import ArrayDataset, FileDataset, ImageDataset, ReaderDataset
from .reader_sources import TWO_SPLITS, from_reader
from .splits import ALL, canonical, choose_split, folder_splits, split_off, with_val
from .splits import Source as Source  # for importers

NAMED = ("digits", "fashion-mnist")
READERS = ("torch", "hfds", "wds")
FASHION = Path("/usr/share/datasets/fashion-mnist")
LARGEST_IDX = 2**28
"""Bytes of an unpacked file of Fashion-MNIST, which has 47 million."""
FASHION_CLASSES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")

SOURCE_FIELDS = (
    *("source", "root", "train", "val", "val_share", "limit", "skip_bad"),
    *("images", "masks", "ignore", "class_name", "labels", "columns"),
)
"""Fields of `DataConfig` that decide which images are opened."""


def open_source(data: DataConfig, *, share: bool = True) -> Source:
    """Open the source that a recipe names. Errors are ValueErrors of one line.

    Args:
        data: `val` names the split to score models on, by any spelling.
        share: where there is no validation split, split off a share of the training images; test images are not touched.
    """
    if not data.source.strip():
        raise ValueError(f"data.source must not be empty, got {data.source!r}: give a folder, or the name of a source")
    prefix, _, rest = data.source.partition("/")
    if data.source == "digits":
        return _digits(data)
    if data.source == "fashion-mnist":
        return _fashion(Path(data.root) if data.root else FASHION, data)
    if rest and prefix in READERS and not Path(data.source).exists():
        return from_reader(prefix, data, share=share)
    return _from_files(Path(data.source).expanduser(), data, share=share)


def same_images(one: DataConfig, other: DataConfig) -> bool:
    """Whether both open the same images, however they are transformed."""
    return all(getattr(one, name) == getattr(other, name) for name in SOURCE_FIELDS)


def open_split(data: DataConfig, split: str | None, classes: tuple[str, ...] | None = None) -> Source:
    """One split of a source, as `val`: the one that is asked for, else its validation images, or all of a folder without any.

    Unlike `open_source`, it takes no share of the training images for validation: a NoSplitError names what is there.

    Args:
        data: the source.
        split: which, by any spelling of its name.
        classes: a model's; a folder without training images may lack some of them.
    """
    if data.source == "digits":  # whose validation images are a share by definition
        source = open_source(data)
        chosen = choose_split(split or "val", {"train": source.train, "val": source.val}, data.source)
        return source if chosen is source.val else replace(source, val=chosen, split="train", split_note="")
    root = Path(data.source).expanduser()
    splits = folder_splits(root)
    if "train" in splits or not root.exists() or data.source in NAMED:
        return open_source(replace(data, val=split or "val"), share=False)
    splits = splits or {ALL: root}
    name = split or (ALL if ALL in splits else "val")
    place = choose_split(name, splits, root)
    found = [entry.name for entry in place.iterdir()] if place.is_dir() else []
    images, names = _images(place, None if classes is None else folder_names(classes, found))
    return Source(images, images, names, split=canonical(name))


def before_splits(data: DataConfig) -> DataConfig:
    """The data of a run by an earlier version, which took test images for validation where there was no validation split."""
    root = Path(data.source).expanduser()
    splits = folder_splits(root)
    if data.source.removeprefix("torch/") in TWO_SPLITS:
        splits = {"train": root, "test": root}
    if not splits:
        return data
    return replace(data, val="test" if "test" in splits and "val" not in splits else "validation")


def _digits(data: DataConfig) -> Source:
    """1,797 scanned digits of 8 x 8, inside scikit-learn."""
    from sklearn.datasets import load_digits

    pixels, classes = load_digits(return_X_y=True)
    whole = ArrayDataset((pixels.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8), classes.tolist(), "digit")
    return split_off(whole, tuple("0123456789"), data)


def _fashion(folder: Path, data: DataConfig) -> Source:
    """60,000 + 10,000 grey images of 28 x 28, as Zalando packs them. The validation images are its test images."""
    if not (folder / "train-images-idx3-ubyte.gz").is_file():
        raise ValueError(
            f"there is no Fashion-MNIST in {folder}: apt install dataset-fashion-mnist, or give its folder with --data.root"
        )

    def split(name: str) -> ImageDataset:
        pixels = _read_idx(folder / f"{name}-images-idx3-ubyte.gz", 16, 28 * 28)
        labels = _read_idx(folder / f"{name}-labels-idx1-ubyte.gz", 8, 1)
        if len(pixels) != len(labels) or labels.max() >= len(FASHION_CLASSES):
            raise ValueError(f"{folder}: the {name} images and labels do not fit together, perhaps a file is damaged")
        return ArrayDataset(pixels.reshape(-1, 28, 28), labels.ravel().tolist(), f"fashion-mnist {name}")

    splits = {"train": "train", "val": "t10k", "test": "t10k"}
    return with_val(split("train"), split, splits, FASHION_CLASSES, data)


def _read_idx(path: Path, header: int, length: int) -> NDArray[np.uint8]:
    """(count, length): the bytes after the header of a compressed IDX file."""
    try:
        with gzip.open(path) as file:
            data = file.read(LARGEST_IDX + 1)
        if len(data) > LARGEST_IDX:
            raise ValueError(f"it holds more than {LARGEST_IDX:,} bytes")
        found = np.frombuffer(data, np.uint8, offset=header)
        if not len(found) or len(found) % length:
            raise ValueError(f"{len(data):,} bytes are no header and rows of {length}")
    except (OSError, ValueError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} cannot be read, perhaps it is damaged: {first_line(error)}") from error
    return found.reshape(-1, length)


def _from_files(root: Path, data: DataConfig, *, share: bool) -> Source:
    if not root.exists():
        raise ValueError(f"there is no folder {root}; sources by name: {', '.join(NAMED)}, {'/..., '.join(READERS)}/...")
    splits = folder_splits(root)
    if splits and "train" not in splits:
        raise ValueError(f"{root} has {', '.join(path.name + '/' * path.is_dir() for path in splits.values())} but no train/")
    whole, classes = _images(splits["train"] if splits else root, None)
    return with_val(whole, lambda path: _images(path, classes)[0], splits, classes, data, share=share)


def folder_names(classes: tuple[str, ...], found: Sequence[str]) -> tuple[str, ...]:
    """Names of class folders in a model's order. ImageNet's folders are named by their WordNet ids."""
    if len(classes) != 1000 or classes[0] in found or not any(name.startswith("n0") for name in found):
        return classes
    return tuple(ImageNetInfo().label_names())


def open_unlabelled(data: DataConfig) -> Source:
    """All images below a folder, whatever folders they are in, without classes; a share of them for validation."""
    root = Path(data.source).expanduser()
    files = sorted(str(file) for file in images_below(root))
    if len(files) < 2:
        raise ValueError(f"{root} holds {'one image' if files else 'no images'}: there must be two or more")
    return split_off(FileDataset(tuple(files)), ("all",), data)


def _visible(entry: Path) -> bool:
    return entry.is_dir() and not entry.name.startswith(".")


def _images(root: Path, known: tuple[str, ...] | None) -> tuple[ReaderDataset, tuple[str, ...]]:
    """All images below a folder or in a tar, with the names of their classes."""
    add_image_suffixes(IMAGE_SUFFIXES)
    if root.is_dir():
        _check_folders(root)
    elif not tarfile.is_tarfile(root):
        raise ValueError(f"{root} is neither a folder nor a tar of class folders, or is truncated")
    try:
        reader = _open_reader(root)
        index = _class_index(reader)
        if unknown := [name for name in index if known is not None and name not in known]:
            raise ValueError(f"{root} has an unknown class {unknown[0]!r}; the classes are: {', '.join(known or ())}"[:300])
        if known is not None and tuple(index) != known:
            reader = create_reader("", root=str(root), class_map={name: number for number, name in enumerate(known)})
    except (RuntimeError, AssertionError, OSError, EOFError, struct.error, zlib.error, tarfile.TarError) as error:
        raise ValueError(f"{root} cannot be read: {first_line(error)}") from error
    index = _class_index(reader)
    names = tuple(sorted(index, key=lambda name: index[name]))
    check_names(names, root)
    if len(names) < 2:
        raise ValueError(f"{root} has one class, {''.join(names) or 'without a name'}: at least two classes are needed")
    return ReaderDataset(reader, _reader_labels(reader)), names


def _open_reader(root: Path) -> Any:
    """timm's reader of a folder or tar. A damaged tar would let it raise anything, or read on far behind the end."""
    try:
        if root.is_file():
            with tarfile.open(root) as archive:
                if any(entry.size < 0 for entry in archive):
                    raise ValueError("an entry has a negative size")
        return create_reader("", root=str(root))
    except (tarfile.TarError, EOFError, ValueError, zlib.error) as error:
        raise ValueError(f"{root} cannot be read, perhaps it is damaged: {first_line(error)}") from error


def _check_folders(root: Path) -> None:
    """Each class folder must have its own name, hold images, and not be hidden."""
    if not any(_visible(entry) for entry in root.iterdir()):
        raise ValueError(f"{root} holds no class folders: images belong into one folder per class")
    holders: dict[str, Path] = {}
    for folder, _, files in os.walk(root, followlinks=True):
        if not any(is_img_extension(Path(file).suffix.lower()) for file in files):
            continue
        path = Path(folder)
        if path == root:
            raise ValueError(f"{root} holds images beside its class folders: they belong into a folder of their class")
        if any(part.startswith(".") for part in path.relative_to(root).parts):
            raise ValueError(f"{path} is a hidden folder with images: delete it, or rename it to a class's name")
        if path.name in holders:
            raise ValueError(f"two folders have the name of one class: {holders[path.name]} and {path}")
        holders[path.name] = path
    for entry in root.iterdir():
        if _visible(entry) and not any(entry == path or entry in path.parents for path in holders.values()):
            raise ValueError(f"{entry} holds no images")


def _class_index(reader: Any) -> dict[str, int]:
    """Number of each class, by name; timm's two readers have different names for it."""
    found: dict[str, int] = getattr(reader, "class_to_idx", None) or reader.class_name_to_idx
    return found


def _reader_labels(reader: Any) -> list[int] | None:
    """Classes of all files of a folder or tar, as timm's readers store them."""
    targets = getattr(reader, "targets", None)
    if targets is not None:
        return [int(target) for target in targets]
    samples = getattr(reader, "samples", None)
    return None if samples is None else [int(sample[1]) for sample in samples]
