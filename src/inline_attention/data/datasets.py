"""Datasets: images by index, each with its label."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from zlib import crc32

import numpy as np
from PIL import Image
from typing_extensions import override

from ..lite.decode import BadImageError, decode, decode_file, why
from ..lite.text import check_names


def file_entry(name: str, path: str | Path) -> str:
    """A line about a file for `fingerprint`: its name and its size in bytes."""
    try:
        return f"{name}\t{Path(path).stat().st_size}"
    except OSError:  # in an archive, or gone
        return name


class ImageDataset(Protocol):
    """Images with labels, in a fixed order."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of images."""

    @abstractmethod
    def name(self, index: int) -> str:
        """Name of the image for messages, such as its path."""

    @abstractmethod
    def load(self, index: int, channels: int) -> tuple[Any, Any]:
        """Image (or bag of tiles) and label: for classification, the number of its class."""

    def labels(self) -> Sequence[int] | None:
        """Classes of all images, if known without reading them."""
        return None

    def files(self) -> Sequence[str] | None:
        """Names of all files without their folders, if known without reading them."""
        return None

    def digest(self) -> str:
        """A hash of the annotations, where they are in a file of their own."""
        return ""

    def entries(self) -> Sequence[str]:
        """A line for each image, for `fingerprint`; here its number and its class."""
        labels = self.labels()
        return [f"{index}\t{'' if labels is None else labels[index]}" for index in range(len(self))]


@dataclass(frozen=True)
class ReaderDataset(ImageDataset):
    """Images of one of timm's readers."""

    reader: Any
    classes: Sequence[int] | None = None

    def __len__(self) -> int:
        return len(self.reader)

    @override
    def name(self, index: int) -> str:
        return str(self.reader.filename(index, absolute=True) or f"image {index}")

    @override
    def load(self, index: int, channels: int) -> tuple[Image.Image, int]:
        try:
            opened, label = self.reader[index][:2]
        except Exception as error:  # the system's, tarfile's and timm's kinds
            raise BadImageError(f"{self.name(index)} cannot be read: {why(error)}") from error
        return decode(opened, self.name(index), channels), int(label)

    @override
    def labels(self) -> Sequence[int] | None:
        return self.classes

    @override
    def files(self) -> Sequence[str] | None:
        count = range(len(self) if self.classes is not None else 0)
        return [Path(self.reader.filename(index, absolute=True)).name for index in count] or None

    @override
    def entries(self) -> Sequence[str]:
        names = self.reader.filenames()
        sizes = [getattr(sample[0], "size", None) for sample in self.reader.samples]  # of files in a tar
        if all(size is not None for size in sizes):
            return [f"{name}\t{size}" for name, size in zip(names, sizes, strict=True)]
        return [file_entry(name, path) for name, path in zip(names, self.reader.filenames(absolute=True), strict=True)]


@dataclass(frozen=True)
class HubDataset(ReaderDataset):
    """A dataset of Hugging Face's hub, whose images have no names."""

    @override
    def labels(self) -> Sequence[int]:
        return [int(label) for label in self.reader.dataset[self.reader.label_key]]

    @override
    def entries(self) -> Sequence[str]:
        return ImageDataset.entries(self)


@dataclass(frozen=True)
class FileDataset(ImageDataset):
    """Files without labels: all have class 0."""

    paths: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)

    @override
    def name(self, index: int) -> str:
        return self.paths[index]

    @override
    def load(self, index: int, channels: int) -> tuple[Image.Image, int]:
        return decode_file(self.paths[index], channels), 0

    @override
    def labels(self) -> Sequence[int] | None:
        return [0] * len(self.paths)

    @override
    def files(self) -> Sequence[str] | None:
        return [Path(path).name for path in self.paths]

    @override
    def entries(self) -> Sequence[str]:
        return [file_entry(Path(path).name, path) for path in self.paths]


