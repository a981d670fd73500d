"""Classification as a task: one class for an image."""

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

from ..data.config import AugmentConfig
from ..data.loader import Batch, Transform
from ..data.sources import Source, open_source, open_split
from ..data.transforms import ImageTransform, evaluation_transform, training_transform
from ..models.finite import check_outputs
from .model_factory import make_model, model_spec
from .task import Meter, Task

MOST_CONFUSION_CLASSES = 2000
"""Classes up to which the confusion matrix is recorded."""


class Classify(Task):
    """Cross entropy; top-1 and top-5."""

    columns: ClassVar[Mapping[str, str]] = {"top1": "top-1 %", "top5": "top-5 %", "loss": "loss"}

    @override
    def open(self) -> Source:
        return open_source(self.recipe.data)

    @override
    def open_split(self, split: str | None, classes: tuple[str, ...]) -> Source:
        return open_split(self.recipe.data, split, classes)

    @override
    def model_spec(self, classes: int) -> tuple[str, dict[str, Any]]:
        return model_spec(self.recipe, classes)

    @override
    def make_model(self, name: str, arguments: dict[str, Any], classes: int) -> nn.Module:
        return make_model(name, arguments)

    @override
    def transform(self, *, training: bool) -> Transform:
        data, augment = self.recipe.data, self.recipe.augment
        return ClassificationTransform(training_transform(data, augment) if training else evaluation_transform(data))

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
class ClassificationTransform:
    """Transforms the image, and leaves its class as it is."""

    transform: ImageTransform

    def __call__(self, image: Image.Image, label: int) -> tuple[Tensor, Tensor]:
        """(pixels (C, H, W), class)."""
        return self.transform(image), torch.tensor(label)


class ClassMeter(Meter):
    """Top-1, top-5, loss, accuracy by class, and the confusion matrix. Shares are in percent."""

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
        self.confusion = MulticlassConfusionMatrix(min(classes, MOST_CONFUSION_CLASSES)).to(device)
        self.loss = MeanMetric().to(device)
        self.support = torch.zeros(classes, dtype=torch.long, device=device)
        self.by_class = torch.empty(0)

    @override
    def update(self, model: nn.Module, batch: Batch) -> None:
        outputs = model(batch.pixels)
        check_outputs(outputs, batch.names)
        logits = outputs.float()[batch.valid]
        labels = batch.targets[batch.valid]
        if not len(labels):
            return
        self.metrics.update(logits, labels)
        self.support += labels.bincount(minlength=self.classes)
        self.loss.update(F.cross_entropy(logits, labels, reduction="none"))
        if self.classes <= MOST_CONFUSION_CLASSES:
            self.confusion.update(logits.argmax(1), labels)

    @override
    def compute(self) -> dict[str, float | None]:
        found = self.metrics.compute()
        self.by_class = found["by_class"]
        return {"top1": 100 * float(found["top1"]), "top5": 100 * float(found["top5"]), "loss": float(self.loss.compute())}

    @override
    def details(self) -> dict[str, Any]:
        """`per_class`: accuracy of each class, None for one without images.

        `confusion`: counts by true class (row) and predicted class (column); empty beyond 2,000 classes.
        """
        matrix = self.confusion.compute() if self.classes <= MOST_CONFUSION_CLASSES else None
        empty = self.accelerator.reduce(self.support, reduction="sum") == 0
        shares = zip(self.by_class, empty, strict=True)
        return {
            "per_class": [None if none else 100 * float(share) for share, none in shares],
            "confusion": [] if matrix is None else matrix.cpu().tolist(),
        }


def mixing(augment: AugmentConfig, classes: int) -> Mixup:
    """timm's mixup and cutmix, which also smooth the labels."""
    return Mixup(
        mixup_alpha=augment.mixup,
        cutmix_alpha=augment.cutmix,
        prob=augment.mix_prob,
        switch_prob=augment.mix_switch,
        label_smoothing=augment.smoothing,
        num_classes=classes,
    )
