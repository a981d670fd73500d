"""Classification as a task: one class for a picture."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from PIL import Image
from timm.data import Mixup
from torch import Tensor, nn
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix
from typing_extensions import override

from .create import creation, make_model
from .loader import Batch, Show
from .recipe import AugmentPart
from .source import Source, open_source
from .task import Meter, Task
from .view import View, evaluation_view, training_view

LARGEST_CONFUSION = 2000
"""Classes up to which the whole confusion matrix is kept."""


class Classify(Task):
    """Cross entropy; top-1 and top-5."""

    columns: ClassVar[Mapping[str, str]] = {"top1": "top-1 %", "top5": "top-5 %", "loss": "loss"}

    @override
    def open(self) -> Source:
        return open_source(self.recipe.data)

    @override
    def creation(self, classes: int) -> tuple[str, dict[str, Any]]:
        return creation(self.recipe, classes)

    @override
    def make(self, name: str, arguments: dict[str, Any], classes: int) -> nn.Module:
        return make_model(name, arguments)

    @override
    def show(self, *, training: bool) -> Show:
        data, augment = self.recipe.data, self.recipe.augment
        return Labelled(training_view(data, augment) if training else evaluation_view(data))

    @override
    def loss(self, model: nn.Module, batch: Batch, classes: int) -> Tensor:
        augment = self.recipe.augment
        if augment.mixup or augment.cutmix:
            pixels, targets = mixing(augment, classes)(batch.pixels.clone(), batch.targets)  # mixes in place
            return F.cross_entropy(model(pixels).float(), targets)
        return F.cross_entropy(model(batch.pixels).float(), batch.targets, label_smoothing=augment.smoothing)

    @override
    def meter(self, source: Source, accelerator: Accelerator) -> Meter:
        return ClassMeter(len(source.classes), accelerator)


@dataclass(frozen=True)
class Labelled:
    """Shows a picture, and leaves its class as it is."""

    view: View

    def __call__(self, picture: Image.Image, label: int) -> tuple[Tensor, Tensor]:
        """(pixels (C, H, W), class)."""
        return self.view(picture), torch.tensor(label)


class ClassMeter(Meter):
    """Top-1, top-5, loss, by class, and what is taken for what. Shares are in percent."""

    def __init__(self, classes: int, accelerator: Accelerator) -> None:
        self.classes, self.accelerator = classes, accelerator
        device = accelerator.device
        self.metrics = MetricCollection(
            {
                "top1": MulticlassAccuracy(classes, average="micro"),
                "top5": MulticlassAccuracy(classes, average="micro", top_k=min(5, classes)),
                "by_class": MulticlassAccuracy(classes, average="none"),
            },
            compute_groups=False,
        ).to(device)
        self.confusion = MulticlassConfusionMatrix(min(classes, LARGEST_CONFUSION)).to(device)
        self.loss = MeanMetric().to(device)
        self.support = torch.zeros(classes, dtype=torch.long, device=device)
        self.by_class = torch.empty(0)

    @override
    def observe(self, model: nn.Module, batch: Batch) -> None:
        logits = model(batch.pixels).float()[batch.valid]
        labels = batch.targets[batch.valid]
        if not len(labels):
            return
        self.metrics.update(logits, labels)
        self.support += labels.bincount(minlength=self.classes)
        self.loss.update(F.cross_entropy(logits, labels, reduction="none"))
        if self.classes <= LARGEST_CONFUSION:
            self.confusion.update(logits.argmax(1), labels)

    @override
    def numbers(self) -> dict[str, float | None]:
        found = self.metrics.compute()
        self.by_class = found["by_class"]
        return {"top1": 100 * float(found["top1"]), "top5": 100 * float(found["top5"]), "loss": float(self.loss.compute())}

    @override
    def details(self) -> dict[str, Any]:
        """By class, and by true class (row) and what the model says (column); no such matrix beyond 2,000 classes.

        `per_class` is the share of each class that was recognised, None for one without pictures.
        """
        matrix = self.confusion.compute() if self.classes <= LARGEST_CONFUSION else None
        empty = self.accelerator.reduce(self.support, reduction="sum") == 0
        shares = zip(self.by_class, empty, strict=True)
        return {
            "per_class": [None if none else 100 * float(share) for share, none in shares],
            "confusion": [] if matrix is None else matrix.cpu().tolist(),
        }


def mixing(augment: AugmentPart, classes: int) -> Mixup:
    """timm's mixup and cutmix, which also smooth the labels."""
    return Mixup(
        mixup_alpha=augment.mixup,
        cutmix_alpha=augment.cutmix,
        prob=augment.mix_prob,
        switch_prob=augment.mix_switch,
        label_smoothing=augment.smoothing,
        num_classes=classes,
    )
