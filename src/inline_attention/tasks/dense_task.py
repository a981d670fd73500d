"""What detection and segmentation have in common: a pyramid of maps under a head, and where the pictures are."""

from abc import abstractmethod
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn
from typing_extensions import override

from ..dense.pyramid import backbone_of, make_pyramid
from ..dense.splits import NoSplitError, Split
from ..models.checkpoints import read_checkpoint, select_weights
from ..training.create import creation
from ..training.lay_in import lay_in
from ..training.recipe import HEADS
from ..training.source import TRAIN, VAL, Source
from ..training.task import Task
from ..training.trained import metadata_of


class DenseTask(Task):
    """A task whose model is a head on a timm model's maps."""

    @property
    def head(self) -> str:
        """The one asked for, or the usual one."""
        task = self.recipe.task
        return HEADS[task.name][0] if task.head == "auto" else task.head

    @override
    def creation(self, classes: int) -> tuple[str, dict[str, Any]]:
        name, arguments = creation(self.recipe, 0)
        del arguments["num_classes"]  # there is no classifier in a pyramid
        return name, arguments

    @override
    def make(self, name: str, arguments: dict[str, Any], classes: int) -> nn.Module:
        return self.on(make_pyramid(name, arguments), classes)

    @abstractmethod
    def look(self, model: nn.Module, picture: Image.Image, device: torch.device) -> Any:
        """What a model says of one picture, at the picture's own size."""

    @abstractmethod
    def on(self, pyramid: Any, classes: int) -> nn.Module:
        """The head on these maps."""

    @override
    def backbone(self, model: nn.Module) -> nn.Module:
        return backbone_of(model)

    @override
    def open(self) -> Source:
        """Splits as the folder has them; without a validation split, a share is held out.

        `data.val train` evaluates on the training pictures: for trying whether a model can learn them at all.
        """
        data, root = self.recipe.data, self._root()
        train, classes, bad = self.read_split(root, "train", None)
        train = self._first(train)
        if self._split() == "train":
            return Source(train, train, classes, bad)
        try:
            val, _, more = self.read_split(root, "val", classes)
            return Source(train, self._first(val), classes, (*bad, *more))
        except NoSplitError:
            pass
        learned, held = hold_out([train.name(index) for index in range(len(train))], data.val_share)
        return Source(train.choose(learned), train.choose(held), classes, bad)

    def open_other(self, classes: tuple[str, ...]) -> Source:
        """Pictures of another folder, for a model that knows these classes: of the split that `data.val` names, else all."""
        try:
            found, _, bad = self.read_split(self._root(), self._split(), classes)
        except NoSplitError:
            if self._split() == "train":
                raise
            found, _, bad = self.read_split(self._root(), "train", classes)
        return Source(found, found, classes, bad)

    def _first(self, pictures: Any) -> Any:
        """As many as the recipe wants."""
        limit = self.recipe.data.limit
        return pictures.choose(range(min(limit, len(pictures)))) if limit else pictures

    def _root(self) -> Path:
        root = Path(self.recipe.data.source).expanduser()
        if not root.is_dir():
            raise ValueError(f"there is no folder {root}")
        return root

    def _split(self) -> Split:
        """The one to evaluate on."""
        name = self.recipe.data.val
        if name not in (*TRAIN, *VAL):
            raise ValueError(f"data.val must be one of {', '.join((*VAL, *TRAIN))}, got {name!r}")
        return "train" if name in TRAIN else "val"

    @override
    def lay_in(self, model: nn.Module, path: Path) -> str:
        """A classifier's weights go into the backbone; a detector's or segmenter's into all, classes as far as they fit."""
        written = metadata_of(path).get("task")
        if written is None:
            return lay_in(self.backbone(model), path, headless=True)
        task = self.recipe.task.name
        if written["name"] != task:
            raise ValueError(f"{path} was trained to {written['name']}: start from a classifier, or from a model to {task}")
        state = select_weights(read_checkpoint(path), ema=False, source=str(path))
        own = model.state_dict()
        if strange := [name for name in state if name not in own] or [name for name in own if name not in state]:
            raise ValueError(f"{path} is of another model than {self.recipe.model.name} with {self.head}: {strange[0]}")
        fitting = {name: value for name, value in state.items() if value.shape == own[name].shape}
        model.load_state_dict({**own, **fitting})
        left = sorted(set(state) - set(fitting))
        return f"{len(fitting)} tensors matched" + (f", left out for their size: {', '.join(left)}" if left else "")

    @abstractmethod
    def read_split(
        self, root: Path, split: Split, known: tuple[str, ...] | None
    ) -> tuple[Any, tuple[str, ...], tuple[str, ...]]:
        """Pictures of a split, the names of classes, and what was left out."""


def hold_out(names: Sequence[str], share: float) -> tuple[list[int], list[int]]:
    """(learned from, held out), by a hash of the files' names: the same ones wherever and whenever it is done."""
    if len(names) < 2:
        raise ValueError(f"there is one picture, {''.join(names) or 'or none'}: none could be held out (--data.val train)")
    order = sorted(range(len(names)), key=lambda index: blake2b(Path(names[index]).name.encode()).digest())
    held = order[: min(max(1, round(share * len(names))), len(names) - 1)]
    return sorted(set(order) - set(held)), sorted(held)
