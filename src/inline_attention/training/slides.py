"""Slides as a task: what a slide is, from its whole image, read by rows and gone through in parts, forward and back.

Augmentation is by rows: flips, quarter turns, colours. Each process takes whole slides, one at a time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from typing_extensions import override

from ..data.bag_dataset import BagDataset, open_bag_split, open_bags
from ..data.config import AugmentConfig, DataConfig
from ..data.loader import Batch
from ..data.slide_dataset import SlideDataset
from ..data.splits import Source
from ..large.gradients import stream_train
from ..large.stages import ways_through
from ..models.backbone import Backbone
from ..models.finite import check_outputs
from ..models.load_official import read_checkpoint, select_weights
from .config import ModelConfig, Recipe, RunConfig
from .large_input import FileImage, Watch, draw_augmentation, trial_of, unwatched
from .load_trained import metadata_of, spec_of
from .model_factory import make_model, model_spec, weights_path
from .slide_targets import COLUMNS, slide_loss, slide_meter, slide_scores, target_known
from .task import Meter, Task, Trial
from .weights_metadata import classes_of, data_of, make_for_file, task_of


class SlideImage(FileImage):
    """One slide, whose image is opened when a model takes it."""

    @override
    def run(self, model: nn.Module) -> Tensor:
        """Logits, with a graph if gradients are computed."""
        options = self.options
        return stream_train(
            model, self.open(), tokens=options.tokens, folder=options.folder, keep=options.keep, progress=self.watch
        )


@dataclass(frozen=True)
class SlideTransform:
    """From a file to the model's input: which part of it, and what is drawn for it."""

    data: DataConfig
    run: RunConfig
    augment: AugmentConfig | None = None
    """None in evaluation."""

    def __call__(self, path: Path, target: Any) -> tuple[SlideImage, Tensor]:
        """(image, target)."""
        kind = torch.long if isinstance(target, int) else torch.float32
        SlideImage(path, self.data, self.run).open()  # a file that cannot be read is found here
        return SlideImage(path, self.data, self.run, draw_augmentation(self.augment)), torch.tensor(target, dtype=kind)


class Slides(Task):
    """Slides from their images, by a model that `stream` takes at any size."""

    evaluation_batch: ClassVar[int] = 1

    @override
    def open(self) -> Source:
        return open_bags(self.recipe.data, self.recipe.task.target, SlideDataset)

    @override
    def open_split(self, split: str | None, classes: tuple[str, ...]) -> Source:
        return open_bag_split(self.recipe.data, split, self.recipe.task.target, classes, SlideDataset)

    @override
    def suited_to(self, source: Source) -> "Slides":
        """With the kind of labels, and the mean and spread of numbers to be learned."""
        train = source.train
        assert isinstance(train, BagDataset)
        if (at_once := self.recipe.optim.device_batch) != 1:
            raise ValueError(f"slides go through the model one by one: optim.device-batch must be 1, got {at_once}")
        known = target_known(self.recipe.task, train.table)
        return self if known == self.recipe.task else slides_task(replace(self.recipe, task=known))

    @override
    def describe(self, source: Source) -> str:
        train, names = source.train, ", ".join(source.classes)
        assert isinstance(train, BagDataset)
        what = {"class": f"{len(source.classes)} classes", "labels": "labels", "number": "a number"}[train.table.target]
        left = f"; {train.unlabelled:,} files without a line in the table are left out" if train.unlabelled else ""
        return f"whole images by rows; {what}: {names}{left}"

    @override
    def model_spec(self, classes: int) -> tuple[str, dict[str, Any]]:
        return model_spec(self.recipe, classes)

    @override
    def make_model(self, name: str, arguments: dict[str, Any], classes: int) -> nn.Module:
        model = make_model(name, arguments)
        ways_through(model, "--large")
        return model

    @override
    def transform(self, *, training: bool) -> SlideTransform:
        recipe = self.recipe
        return SlideTransform(recipe.data, recipe.run, recipe.augment if training else None)

    @override
    def loss(self, model: nn.Module, batch: Batch, classes: int) -> Tensor:
        return slide_loss(self.recipe.task, self.outputs(model, batch), batch.targets, self.recipe.augment.smoothing)

    @override
    def trial(self, batch: Batch, model: nn.Module, source: Source) -> Trial:
        """A corner of the slide."""
        train, recipe = source.train, self.recipe
        assert isinstance(train, BagDataset)
        images = [SlideImage(path, recipe.data, recipe.run) for path in train.paths]
        return trial_of(batch, images, cast("Backbone", model), recipe.run)

    def outputs(self, model: nn.Module, batch: Batch) -> Tensor:
        """(B, outputs), slide by slide."""
        return torch.cat([model(replace(image, watch=self.watch)) for image in batch.pixels])

    @override
    def meter(self, source: Source, accelerator: Accelerator) -> Meter:
        return slide_meter(self.recipe.task, len(source.classes), accelerator, self.outputs)


class ClassSlides(Slides):
    """A class for each slide."""

    columns: ClassVar[Mapping[str, str]] = COLUMNS["class"]


class LabelSlides(Slides):
    """Several labels for each slide."""

    columns: ClassVar[Mapping[str, str]] = COLUMNS["labels"]


class NumberSlides(Slides):
    """A number for each slide."""

    columns: ClassVar[Mapping[str, str]] = COLUMNS["number"]
    lower_is_better: ClassVar[bool] = True


def slides_task(recipe: Recipe) -> Slides:
    """The task of a recipe; until the table of labels is open, with labels of an unknown kind, that for classes."""
    return {"labels": LabelSlides, "number": NumberSlides}.get(recipe.task.target, ClassSlides)(recipe)


@dataclass(frozen=True)
class SlideModel:
    """A trained model of slides, its task, and the names of what it predicts."""

    model: nn.Module
    name: str
    task: Slides
    classes: tuple[str, ...]
    loaded: str = field(default="")
    """The loader's line about the weights."""

    @torch.no_grad()
    def predict(self, path: Path, watch: Watch = unwatched) -> dict[str, float]:
        """Probabilities of classes, the likeliest first; of labels, in their order; or the number."""
        recipe = self.task.recipe
        outputs = self.model(SlideImage(path, recipe.data, recipe.run, watch=watch))
        check_outputs(outputs, [str(path)])
        scores = slide_scores(recipe.task, outputs)[0].tolist()
        pairs = list(zip(self.classes, scores, strict=True))
        if recipe.task.target == "class":
            pairs.sort(key=lambda pair: -pair[1])
        return dict(pairs)


def load_slides(what: str) -> SlideModel:
    """A model of slides out of a run's folder or a file of weights."""
    path = weights_path(what)
    metadata = metadata_of(path)
    name, arguments = spec_of(metadata, path)
    settings = task_of(metadata, path, {})
    if settings.name != "slides" or settings.target == "auto":
        raise ValueError(f"{path} is no model of slides from their images")
    task = slides_task(Recipe(task=settings, model=ModelConfig(name), data=data_of(metadata, path)))
    classes = classes_of(metadata, path)
    model = make_for_file(path, task.make_model, name, arguments, len(classes))
    state = select_weights(read_checkpoint(path), ema=False, source=str(path))
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(f"{path} does not fit {name}: {' '.join(str(error).split())[:200]}") from error
    return SlideModel(model.eval(), name, task, classes, f"{len(state)} tensors matched")
