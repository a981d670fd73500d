"""Pictures one by one, with what is known of each."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image
from typing_extensions import override

from ..plain.decode import BadPictureError, decode
from ..plain.wording import first_line


class Pictures(Protocol):
    """Labelled pictures in a fixed order."""

    @abstractmethod
    def __len__(self) -> int:
        """How many."""

    @abstractmethod
    def name(self, index: int) -> str:
        """What to call the picture in a message."""

    @abstractmethod
    def load(self, index: int, channels: int) -> tuple[Image.Image, Any]:
        """Picture, and what is known of it: for classification, the number of its class."""

    def labels(self) -> Sequence[int] | None:
        """Classes of all, where they can be told without reading pictures."""
        return None

    def files(self) -> Sequence[str] | None:
        """Names of all files without their folders, where they can be told at once."""
        return None

    def digest(self) -> str:
        """A hash of what is known of the pictures, where that is in one file of its own."""
        return ""


@dataclass(frozen=True)
class ReaderPictures(Pictures):
    """What one of timm's readers finds."""

    reader: Any
    known: Sequence[int] | None = None

    def __len__(self) -> int:
        return len(self.reader)

    @override
    def name(self, index: int) -> str:
        return str(self.reader.filename(index, absolute=True) or f"picture {index}")

    @override
    def load(self, index: int, channels: int) -> tuple[Image.Image, int]:
        try:
            opened, label = self.reader[index][:2]
        except OSError as error:
            raise BadPictureError(f"{self.name(index)} cannot be read: {error.strerror or first_line(error)}") from error
        return decode(opened, self.name(index), channels), int(label)

    @override
    def labels(self) -> Sequence[int] | None:
        return self.known

    @override
    def files(self) -> Sequence[str] | None:
        count = range(len(self) if self.known is not None else 0)
        return [Path(self.reader.filename(index, absolute=True)).name for index in count] or None


@dataclass(frozen=True)
class FilePictures(Pictures):
    """Files without classes: all are of class 0."""

    paths: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)

    @override
    def name(self, index: int) -> str:
        return self.paths[index]

    @override
    def load(self, index: int, channels: int) -> tuple[Image.Image, int]:
        try:
            opened = Path(self.paths[index]).open("rb")  # noqa: SIM115  closed by `decode`
        except OSError as error:
            raise BadPictureError(f"{self.paths[index]} cannot be read: {error.strerror}") from error
        return decode(opened, self.paths[index], channels), 0

    @override
    def labels(self) -> Sequence[int] | None:
        return [0] * len(self.paths)

    @override
    def files(self) -> Sequence[str] | None:
        return [Path(path).name for path in self.paths]


@dataclass(frozen=True)
class ArrayPictures(Pictures):
    """Pictures in memory, (N, H, W) of uint8."""

    pixels: np.ndarray[Any, Any]
    classes: Sequence[int]
    called: str

    def __len__(self) -> int:
        return len(self.pixels)

    @override
    def name(self, index: int) -> str:
        return f"{self.called} {index}"

    @override
    def load(self, index: int, channels: int) -> tuple[Image.Image, int]:
        return decode(Image.fromarray(self.pixels[index]), self.name(index), channels), int(self.classes[index])

    @override
    def labels(self) -> Sequence[int]:
        return self.classes


@dataclass(frozen=True)
class DatasetPictures(Pictures):
    """One of torchvision's data sets, which gives (picture, class)."""

    dataset: Any
    called: str

    def __len__(self) -> int:
        return len(self.dataset)

    @override
    def name(self, index: int) -> str:
        return f"{self.called} {index}"

    @override
    def load(self, index: int, channels: int) -> tuple[Image.Image, int]:
        try:
            picture, label = self.dataset[index]
        except (OSError, SyntaxError) as error:
            raise BadPictureError(f"{self.name(index)} cannot be read: {error}") from error
        return decode(picture, self.name(index), channels), int(label)

    @override
    def labels(self) -> Sequence[int] | None:
        targets = getattr(self.dataset, "targets", None)
        return None if targets is None else [int(target) for target in targets]


@dataclass(frozen=True)
class Chosen(Pictures):
    """Some of them."""

    whole: Pictures
    indices: Sequence[int]

    def __len__(self) -> int:
        return len(self.indices)

    @override
    def name(self, index: int) -> str:
        return self.whole.name(self.indices[index])

    @override
    def load(self, index: int, channels: int) -> tuple[Image.Image, Any]:
        return self.whole.load(self.indices[index], channels)

    @override
    def labels(self) -> Sequence[int] | None:
        labels = self.whole.labels()
        return None if labels is None else [labels[index] for index in self.indices]

    @override
    def files(self) -> Sequence[str] | None:
        files = self.whole.files()
        return None if files is None else [files[index] for index in self.indices]


@dataclass(frozen=True)
class Stream:
    """Pictures that come one after the other and cannot be asked for by number: one of timm's iterable data sets.

    `open(training, seed)` gives the data set; it knows of processes and workers by itself.
    """

    open: Callable[[int], Any]
    length: int

    def __len__(self) -> int:
        return self.length
