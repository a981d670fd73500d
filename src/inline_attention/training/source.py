"""Where pictures come from: folders, archives, timm's readers, and two small sets by name."""

import gzip
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from timm.data import ImageNetInfo, add_img_extensions, create_dataset, create_reader, is_img_extension

from ..plain.opening import ENDINGS
from ..plain.wording import first_line
from .pictures import ArrayPictures, Chosen, DatasetPictures, FilePictures, Pictures, ReaderPictures, Stream
from .recipe import DataPart

NAMED = ("digits", "fashion-mnist")
READERS = ("torch", "hfds", "wds")
FASHION = Path("/usr/share/datasets/fashion-mnist")
FASHION_CLASSES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")
add_img_extensions(ENDINGS)

TRAIN, VAL = ("train", "training"), ("val", "valid", "validation", "test")


@dataclass(frozen=True)
class Source:
    """Pictures to learn from, pictures held out, and what the classes are called."""

    train: Pictures | Stream
    val: Pictures | Stream
    classes: tuple[str, ...]
    bad: tuple[str, ...] = ()
    """What was left out, a line each."""

    def fingerprint(self) -> dict[str, Any]:
        """What a run that goes on must find again."""
        return {"train": _print_of(self.train), "val": _print_of(self.val), "classes": list(self.classes)}


def _print_of(pictures: Pictures | Stream) -> list[int | str]:
    """How many, a hash of the files' names in their order, and one of what is known of them."""
    files = None if isinstance(pictures, Stream) else pictures.files()
    digest = "" if isinstance(pictures, Stream) else pictures.digest()
    names = "" if files is None else blake2b("\n".join(files).encode(), digest_size=16).hexdigest()
    return [len(pictures), names, *([digest] if digest else [])]


def open_source(data: DataPart) -> Source:
    """The source that a recipe names. What is wrong with it is told in one line."""
    prefix, _, rest = data.source.partition("/")
    if data.source == "digits":
        return _digits(data)
    if data.source == "fashion-mnist":
        return _fashion(Path(data.root) if data.root else FASHION)
    if rest and prefix in READERS and not Path(data.source).exists():
        return _from_reader(prefix, data)
    return _from_files(Path(data.source).expanduser(), data)


def _digits(data: DataPart) -> Source:
    """1,797 scanned digits of 8 x 8, inside scikit-learn."""
    from sklearn.datasets import load_digits

    pixels, classes = load_digits(return_X_y=True)
    whole = ArrayPictures((pixels.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8), classes.tolist(), "digit")
    return _split(whole, tuple("0123456789"), data)


def _fashion(folder: Path) -> Source:
    """60,000 + 10,000 grey pictures of 28 x 28, as Zalando packs them."""
    if not (folder / "train-images-idx3-ubyte.gz").is_file():
        raise ValueError(
            f"there is no Fashion-MNIST in {folder}: apt install dataset-fashion-mnist, or give its folder with --data.root"
        )

    def part(name: str) -> Pictures:
        pixels = np.frombuffer(gzip.decompress((folder / f"{name}-images-idx3-ubyte.gz").read_bytes()), np.uint8, offset=16)
        labels = np.frombuffer(gzip.decompress((folder / f"{name}-labels-idx1-ubyte.gz").read_bytes()), np.uint8, offset=8)
        return ArrayPictures(pixels.reshape(-1, 28, 28), labels.tolist(), f"fashion-mnist {name}")

    return Source(part("train"), part("t10k"), FASHION_CLASSES)


def _from_reader(prefix: str, data: DataPart) -> Source:
    """timm's own names: torch/cifar10, hfds/owner/name, wds/name."""
    if prefix != "hfds" and not (data.root and Path(data.root).exists()):
        raise ValueError(f"{data.source} needs the folder that holds it: --data.root DIR, got {data.root}")
    make = partial(create_dataset, data.source, root=data.root)
    try:
        if prefix == "wds":
            return _streams(make, data)
        train, val = make(split=data.train, is_training=True), make(split=data.val)
    except (AssertionError, RuntimeError, ImportError, KeyError, TypeError) as error:
        raise ValueError(f"{data.source} cannot be opened: {first_line(error)}") from error
    if prefix == "hfds":
        named = train.reader.class_to_idx
        classes = tuple(sorted(named, key=named.get)) or _numbered(ReaderPictures(train.reader))
        return Source(ReaderPictures(train.reader), ReaderPictures(val.reader), classes)
    pictures = DatasetPictures(train, f"{data.source} train"), DatasetPictures(val, f"{data.source} val")
    classes = tuple(str(name) for name in getattr(train, "classes", ())) or _numbered(pictures[0])
    return Source(*pictures, classes)


def _numbered(pictures: Pictures) -> tuple[str, ...]:
    """Classes without names."""
    labels = pictures.labels()
    if labels is None:
        labels = [pictures.load(index, 3)[1] for index in range(len(pictures))]
    return tuple(map(str, range(max(labels) + 1)))


def _streams(make: Any, data: DataPart) -> Source:
    """Shards of webdataset: `_info.json` beside them says how many samples a split has, and what classes are called."""

    def opened(split: str, training: bool, seed: int) -> Any:
        return make(split=split, is_training=training, batch_size=1, seed=seed)

    train, val = (partial(opened, data.train, True), partial(opened, data.val, False))
    lengths = len(train(0)), len(val(0))
    names = create_reader(data.source, root=data.root, split=data.train).info.get("class_names", ())
    if not all(lengths) or not names:
        raise ValueError(f"{data.root}/_info.json must say num_samples of both splits and class_names")
    return Source(Stream(train, lengths[0]), Stream(val, lengths[1]), tuple(map(str, names)))