@dataclass(frozen=True)
class ArrayDataset(ImageDataset):
    """Images in memory, (N, H, W) of uint8."""

    pixels: np.ndarray[Any, Any]
    classes: Sequence[int]
    title: str

    def __len__(self) -> int:
        return len(self.pixels)

    @override
    def name(self, index: int) -> str:
        return f"{self.title} {index}"

    @override
    def load(self, index: int, channels: int) -> tuple[Image.Image, int]:
        return decode(Image.fromarray(self.pixels[index]), self.name(index), channels), int(self.classes[index])

    @override
    def labels(self) -> Sequence[int]:
        return self.classes

    @override
    def entries(self) -> Sequence[str]:
        """With a checksum of the pixels, which are in memory already."""
        pairs = zip(self.classes, self.pixels, strict=True)
        return [f"{index}\t{label}\t{crc32(image.tobytes())}" for index, (label, image) in enumerate(pairs)]


@dataclass(frozen=True)
class WrappedDataset(ImageDataset):
    """A torchvision dataset, whose items are (image, class)."""

    dataset: Any
    title: str

    def __len__(self) -> int:
        return len(self.dataset)

    @override
    def name(self, index: int) -> str:
        return f"{self.title} {index}"

    @override
    def load(self, index: int, channels: int) -> tuple[Image.Image, int]:
        try:
            image, label = self.dataset[index]
        except Exception as error:  # pillow raises many kinds
            raise BadImageError(f"{self.name(index)} cannot be read: {why(error)}") from error
        return decode(image, self.name(index), channels), int(label)

    @override
    def labels(self) -> Sequence[int] | None:
        targets = getattr(self.dataset, "targets", None)
        if targets is None or getattr(targets, "ndim", 1) != 1:  # QMNIST has eight numbers for each image
            return None
        return [int(target) for target in targets]


@dataclass(frozen=True)
class Subset(ImageDataset):
    """Some images of a dataset."""

    whole: ImageDataset
    indices: Sequence[int]

    def __len__(self) -> int:
        return len(self.indices)

    @override
    def name(self, index: int) -> str:
        return self.whole.name(self.indices[index])

    @override
    def load(self, index: int, channels: int) -> tuple[Any, Any]:
        return self.whole.load(self.indices[index], channels)

    @override
    def labels(self) -> Sequence[int] | None:
        labels = self.whole.labels()
        return None if labels is None else [labels[index] for index in self.indices]

    @override
    def files(self) -> Sequence[str] | None:
        files = self.whole.files()
        return None if files is None else [files[index] for index in self.indices]

    @override
    def entries(self) -> Sequence[str]:
        entries = self.whole.entries()
        return [entries[index] for index in self.indices]


@dataclass(frozen=True)
class StreamingDataset:
    """Images that can only be read one after the other: one of timm's iterable datasets.

    `open(seed)` returns the dataset, which splits itself over processes and workers.
    """

    open: Callable[[int], Any]
    length: int
    shards: tuple[str, ...] = ()
    """Names of its files, with the number of images in each."""

    def __len__(self) -> int:
        return self.length

    def entries(self) -> Sequence[str]:
        """A line for each shard, for `fingerprint`."""
        return self.shards or [str(self.length)]


def check_classes(classes: tuple[str, ...], source: str, count: int | None = None) -> tuple[str, ...]:
    """The names of classes; a ValueError unless each class has a name of its own that can be printed.

    Args:
        classes: names in the order of the classes' numbers.
        source: where they are from, for messages.
        count: how many classes there are, if that is known.
    """
    check_names(classes, source)
    if count not in (None, len(classes)):
        raise ValueError(f"{source} names {len(classes)} classes, and the model has {count}: give one name for each")
    if "" in (stripped := [name.strip() for name in classes]):
        raise ValueError(f"{source}: class {stripped.index('')} has no name, of {len(classes)} classes: name it")
    doubled = [name for name in dict.fromkeys(classes) if classes.count(name) > 1] if len(set(classes)) < len(classes) else []
    if doubled and (doubled != ["crane"] or len(classes) != 1000):  # ImageNet has the bird and the machine
        places = [place for place, name in enumerate(classes) if name == doubled[0]]
        raise ValueError(f"{source}: the classes {places[0]} and {places[1]} are both called {doubled[0]!r}: rename one")
    return classes
