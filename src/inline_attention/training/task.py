"""A task: what a run learns, and how a model is scored.

A `Task` opens the images, makes the model, and computes the loss; its `Meter` computes the metrics. `evaluate_source` scores a
model on the validation set: every image counted once, over however many processes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import broadcast, gather_object
from torch import Tensor, nn

from ..compat import separate_accelerate_state
from ..data.loader import Batch, Transform, evaluation_batches, worker_count
from ..data.sources import Source
from .config import Recipe
from .distributed import make_accelerator
from .model_factory import load_weights


class Meter(ABC):
    """Metrics over all images of an evaluation, as torchmetrics has them: `update` in every process, then `compute`."""

    @abstractmethod
    def update(self, model: nn.Module, batch: Batch) -> None:
        """Predict a batch and count; samples that are not valid are left out. Outputs that are not finite raise."""

    @abstractmethod
    def compute(self) -> dict[str, float | None]:
        """By the names of `Task.columns`; None for what these images do not determine. Every process must call it."""

    @abstractmethod
    def details(self) -> dict[str, Any]:
        """What is recorded beside the metrics, such as a row for each class. After `compute`."""


@dataclass(frozen=True)
class Trial:
    """What a dry run tries in place of a batch, if that would take too long."""

    batch: Batch
    times: float = 1.0
    """How many times as long the batch itself takes."""
    memory: float = 1.0
    """The share of the activations that is there at one time."""
    disk_bytes: int = 0
    """Of the temporary files of the largest image."""
    largest: tuple[int, int] = (0, 0)
    """Its height and width."""


class Task(ABC):
    """A recipe's task.

    Args:
        recipe: all that can be chosen.
    """

    columns: ClassVar[Mapping[str, str]]
    """Metrics of an evaluation, and their titles in tables; the first is the one that selects the best weights."""

    evaluation_batch: ClassVar[int] = 64
    """Images at once in an evaluation outside of a run."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    watch: Callable[[int, int], None] = staticmethod(lambda done, total: None)
    """Called with the progress within one image, by tasks whose images go through the model in parts."""

    lower_is_better: ClassVar[bool] = False
    """Of the first metric."""

    @property
    def main_metric(self) -> str:
        """The metric that selects the best weights."""
        return next(iter(self.columns))

    def improves(self, value: float, best: float | None) -> bool:
        """Whether a value of this metric is better than the best one so far; None if there is none."""
        return best is None or (value < best if self.lower_is_better else value > best)

    @abstractmethod
    def open(self) -> Source:
        """The images that the recipe names."""

    def suited_to(self, source: Source) -> "Task":
        """The same task, or one whose recipe has what the images decide, such as a head without masks."""
        return self

    def describe(self, source: Source) -> str | None:
        """One line for the beginning of a run, about what is learned from these images."""
        return None

    @abstractmethod
    def open_split(self, split: str | None, classes: tuple[str, ...]) -> Source:
        """One split of the images that the recipe names, as `val`, for a model with these classes.

        None for the validation split, or for all images of a folder without splits. A NoSplitError names what is there.
        """

    @abstractmethod
    def model_spec(self, classes: int) -> tuple[str, dict[str, Any]]:
        """Name and arguments of the timm model, for `make_model` and for the metadata of weights."""

    @abstractmethod
    def make_model(self, name: str, arguments: dict[str, Any], classes: int) -> nn.Module:
        """The model."""

    def backbone(self, model: nn.Module) -> nn.Module:
        """The part that comes from timm, which published weights are for."""
        return model

    def load_weights(self, model: nn.Module, path: Path, state: Mapping[str, Tensor] | None = None) -> str:
        """Load a file's weights, or `state` if they were read already, into the model; one line about what matched."""
        return load_weights(self.backbone(model), path, state=state)

    @abstractmethod
    def transform(self, *, training: bool) -> Transform:
        """From an image to the model's input: with random augmentation in training, fixed in evaluation."""

    def trial(self, batch: Batch, model: nn.Module, source: Source) -> Trial:
        """What a dry run times."""
        return Trial(batch)

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch, classes: int) -> Tensor:
        """Loss of a micro-batch, all of whose samples are valid."""

    @abstractmethod
    def meter(self, source: Source, accelerator: Accelerator) -> Meter:
        """New metrics, for the validation set."""


def make_task(recipe: Recipe) -> Task:
    """The task of a recipe. What detection and segmentation need is imported with them."""
    if recipe.task.name == "detect":
        from .detect import detection_task

        return detection_task(recipe)
    if recipe.task.name == "segment" and recipe.task.large:
        from .segment_large import SegmentLarge

        return SegmentLarge(recipe)
    if recipe.task.name == "segment":
        from .segment import Segment

        return Segment(recipe)
    if recipe.task.name == "bags":
        from .bags import bags_task

        return bags_task(recipe)
    if recipe.task.name == "slides":
        from .slides import slides_task

        return slides_task(recipe)
    from .classify import Classify

    return Classify(recipe)


@dataclass(frozen=True)
class Score:
    """The result of an evaluation."""

    metrics: dict[str, float | None]
    """By the names that the task gives them; None for what these images do not determine."""
    details: dict[str, Any]
    """What the task records beside them, such as a row for each class."""
    images: int
    images_per_second: float
    """Of the model alone, without the time spent waiting for images."""
    bad: tuple[str, ...]
    """A line for each image that could not be read, and was left out."""
    split: str = ""
    """Which images: val, test, train, all."""
    fingerprint: str = ""
    """Two scores with different fingerprints are of different images."""


