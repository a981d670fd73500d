"""What detection and segmentation share: a head on a backbone's feature pyramid, the splits of a folder, trained models."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from PIL import Image
from torch import Tensor, nn
from typing_extensions import override

from ..data.splits import ALL, NoSplitError, Source, canonical, note_on_split, share_note, split_by_name
from ..dense.pyramid import backbone_of, make_pyramid
from ..models.load_official import read_checkpoint, select_weights
from .config import ModelConfig, Recipe
from .load_trained import metadata_of, spec_of
from .model_factory import load_weights, model_spec, weights_path
from .recipe import HEADS
from .task import Task, make_task
from .weights_metadata import classes_of, data_of, make_for_file, task_of

NAMED_CLASSES = 20
"""Classes that are named at the beginning of a run; of more, only the first."""


class DenseTask(Task):
    """A task whose model is a head on the feature maps of a timm model."""

    evaluation_batch: ClassVar[int] = 4

    @property
    def head(self) -> str:
        """The head of the recipe, or the task's default."""
        task = self.recipe.task
        return HEADS[task.name][0] if task.head == "auto" else task.head

    @override
    def model_spec(self, classes: int) -> tuple[str, dict[str, Any]]:
        name, arguments = model_spec(self.recipe, 0)
        del arguments["num_classes"]  # there is no classifier in a pyramid
        return name, arguments

    @override
    def make_model(self, name: str, arguments: dict[str, Any], classes: int) -> nn.Module:
        return self.add_head(make_pyramid(name, arguments), classes)

    @override
    def describe(self, source: Source) -> str:
        names = ", ".join(source.classes[:NAMED_CLASSES]) + ", ..." * (len(source.classes) > NAMED_CLASSES)
        count = f"{len(source.classes)} class" + "es" * (len(source.classes) > 1)
        return f"{self.learned()}, {count}: {names}"

    def learned(self) -> str:
        """The head and what it is trained on, for a message."""
        return self.head

    @abstractmethod
    def predict(self, model: nn.Module, image: Image.Image, device: torch.device, name: str = "the image") -> Any:
        """The prediction for one image, at the image's own size. Outputs that are not finite raise, with the image's name."""

    @abstractmethod
    def add_head(self, pyramid: Any, classes: int) -> nn.Module:
        """The head on these maps."""

    @override
    def backbone(self, model: nn.Module) -> nn.Module:
        return backbone_of(model)

    @override
    def open(self) -> Source:
        """The folder's splits; without a validation split, a share of the training images.

        `data.val train` evaluates on the training images: a test whether a model can learn them at all.
        """
        data, root = self.recipe.data, self._root()
        split, splits = canonical(data.val), self.splits(root)
        if split not in ("train", "val", *splits):
            raise NoSplitError(root, data.val, splits)
        train, classes, bad = self.read_split(root, "train", None)
        train = self._first(train)
        if split == "train":
            return Source(train, train, classes, bad, split=split)
        if split in splits:
            val, _, more = self.read_split(root, split, classes)
            note = note_on_split(split, splits)
            return Source(train, self._first(val), classes, (*bad, *more), split=split, split_note=note)
        note = share_note(data, "the images" if ALL in splits else "train")
        train_indices, val_indices = split_by_name([train.name(index) for index in range(len(train))], data.val_share)
        return Source(train.choose(train_indices), train.choose(val_indices), classes, bad, split_note=note)

    @override
    def open_split(self, split: str | None, classes: tuple[str, ...]) -> Source:
        root = self._root()
        splits = self.splits(root)
        name = canonical(split or (ALL if ALL in splits else "val"))
        if splits and name not in splits:  # an empty folder is reported by what reads it
            raise NoSplitError(root, split or name, splits)
        found, _, bad = self.read_split(root, name, classes)
        return Source(found, found, classes, bad, split=name, split_note=note_on_split(name, splits))

    def _first(self, images: Any) -> Any:
        """The first `data.limit` images."""
        limit = self.recipe.data.limit
        return images.choose(range(min(limit, len(images)))) if limit else images

    def _root(self) -> Path:
        root = Path(self.recipe.data.source).expanduser()
        if not root.is_dir():
            raise ValueError(f"there is no folder {root}")
        return root

    @override
    def load_weights(self, model: nn.Module, path: Path, state: Mapping[str, Tensor] | None = None) -> str:
        """Load a classifier's weights into the backbone, or a detector's or segmenter's into the whole model.

        Layers whose shape depends on the number of classes are left out where it differs.
        """
        trained_for = metadata_of(path).get("task")
        if trained_for is None:
            return load_weights(self.backbone(model), path, state=state, headless=True)
        task = self.recipe.task.name
        if trained_for["name"] != task:
            raise ValueError(f"{path} was trained to {trained_for['name']}: start from a classifier, or from a model to {task}")
        state = select_weights(read_checkpoint(path), ema=False, source=str(path))
        own = model.state_dict()
        if unknown := [name for name in state if name not in own] or [name for name in own if name not in state]:
            raise ValueError(f"{path} is of another model than {self.recipe.model.name} with {self.head}: {unknown[0]}")
        fitting = {name: value for name, value in state.items() if value.shape == own[name].shape}
        model.load_state_dict({**own, **fitting})
        left_out = sorted(set(state) - set(fitting))
        report = f", left out for their size: {', '.join(left_out)}" if left_out else ""
        return f"{len(fitting)} tensors matched{report}"

    @abstractmethod
    def splits(self, root: Path) -> Mapping[str, Any]:
        """The splits of a folder; 'all' for one that has none."""

    @abstractmethod
    def read_split(self, root: Path, split: str, known: tuple[str, ...] | None) -> tuple[Any, tuple[str, ...], tuple[str, ...]]:
        """Images of a split, the names of classes, and a line for each thing that was left out."""


@dataclass(frozen=True)
class DenseModel:
    """A trained detector or segmenter, its task, and the names of its classes."""

    model: nn.Module
    name: str
    task: DenseTask
    classes: tuple[str, ...]
    loaded: str
    """The loader's line about the weights."""


def load_dense(what: str, inference: str | None = None, side: int | None = None) -> DenseModel:
    """A detector or segmenter out of a run's folder or a file of weights.

    Args:
        what: the folder of a run, or a file of weights that a run wrote.
        inference: 'whole' or 'slide', in place of the run's own.
        side: shorter side that images are resized to for a segmenter, 0 for their own size, in place of the run's own.
    """
    path = weights_path(what)
    metadata = metadata_of(path)
    name, arguments = spec_of(metadata, path)
    options = {name: value for name, value in (("inference", inference), ("side", side)) if value is not None}
    if side is not None and side < 0:
        raise ValueError(f"side must be positive, or 0 for images as they are, got {side}")
    settings = task_of(metadata, path, {})
    if settings.name != "segment" and options:
        raise ValueError(f"{path} is a model to {settings.name}: inference and side are for those that segment")
    recipe = Recipe(task=task_of(metadata, path, options), model=ModelConfig(name), data=data_of(metadata, path))
    task = make_task(recipe)
    if not isinstance(task, DenseTask):
        raise ValueError(f"{path} is a model for bags of tiles: this works with models that detect or segment")
    classes = classes_of(metadata, path)
    model = make_for_file(path, task.make_model, name, arguments, len(classes))
    state = select_weights(read_checkpoint(path), ema=False, source=str(path))
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(f"{path} does not fit {name} with {task.head}: {' '.join(str(error).split())[:200]}") from error
    return DenseModel(model.eval(), name, task, classes, f"{len(state)} tensors matched")