def _from_files(root: Path, data: DataPart) -> Source:
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
    whole, classes = _pictures(train_root or root, None)
    if train_root is None or val_root is None:
        return _split(whole, classes, data)
    return Source(whole, _pictures(val_root, classes)[0], classes)


def _find_split(root: Path, names: tuple[str, ...]) -> Path | None:
    """The folder or the tar that has one of these names."""
    for name in names:
        if (root / name).is_dir():
            return root / name
        if (root / f"{name}.tar").is_file():
            return root / f"{name}.tar"
    return None


def open_pictures(root: Path, classes: tuple[str, ...]) -> Pictures:
    """One folder or tar of class folders, whose classes are known: the validation pictures of a model that is there."""
    if not root.exists():
        raise ValueError(f"there is no folder {root}")
    return _pictures(root, classes)[0]


def by_folder(classes: tuple[str, ...], found: Sequence[str]) -> tuple[str, ...]:
    """Class folders' names in a model's order. ImageNet's folders are called by their WordNet numbers."""
    if len(classes) != 1000 or classes[0] in found or not any(name.startswith("n0") for name in found):
        return classes
    return tuple(ImageNetInfo().label_names())


def open_unlabelled(data: DataPart) -> Source:
    """All pictures below a folder, whatever folders they are in, without classes; a share of them is held out."""
    root = Path(data.source).expanduser()
    files = sorted(str(file) for file in root.rglob("*") if file.is_file() and is_img_extension(file.suffix.lower()))
    if len(files) < 2:
        raise ValueError(f"{root} holds {'one picture' if files else 'no pictures'}: there must be two or more")
    return _split(FilePictures(tuple(files)), ("all",), data)


def _visible(entry: Path) -> bool:
    return entry.is_dir() and not entry.name.startswith(".")


def _pictures(root: Path, known: tuple[str, ...] | None) -> tuple[ReaderPictures, tuple[str, ...]]:
    """All pictures below a folder or in a tar, with the names of their classes."""
    if root.is_dir():
        _check_folders(root)
    try:
        reader = create_reader("", root=str(root))
        index = _class_index(reader)
        if unknown := [name for name in index if known is not None and name not in known]:
            raise ValueError(f"{root} has a class {unknown[0]!r} that is not known; known: {', '.join(known or ())}"[:300])
        if known is not None and tuple(index) != known:
            reader = create_reader("", root=str(root), class_map={name: number for number, name in enumerate(known)})
    except (RuntimeError, AssertionError, OSError) as error:
        raise ValueError(f"{root} holds no pictures: {first_line(error)}") from error
    index = _class_index(reader)
    names = tuple(sorted(index, key=lambda name: index[name]))
    if len(names) < 2:
        raise ValueError(f"{root} has one class, {''.join(names) or 'without a name'}: there is nothing to tell apart")
    return ReaderPictures(reader, _reader_labels(reader)), names


def _check_folders(root: Path) -> None:
    """Classes are named by the folders that hold pictures: each once, none empty, none hidden."""
    if not any(_visible(entry) for entry in root.iterdir()):
        raise ValueError(f"{root} holds no class folders: pictures belong into one folder per class")
    holders: dict[str, Path] = {}
    for folder, _, files in os.walk(root, followlinks=True):
        if not any(is_img_extension(Path(file).suffix.lower()) for file in files):
            continue
        path = Path(folder)
        if path == root:
            raise ValueError(f"{root} holds pictures beside its class folders: they belong into a folder of their class")
        if any(part.startswith(".") for part in path.relative_to(root).parts):
            raise ValueError(f"{path} is a hidden folder with pictures: take it away, or give it a class's name")
        if path.name in holders:
            raise ValueError(f"two folders are one class by their name: {holders[path.name]} and {path}")
        holders[path.name] = path
    for entry in root.iterdir():
        if _visible(entry) and not any(entry == path or entry in path.parents for path in holders.values()):
            raise ValueError(f"{entry} holds no pictures")


def _class_index(reader: Any) -> dict[str, int]:
    """Numbers of classes, by name; timm's two readers call it differently."""
    found: dict[str, int] = getattr(reader, "class_to_idx", None) or reader.class_name_to_idx
    return found


def _reader_labels(reader: Any) -> list[int] | None:
    """Classes of all files of a folder or tar, which timm's readers keep beside their names."""
    targets = getattr(reader, "targets", None)
    if targets is not None:
        return [int(target) for target in targets]
    samples = getattr(reader, "samples", None)
    return None if samples is None else [int(sample[1]) for sample in samples]


def _split(whole: Pictures, classes: tuple[str, ...], data: DataPart) -> Source:
    """Hold out a share of every class, by a hash of each picture's name: the same ones wherever and whenever it is done."""
    labels = whole.labels() or []
    by_class: dict[int, list[tuple[bytes, int]]] = {}
    for index, label in enumerate(labels):
        name = whole.name(index)
        by_class.setdefault(label, []).append((blake2b(Path(name).name.encode()).digest(), index))
    held: set[int] = set()
    for found in by_class.values():
        count = max(1, round(data.val_share * len(found)))
        if len(found) < 2:
            raise ValueError(f"class {classes[labels[found[0][1]]]} has one picture: none could be held out")
        held |= {index for _, index in sorted(found)[: min(count, len(found) - 1)]}
    rest = [index for index in range(len(whole)) if index not in held]
    return Source(Chosen(whole, rest), Chosen(whole, sorted(held)), classes)