@separate_accelerate_state()
def evaluate_once(
    model: nn.Module,
    task: Task,
    source: Source,
    *,
    device: str = "auto",
    batch: int | None = None,
    workers: int | None = None,
    skip_bad: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Score:
    """Score a model outside of a run, on the validation set of a source.

    Args:
        device: 'auto', 'cpu', or the accelerator that must be there.
        batch: images at once, in each process; None for the task's own number.
        workers: processes that read images; None for as many as there are cores.
        skip_bad: leave out images that cannot be read instead of stopping.
        progress: called with the number of images that are done, and of all.
    """
    if batch is not None and batch < 1:
        raise ValueError(f"batch must be positive, got {batch}")
    before = dist.is_available() and dist.is_initialized()
    accelerator = make_accelerator(task.recipe.run, device)
    score = evaluate_source(
        model.to(accelerator.device),
        task,
        source,
        accelerator,
        batch=batch or task.evaluation_batch,
        workers=worker_count(workers, accelerator.num_processes, len(source.val)),
        skip_bad=skip_bad,
        progress=progress,
    )
    if not before:  # else the group of processes is the caller's
        accelerator.end_training()
    return replace(score, split=source.split, fingerprint=source.scored["fingerprint"])


def evaluate_source(
    model: nn.Module,
    task: Task,
    source: Source,
    accelerator: Accelerator,
    *,
    batch: int,
    workers: int,
    skip_bad: bool | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Score:
    """Score a model on the validation set of a source.

    Args:
        batch: images at once, in each process.
        workers: processes that read images, for each of these processes.
        skip_bad: leave out images that cannot be read instead of stopping; None for the recipe's choice.
        progress: called with the number of images that are done, and of all.
    """
    data, total = task.recipe.data, len(source.val)
    batches = evaluation_batches(
        source.val,
        task.transform(training=False),
        batch,
        rank=accelerator.process_index,
        processes=accelerator.num_processes,
        channels=data.channels,
        workers=workers,
    )
    return evaluate_batches(
        model,
        batches,
        task.meter(source, accelerator),
        accelerator,
        skip_bad=data.skip_bad if skip_bad is None else skip_bad,
        progress=lambda done: progress(min(done, total), total),
    )


@torch.no_grad()
def evaluate_batches(
    model: nn.Module,
    batches: Iterator[Batch],
    meter: Meter,
    accelerator: Accelerator,
    *,
    skip_bad: bool,
    progress: Callable[[int], None] = lambda _: None,
) -> Score:
    """Score a model on batches, once through.

    Args:
        batches: this process's share.
        meter: the metrics.
        skip_bad: leave out images that cannot be read instead of stopping.
        progress: called with the number of images that all processes have done.
    """
    bad: list[str] = []
    failed: list[str] = []
    done, busy = 0, 0.0
    model = _unwrap(model, accelerator)
    was_training = model.training
    model.eval()
    for batch in _in_step(batches, accelerator, failed, skip_bad=skip_bad):
        bad.extend(batch.bad)
        start = perf_counter()
        try:
            with accelerator.autocast():
                meter.update(model, batch.to(accelerator.device))
        except FloatingPointError as error:  # outputs that are not finite: `_in_step` stops all processes
            failed.append(str(error))
        busy += perf_counter() - start
        done += int(batch.valid.sum())
        progress(done * accelerator.num_processes)
    model.train(was_training)
    counted = accelerator.reduce(torch.tensor([float(done), busy], device=accelerator.device), reduction="sum")
    images, seconds = int(counted[0]), float(counted[1]) / accelerator.num_processes
    if not images:
        raise ValueError("there is no image to evaluate on")
    return Score(
        meter.compute(),
        meter.details(),
        images=images,
        images_per_second=images / max(seconds, 1e-9),
        bad=tuple(dict.fromkeys(gather_object(bad))),
    )


def _unwrap(model: nn.Module, accelerator: Accelerator) -> nn.Module:
    """The model without DDP, which would make processes wait for each other at every call; they may differ in number.

    Running statistics of batch norms are taken from the main process, as DDP does.
    """
    bare: nn.Module = accelerator.unwrap_model(model)
    if accelerator.num_processes > 1:
        for buffer in bare.buffers():
            buffer.copy_(broadcast(buffer))
    return bare


def _in_step(batches: Iterator[Batch], accelerator: Accelerator, failed: list[str], *, skip_bad: bool) -> Iterator[Batch]:
    """Batches for as long as any process has one. A process that has none left repeats its last one, counting nothing.

    An image that cannot be read in one process, or a line in its `failed`, stops all of them.
    """
    last: Batch | None = None
    while True:
        batch = next(batches, None)
        bad = batch.bad if batch is not None and not skip_bad else ()
        flags = [batch is not None, bool(failed), bool(bad)]
        more, diverged, stop = accelerator.reduce(torch.tensor(flags, device=accelerator.device).float(), "sum").tolist()
        if diverged:
            raise FloatingPointError(gather_object(failed)[0])
        if stop:
            raise ValueError(f"{gather_object(list(bad))[0]} (--skip-bad goes on without such images)")
        if not more:
            return
        if batch is None:
            if last is None:
                raise ValueError("a process has no images to evaluate on: take fewer processes")
            batch = Batch(last.pixels, last.targets, torch.zeros_like(last.valid), (), last.names)
        last = batch
        yield batch
