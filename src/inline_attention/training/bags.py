"""Bags of tile features as a task: what a slide is, from the features of its tiles on their grid."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from typing_extensions import override

from ..data.bag import Bag, BagTransform, TileOptions, to_maps
from ..data.bag_dataset import BagDataset, open_bag_split, open_bags
from ..data.bag_file import read_bag
from ..data.loader import Batch
from ..data.splits import Source
from ..models.backbone import SMALLEST, Backbone
from ..models.finite import check_outputs
from ..models.load_official import read_checkpoint, select_weights
from .config import ModelConfig, Recipe
from .load_trained import metadata_of, spec_of
from .model_factory import make_model, model_spec, weights_path
from .slide_targets import COLUMNS, slide_loss, slide_meter, slide_scores, target_known
from .task import Meter, Task
from .weights_metadata import classes_of, data_of, make_for_file, task_of


class Bags(Task):
    """Slides from bags of tile features, by any `inline_*` model whose patches are single tiles."""

    evaluation_batch: ClassVar[int] = 1

    @override
    def open(self) -> Source:
        return open_bags(self.recipe.data, self.recipe.task.target)

    @override
    def open_split(self, split: str | None, classes: tuple[str, ...]) -> Source:
        return open_bag_split(self.recipe.data, split, self.recipe.task.target, classes)

    @override
    def suited_to(self, source: Source) -> "Bags":
        """With the kind of labels, the channels of the features, and the mean and spread of numbers to be learned."""
        train, task = source.train, self.recipe.task
        assert isinstance(train, BagDataset)
        if task.target == train.table.target and task.features:
            return self
        known = replace(target_known(task, train.table), features=train.channels())
        return bags_task(replace(self.recipe, task=known))

    @override
    def describe(self, source: Source) -> str:
        train, names = source.train, ", ".join(source.classes)
        assert isinstance(train, BagDataset)
        what = {"class": f"{len(source.classes)} classes", "labels": "labels", "number": "a number"}[train.table.target]
        left = f"; {train.unlabelled:,} files without a line in the table are left out" if train.unlabelled else ""
        return f"bags of tiles, {self.recipe.task.features:,} channels each; {what}: {names}{left}"

    @override
    def model_spec(self, classes: int) -> tuple[str, dict[str, Any]]:
        name, arguments = model_spec(self.recipe, classes)
        return name, {**arguments, "in_chans": self.recipe.task.features}

    @override
    def make_model(self, name: str, arguments: dict[str, Any], classes: int) -> nn.Module:
        model = make_model(name, arguments)
        if not isinstance(model, Backbone):
            raise ValueError(f"{name} takes no mask of tiles: take a model of this package, such as inline_deit_nano")
        if model.patch_size != 1:
            raise ValueError(f"model.args: patch_size is {model.patch_size}, and a patch of a bag is one tile: patch_size=1")
        return model

    @override
    def transform(self, *, training: bool) -> BagTransform:
        task, augment = self.recipe.task, self.recipe.augment
        options = TileOptions(task.features, task.tile_step, task.off_grid)
        if not training:
            return BagTransform(options, task.normalize)
        return BagTransform(options, task.normalize, augment.hflip, augment.vflip, augment.turn, augment.drop_tiles)

    @override
    def loss(self, model: nn.Module, batch: Batch, classes: int) -> Tensor:
        return slide_loss(self.recipe.task, bag_outputs(model, batch), batch.targets, self.recipe.augment.smoothing)

    @override
    def meter(self, source: Source, accelerator: Accelerator) -> Meter:
        return slide_meter(self.recipe.task, len(source.classes), accelerator, bag_outputs)


class ClassBags(Bags):
    """A class for each bag."""

    columns: ClassVar[Mapping[str, str]] = COLUMNS["class"]


class LabelBags(Bags):
    """Several labels for each bag."""

    columns: ClassVar[Mapping[str, str]] = COLUMNS["labels"]


class NumberBags(Bags):
    """A number for each bag."""

    columns: ClassVar[Mapping[str, str]] = COLUMNS["number"]
    lower_is_better: ClassVar[bool] = True


def bags_task(recipe: Recipe) -> Bags:
    """The task of a recipe; until the table of labels is open, with labels of an unknown kind, that for classes."""
    return {"labels": LabelBags, "number": NumberBags}.get(recipe.task.target, ClassBags)(recipe)


def bag_outputs(model: nn.Module, batch: Batch) -> Tensor:
    """(B, outputs) of a batch of bags, each on its own grid, padded to the largest."""
    outputs: Tensor = model(*to_maps(batch.pixels, SMALLEST))
    return outputs


@dataclass(frozen=True)
class BagModel:
    """A trained model of bags, its task, and the names of what it predicts."""

    model: nn.Module
    name: str
    task: Bags
    classes: tuple[str, ...]
    loaded: str
    """The loader's line about the weights."""

    def read(self, path: Path) -> Bag:
        """The bag of a file."""
        return read_bag(path, self.task.transform(training=False).options)

    def inputs(self, bag: Bag, device: torch.device) -> tuple[Tensor, Tensor]:
        """The model's input: the map (1, C, H, W) and its mask (1, H, W)."""
        found = self.task.transform(training=False).inputs(bag)
        return to_maps([{name: value.to(device) for name, value in found.items()}], SMALLEST)

    @torch.no_grad()
    def predict(self, bag: Bag, device: torch.device, name: str = "the bag") -> dict[str, float]:
        """Probabilities of classes, the likeliest first; of labels, in their order; or the number."""
        outputs = self.model(*self.inputs(bag, device))
        check_outputs(outputs, [name])
        scores = slide_scores(self.task.recipe.task, outputs)[0].tolist()
        pairs = list(zip(self.classes, scores, strict=True))
        if self.task.recipe.task.target == "class":
            pairs.sort(key=lambda pair: -pair[1])
        return dict(pairs)


def load_bags(what: str) -> BagModel:
    """A model of bags out of a run's folder or a file of weights."""
    path = weights_path(what)
    metadata = metadata_of(path)
    name, arguments = spec_of(metadata, path)
    settings = task_of(metadata, path, {})
    if settings.name != "bags" or settings.target == "auto" or not settings.features:
        raise ValueError(f"{path} is no model of bags of tiles")
    task = bags_task(Recipe(task=settings, model=ModelConfig(name), data=data_of(metadata, path)))
    classes = classes_of(metadata, path)
    model = make_for_file(path, task.make_model, name, arguments, len(classes))
    state = select_weights(read_checkpoint(path), ema=False, source=str(path))
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(f"{path} does not fit {name}: {' '.join(str(error).split())[:200]}") from error
    return BagModel(model.eval(), name, task, classes, f"{len(state)} tensors matched")
