"""Images that go through a model in parts: larger than memory, and read by rows. `large/` has such images."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from torch import nn


class ImageInParts(ABC):
    """In place of a batch of images: models of this package call `run` with themselves, so that wrappers such as DDP see it."""

    @abstractmethod
    def run(self, model: "nn.Module") -> Tensor:
        """What the model gives for this one image."""
