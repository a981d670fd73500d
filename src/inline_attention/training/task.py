"""What a run learns: pictures, a model, a loss, and the numbers it is judged by. The engine knows nothing else of it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from accelerate import Accelerator
from torch import Tensor, nn

from .lay_in import lay_in
from .loader import Batch, Show
from .recipe import Recipe
from .source import Source


class Meter(ABC):
    """Counts over all pictures of an evaluation, in every process; what is told in the end is of all processes."""

    @abstractmethod
    def observe(self, model: nn.Module, batch: Batch) -> None:
        """Let the model see a batch, and count what it says; places that are not valid count for nothing."""

    @abstractmethod
    def numbers(self) -> dict[str, float | None]:
        """By the names of `Task.columns`; None for what cannot be told of these pictures. Every process must ask."""

    @abstractmethod
    def details(self) -> dict[str, Any]:
        """What is kept beside the numbers, such as a row for each class. After `numbers`."""


class Task(ABC):
    """A recipe's task.

    Args:
        recipe: says all that can be chosen.
    """

    columns: ClassVar[Mapping[str, str]]
    """Numbers of an evaluation, and what they are called in tables; the first is the one that weights are chosen by."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    @property
    def judged(self) -> str:
        """The number that decides which weights are the best; more is better."""
        return next(iter(self.columns))

    @abstractmethod
    def open(self) -> Source:
        """The pictures that the recipe names."""

    @abstractmethod
    def creation(self, classes: int) -> tuple[str, dict[str, Any]]:
        """Name and arguments of the timm model, for `make` and for files of weights."""

    @abstractmethod
    def make(self, name: str, arguments: dict[str, Any], classes: int) -> nn.Module:
        """The model."""

    def backbone(self, model: nn.Module) -> nn.Module:
        """The part that comes from timm, into which published weights are laid."""
        return model

    def lay_in(self, model: nn.Module, path: Path) -> str:
        """Lay a file's weights into the model; what is said of it."""
        return lay_in(self.backbone(model), path)

    @abstractmethod
    def show(self, *, training: bool) -> Show:
        """How pictures are shown: varied in training, fixed in evaluation."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch, classes: int) -> Tensor:
        """Of a micro-batch, all of whose places are valid."""

    @abstractmethod
    def meter(self, source: Source, accelerator: Accelerator) -> Meter:
        """A new count, for the pictures held out."""
