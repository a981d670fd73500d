"""Where images come from: class folders, archives, timm's readers, and two small sets by name."""

import gzip
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from timm.data import ImageNetInfo, create_dataset, create_reader, is_img_extension

from ..compat import add_image_suffixes
from ..lite.decode import first_line
from ..lite.image_paths import IMAGE_SUFFIXES, images_below
from .config import DataConfig
from .datasets import (
    ArrayDataset,
    FileDataset,
    ImageDataset,
    ReaderDataset,
    StreamingDataset,
    Subset,
    WrappedDataset,
    check_classes,
)

NAMED = ("digits", "fashion-mnist")
READERS = ("torch", "hfds", "wds")
FASHION = Path("/usr/share/datasets/fashion-mnist")
FASHION_CLASSES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")

TRAIN, VAL = ("train", "training"), ("val", "valid", "validation", "test")


@dataclass(frozen=True)
class Source:
    """A training set, a validation set, and the names of the classes."""

    train: ImageDataset | StreamingDataset
    val: ImageDataset | StreamingDataset
    classes: tuple[str, ...]
    bad: tuple[str, ...] = ()
    """A line for each image or annotation that was left out."""
    labelled: bool = True
    """Whether the images' labels are these classes."""

    def fingerprint(self) -> dict[str, Any]:
        """Compared when a run is resumed: the images must be the same."""
        return {"train": _fingerprint_of(self.train), "val": _fingerprint_of(self.val), "classes": list(self.classes)}


def _fingerprint_of(images: ImageDataset | StreamingDataset) -> list[int | str]:
    """Number of images, a hash of the file names in their order, and one of the annotations."""
    files = None if isinstance(images, StreamingDataset) else images.files()
    digest = "" if isinstance(images, StreamingDataset) else images.digest()
    names = "" if files is None else blake2b("\n".join(files).encode(), digest_size=16).hexdigest()
    return [len(images), names, *([digest] if digest else [])]


def open_source(data: DataConfig) -> Source:
    """Open the source that a recipe names. Errors are ValueErrors of one line."""
    if not data.source.strip():
        raise ValueError(f"data.source must not be empty, got {data.source!r}: give a folder, or the name of a source")
    prefix, _, rest = data.source.partition("/")
    if data.source == "digits":
        return _digits(data)
    if data.source == "fashion-mnist":
        return _fashion(Path(data.root) if data.root else FASHION)
    if rest and prefix in READERS and not Path(data.source).exists():
        return _from_reader(prefix, data)
    return _from_files(Path(data.source).expanduser(), data)


def same_images(one: DataConfig, other: DataConfig) -> bool:
    """Whether both open the same images, however they are transformed."""
    return all(getattr(one, name) == getattr(other, name) for name in ("source", "root", "train", "val", "val_share"))


def _digits(data: DataConfig) -> Source:
    """1,797 scanned digits of 8 x 8, inside scikit-learn."""
    from sklearn.datasets import load_digits

    pixels, classes = load_digits(return_X_y=True)
    whole = ArrayDataset((pixels.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8), classes.tolist(), "digit")
    return _split(whole, tuple("0123456789"), data)


def _fashion(folder: Path) -> Source:
    """60,000 + 10,000 grey images of 28 x 28, as Zalando packs them."""
    if not (folder / "train-images-idx3-ubyte.gz").is_file():
        raise ValueError(
            f"there is no Fashion-MNIST in {folder}: apt install dataset-fashion-mnist, or give its folder with --data.root"
        )

    def split(name: str) -> ImageDataset:
        pixels = np.frombuffer(gzip.decompress((folder / f"{name}-images-idx3-ubyte.gz").read_bytes()), np.uint8, offset=16)
        labels = np.frombuffer(gzip.decompress((folder / f"{name}-labels-idx1-ubyte.gz").read_bytes()), np.uint8, offset=8)
        return ArrayDataset(pixels.reshape(-1, 28, 28), labels.tolist(), f"fashion-mnist {name}")

    return Source(split("train"), split("t10k"), FASHION_CLASSES)


def _from_reader(prefix: str, data: DataConfig) -> Source:
    """timm's own names: torch/cifar10, hfds/owner/name, wds/name."""
    if prefix != "hfds" and not (data.root and Path(data.root).exists()):
        raise ValueError(f"{data.source} needs the folder that holds it: --data.root DIR, got {data.root}")
    create = partial(create_dataset, data.source, root=data.root)
    try:
        if prefix == "wds":
            return _from_webdataset(create, data)
        train, val = create(split=data.train, is_training=True), create(split=data.val)
    except (AssertionError, RuntimeError, ImportError, KeyError, TypeError) as error:
        raise ValueError(f"{data.source} cannot be opened: {first_line(error)}") from error
    if prefix == "hfds":
        index = train.reader.class_to_idx
        classes = tuple(sorted(index, key=index.get)) or _numbered(ReaderDataset(train.reader))
        return Source(ReaderDataset(train.reader), ReaderDataset(val.reader), classes)
    images = WrappedDataset(train, f"{data.source} train"), WrappedDataset(val, f"{data.source} val")
    classes = tuple(str(name) for name in getattr(train, "classes", ())) or _numbered(images[0])
    if len(set(classes)) < len(classes):  # as of ImageNet, which has two cranes
        classes = tuple(f"{name} {number}" if classes.count(name) > 1 else name for number, name in enumerate(classes))
    return Source(*images, classes)


