"""Small pictures, read once and kept in memory: the cells that one process trains share them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from PIL import Image
from torch import Tensor
from typing_extensions import override

from ..training.classify import Classify, Labelled
from ..training.loader import Show
from ..training.pictures import Pictures, Stream
from ..training.recipe import DataPart
from ..training.source import Source, open_source
from ..training.view import View, evaluation_view
from .scale import AS_THEY_ARE

ROOM = 2**29
"""Bytes of pictures that are kept in a process, of each half of the data; the others are read each time."""


@dataclass
class Held(Pictures):
    """Pictures that are kept once they were read."""

    whole: Pictures
    room: int
    """Bytes that are left."""
    kept: dict[tuple[int, int], tuple[Image.Image, Any]] = field(default_factory=dict)
    names: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.whole)

    @override
    def name(self, index: int) -> str:
        return self.whole.name(index)

    @override
    def load(self, index: int, channels: int) -> tuple[Image.Image, Any]:
        found = self.kept.get((index, channels))
        if found is None:
            found = self.whole.load(index, channels)
            size = _size(found[0])
            if size <= self.room:
                self.kept[index, channels] = found
                self.room -= size
        return found

    @override
    def labels(self) -> Sequence[int] | None:
        return self.whole.labels()

    @override
    def files(self) -> Sequence[str] | None:
        if self.names is None:
            self.names = self.whole.files()
        return self.names

    @override
    def digest(self) -> str:
        return self.whole.digest()


@lru_cache(maxsize=1)
def held_source(data: DataPart) -> Source:
    """The source that a recipe names, the same one for all cells of a process."""
    source = open_source(data)
    if data.workers != 0:  # other processes read, and each would keep pictures of its own
        return source
    train, val = (part if isinstance(part, Stream) else Held(part, ROOM) for part in (source.train, source.val))
    return replace(source, train=train, val=val)


def _size(picture: Image.Image) -> int:
    """Bytes, as Pillow lays pixels out."""
    return 4 * picture.width * picture.height


@dataclass
class HeldView:
    """A view that is always the same for a picture, and is kept with it."""

    view: View
    room: int
    """Bytes that are left, for pictures and for what is shown of them."""
    kept: dict[int, tuple[Image.Image, Tensor]] = field(default_factory=dict)
    """By the picture's identity, which no other picture can take while this one is kept."""

    def __call__(self, picture: Image.Image) -> Tensor:
        """(C, H, W)."""
        found = self.kept.get(id(picture))
        if found is not None:
            return found[1]
        shown = self.view(picture)
        size = shown.nbytes + _size(picture)
        if size <= self.room:
            self.kept[id(picture)] = picture, shown
            self.room -= size
        return shown


@lru_cache(maxsize=1)
def held_view(data: DataPart) -> HeldView:
    """How pictures are shown when they are not varied, the same one for all cells of a process."""
    return HeldView(evaluation_view(data), 2 * ROOM)


class HeldClassify(Classify):
    """Classification of pictures that are kept."""

    @override
    def show(self, *, training: bool) -> Show:
        data = self.recipe.data
        if training and self.recipe.augment != AS_THEY_ARE:
            return super().show(training=True)
        return Labelled(held_view(data) if data.workers == 0 else evaluation_view(data))

    @override
    def open(self) -> Source:
        return held_source(self.recipe.data)
