"""Small images cached in memory, shared by all trials that one process trains."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from PIL import Image
from torch import Tensor
from typing_extensions import override

from ..data.config import DataConfig
from ..data.datasets import ImageDataset, StreamingDataset
from ..data.loader import Transform
from ..data.sources import Source, open_source
from ..data.transforms import ImageTransform, evaluation_transform
from ..training.classify import ClassificationTransform, Classify
from .scale import NO_AUGMENT

CACHE_BYTES = 2**29
"""Size of the cache of the training set, and of that of the validation set; images beyond it are read each time."""


@dataclass
class CachedDataset(ImageDataset):
    """A dataset that keeps the images that were read, as far as they fit."""

    dataset: ImageDataset
    free_bytes: int
    cache: dict[tuple[int, int], tuple[Image.Image, Any]] = field(default_factory=dict)
    names: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    @override
    def name(self, index: int) -> str:
        return self.dataset.name(index)

    @override
    def load(self, index: int, channels: int) -> tuple[Image.Image, Any]:
        found = self.cache.get((index, channels))
        if found is None:
            found = self.dataset.load(index, channels)
            size = _size(found[0])
            if size <= self.free_bytes:
                self.cache[index, channels] = found
                self.free_bytes -= size
        return found

    @override
    def labels(self) -> Sequence[int] | None:
        return self.dataset.labels()

    @override
    def files(self) -> Sequence[str] | None:
        if self.names is None:
            self.names = self.dataset.files()
        return self.names

    @override
    def digest(self) -> str:
        return self.dataset.digest()

    @override
    def entries(self) -> Sequence[str]:
        return self.dataset.entries()


@lru_cache(maxsize=1)
def cached_source(data: DataConfig) -> Source:
    """The recipe's source with cached images; the same object for all trials of a process."""
    source = open_source(data)
    if data.workers != 0:  # each worker process would have a cache of its own
        return source
    train, val = (
        part if isinstance(part, StreamingDataset) else CachedDataset(part, CACHE_BYTES) for part in (source.train, source.val)
    )
    return replace(source, train=train, val=val)


def _size(image: Image.Image) -> int:
    """Bytes of an image in memory: Pillow stores up to four bytes per pixel."""
    return 4 * image.width * image.height


@dataclass
class CachedTransform:
    """A deterministic transform that keeps its outputs, as far as they fit."""

    transform: ImageTransform
    free_bytes: int
    cache: dict[int, tuple[Image.Image, Tensor]] = field(default_factory=dict)
    """id(image) -> (image, output). The image is kept too, so that no other object can get its id."""

    def __call__(self, image: Image.Image) -> Tensor:
        """(C, H, W)."""
        found = self.cache.get(id(image))
        if found is not None:
            return found[1]
        output = self.transform(image)
        size = output.nbytes + _size(image)
        if size <= self.free_bytes:
            self.cache[id(image)] = image, output
            self.free_bytes -= size
        return output


@lru_cache(maxsize=1)
def cached_transform(data: DataConfig) -> CachedTransform:
    """The evaluation transform with cached outputs; the same object for all trials of a process."""
    return CachedTransform(evaluation_transform(data), 2 * CACHE_BYTES)


class CachedClassify(Classify):
    """Classification with cached images, and with cached transforms where images are not augmented."""

    @override
    def transform(self, *, training: bool) -> Transform:
        data = self.recipe.data
        if training and self.recipe.augment != NO_AUGMENT:
            return super().transform(training=True)
        return ClassificationTransform(cached_transform(data) if data.workers == 0 else evaluation_transform(data))

    @override
    def open(self) -> Source:
        return cached_source(self.recipe.data)