def _numbered(images: ImageDataset) -> tuple[str, ...]:
    """Names of classes that have none: their numbers."""
    labels = images.labels()
    if labels is None:
        labels = [images.load(index, 3)[1] for index in range(len(images))]
    return tuple(map(str, range(max(labels) + 1)))


def _from_webdataset(create: Any, data: DataConfig) -> Source:
    """Shards of webdataset, with the number of samples of each split and the class names in `_info.json`."""

    def opened(split: str, training: bool, seed: int) -> Any:
        return create(split=split, is_training=training, batch_size=1, seed=seed)

    train, val = (partial(opened, data.train, True), partial(opened, data.val, False))
    lengths = len(train(0)), len(val(0))
    names = create_reader(data.source, root=data.root, split=data.train).info.get("class_names", ())
    if not all(lengths) or not names:
        raise ValueError(f"{data.root}/_info.json must give num_samples of both splits and class_names")
    classes = check_classes(tuple(map(str, names)), f"{data.root}/_info.json")
    return Source(StreamingDataset(train, lengths[0]), StreamingDataset(val, lengths[1]), classes)


def _from_files(root: Path, data: DataConfig) -> Source:
    if not root.exists():
        raise ValueError(f"there is no folder {root}; sources by name: {', '.join(NAMED)}, {'/..., '.join(READERS)}/...")
    train_root, val_root = (_find_split(root, names) if root.is_dir() else None for names in (TRAIN, VAL))
    if train_root is not None and train_root.is_dir() and not any(entry.is_dir() for entry in train_root.iterdir()):
        train_root = val_root = None  # a class of this name
    if (
        train_root is None
        and val_root is not None
        and not any(_visible(entry) for entry in root.iterdir() if entry != val_root)
    ):
        raise ValueError(f"{root} has {val_root.name}/ but no train/")
    whole, classes = _images(train_root or root, None)
    if train_root is None or val_root is None:
        return _split(whole, classes, data)
    return Source(whole, _images(val_root, classes)[0], classes)


def _find_split(root: Path, names: tuple[str, ...]) -> Path | None:
    """The folder or the tar that has one of these names."""
    for name in names:
        if (root / name).is_dir():
            return root / name
        if (root / f"{name}.tar").is_file():
            return root / f"{name}.tar"
    return None


def open_validation_set(root: Path, classes: tuple[str, ...]) -> ImageDataset:
    """A folder or tar of class folders, as a validation set for a model with these classes."""
    if not root.exists():
        raise ValueError(f"there is no folder {root}")
    return _images(root, classes)[0]


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
    return _split(FileDataset(tuple(files)), ("all",), data)


def _visible(entry: Path) -> bool:
    return entry.is_dir() and not entry.name.startswith(".")


def _images(root: Path, known: tuple[str, ...] | None) -> tuple[ReaderDataset, tuple[str, ...]]:
    """All images below a folder or in a tar, with the names of their classes."""
    add_image_suffixes(IMAGE_SUFFIXES)
    if root.is_dir():
        _check_folders(root)
    try:
        reader = create_reader("", root=str(root))
        index = _class_index(reader)
        if unknown := [name for name in index if known is not None and name not in known]:
            raise ValueError(f"{root} has an unknown class {unknown[0]!r}; the classes are: {', '.join(known or ())}"[:300])
        if known is not None and tuple(index) != known:
            reader = create_reader("", root=str(root), class_map={name: number for number, name in enumerate(known)})
    except (RuntimeError, AssertionError, OSError) as error:
        raise ValueError(f"{root} holds no images: {first_line(error)}") from error
    index = _class_index(reader)
    names = tuple(sorted(index, key=lambda name: index[name]))
    if len(names) < 2:
        raise ValueError(f"{root} has one class, {''.join(names) or 'without a name'}: at least two classes are needed")
    return ReaderDataset(reader, _reader_labels(reader)), names


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


def _split(whole: ImageDataset, classes: tuple[str, ...], data: DataConfig) -> Source:
    """Split off a share of every class for validation, by a hash of each file name: the same split on every machine."""
    labels = whole.labels() or []
    by_class: dict[int, list[tuple[bytes, int]]] = {}
    for index, label in enumerate(labels):
        name = whole.name(index)
        by_class.setdefault(label, []).append((blake2b(Path(name).name.encode()).digest(), index))
    val: set[int] = set()
    for found in by_class.values():
        count = max(1, round(data.val_share * len(found)))
        if len(found) < 2:
            raise ValueError(f"class {classes[labels[found[0][1]]]} has one image: none is left for validation")
        val |= {index for _, index in sorted(found)[: min(count, len(found) - 1)]}
    train = [index for index in range(len(whole)) if index not in val]
    return Source(Subset(whole, train), Subset(whole, sorted(val)), classes)
