"""Sources by the names of timm's readers: torchvision's datasets, Hugging Face's hub, shards of webdataset."""

from functools import partial
from pathlib import Path
from typing import Any

from timm.data import create_dataset, create_reader

from ..lite.decode import first_line
from .config import DataConfig
from .datasets import HubDataset, ImageDataset, StreamingDataset, WrappedDataset, check_classes
from .splits import Source, by_split, canonical, choose_split, folder_splits, with_val

TWO_SPLITS = ("cifar10", "cifar100", "mnist", "kmnist", "fashion_mnist", "qmnist")
"""Datasets of torchvision that have training and test images only."""


def from_reader(prefix: str, data: DataConfig, *, share: bool) -> Source:
    """timm's own names: torch/cifar10, hfds/owner/name, wds/name."""
    if prefix != "hfds" and not (data.root and Path(data.root).exists()):
        raise ValueError(f"{data.source} needs the folder that holds it: --data.root DIR, got {data.root}")
    create = partial(create_dataset, data.source, root=data.root)
    try:
        if prefix == "wds":
            return _from_webdataset(create, data)
        return _from_hub(create, data, share=share) if prefix == "hfds" else _from_torchvision(create, data, share=share)
    except (AssertionError, RuntimeError, ImportError, LookupError, AttributeError, TypeError) as error:
        raise ValueError(f"{data.source} cannot be opened: {first_line(error)}") from error


def _from_hub(create: Any, data: DataConfig, *, share: bool) -> Source:
    """A dataset of Hugging Face's hub. Parts of splits have its own notation, such as train[:90%]."""
    reader = create(split=data.train, is_training=True).reader
    index, train = reader.class_to_idx, HubDataset(reader)
    classes = tuple(sorted(index, key=index.get)) or _numbered(train)
    splits = by_split({name: name for name in reader.dataset.info.splits}, data.source)
    if "[" in data.val:
        splits[canonical(data.val)] = data.val
    return with_val(train, lambda name: HubDataset(create(split=name).reader), splits, classes, data, share=share)


def _from_torchvision(create: Any, data: DataConfig, *, share: bool) -> Source:
    """One of torchvision's datasets: those with two splits, a folder of class folders, or one that has names of its own."""
    name, splits = data.source.removeprefix("torch/"), {canonical(data.val): data.val}
    if name in TWO_SPLITS:
        splits = {"train": "train", "test": "test"}
    elif name in ("image_folder", "folder"):
        splits = {split: path.name for split, path in folder_splits(Path(str(data.root))).items()}

    def opened(split: str, *, training: bool = False) -> WrappedDataset:
        part = "train" if training else "val"
        return WrappedDataset(create(split=split, is_training=training), f"{data.source} {part}")

    if "train" in splits:  # else timm would take whatever is there
        choose_split(data.train, splits, data.source)
    train = opened(data.train, training=True)
    classes = tuple(str(name) for name in getattr(train.dataset, "classes", ())) or _numbered(train)
    if len(set(classes)) < len(classes):  # as of ImageNet, which has two cranes
        classes = tuple(f"{name} {number}" if classes.count(name) > 1 else name for number, name in enumerate(classes))
    return with_val(train, opened, splits, classes, data, share=share)


def _numbered(images: ImageDataset) -> tuple[str, ...]:
    """Names of classes that have none: their numbers."""
    labels = images.labels()
    if labels is None:
        labels = [images.load(index, 3)[1] for index in range(len(images))]
    return tuple(map(str, range(max(labels) + 1)))


def _from_webdataset(create: Any, data: DataConfig) -> Source:
    """Shards of webdataset, with the number of samples of each split and the class names in `_info.json`.

    No share of a stream can be split off: without a validation split, name shards of the training split by `data.val`.
    """

    def opened(split: str, training: bool, seed: int) -> Any:
        return create(split=split, is_training=training, batch_size=1, seed=seed)

    reader = create_reader(data.source, root=data.root, split=data.train)
    splits = by_split({name: name for name in reader.info.get("splits", ())}, data.source)
    if "tar" in data.val or ".." in data.val or not splits:  # names of shards
        splits[canonical(data.val)] = data.val
    name = choose_split(data.val, splits, data.source)
    train, val = partial(opened, data.train, True), partial(opened, name, False)
    lengths = len(train(0)), len(val(0))
    names = reader.info.get("class_names", ())
    if not all(lengths) or not names:
        raise ValueError(f"{data.root}/_info.json must give num_samples of both splits and class_names")
    about = create_reader(data.source, root=data.root, split=name).split_info
    counts = about.shard_lengths or ("",) * len(about.filenames)
    if len(counts) != len(about.filenames):
        files = len(about.filenames)
        raise ValueError(f"{data.root}/_info.json gives {len(counts)} shard_lengths of {name} for {files} filenames")
    shards = tuple(f"{file}\t{count}" for file, count in zip(about.filenames, counts, strict=True))
    images = StreamingDataset(train, lengths[0]), StreamingDataset(val, lengths[1], shards)
    classes = check_classes(tuple(map(str, names)), f"{data.root}/_info.json")
    return Source(*images, classes, split=canonical(data.val))
