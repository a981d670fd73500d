"""What is learned of a slide, whatever the model sees of it: a class, several labels, or a number; losses and metrics.

Outputs are (B, classes), (B, labels) or (B, 1); targets (B,), (B, labels) or (B,).
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import isfinite
from typing import Any

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor, nn
from torchmetrics import MeanMetric, Metric, MetricCollection
from torchmetrics.classification import (
    BinaryAccuracy,
    BinaryAUROC,
    BinaryF1Score,
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassConfusionMatrix,
)  # fmt: skip
from torchmetrics.regression import MeanAbsoluteError, MeanSquaredError, PearsonCorrCoef, R2Score
from typing_extensions import override

from ..data.config import Target
from ..data.labels_table import LabelsTable
from ..data.loader import Batch
from ..models.finite import check_outputs
from .config import TaskConfig
from .task import Meter

COLUMNS: dict[Target, dict[str, str]] = {
    "class": {"balanced": "balanced %", "accuracy": "accuracy %", "auc": "AUC", "loss": "loss"},
    "labels": {"auc": "AUC", "accuracy": "accuracy %", "f1": "F1 %", "loss": "loss"},
    "number": {"mae": "MAE", "rmse": "RMSE", "r2": "R2", "pearson": "Pearson r", "loss": "loss"},
}
"""Metrics and their titles; the first selects the best weights. Balanced: the mean of the classes' accuracies."""
Outputs = Callable[[nn.Module, Batch], Tensor]
"""(model, batch) -> the model's outputs."""


def slide_loss(task: TaskConfig, outputs: Tensor, targets: Tensor, smoothing: float = 0.0, *, each: bool = False) -> Tensor:
    """Cross entropy of classes; binary cross entropy of labels; the squared error of numbers, over their variance in training.

    Args:
        task: says which of the three, and the mean and spread of numbers.
        smoothing: of classes' labels.
        each: a loss for each slide, (B,), in place of their mean.
    """
    outputs, reduction = outputs.float(), "none" if each else "mean"
    if task.target == "class":
        return F.cross_entropy(outputs, targets, label_smoothing=smoothing, reduction=reduction)
    if task.target == "labels":
        loss = F.binary_cross_entropy_with_logits(outputs, targets, reduction=reduction)
        return loss.mean(1) if each else loss
    return F.mse_loss(outputs[:, 0], (targets - task.center) / task.spread, reduction=reduction)


def target_known(task: TaskConfig, table: LabelsTable) -> TaskConfig:
    """The task with the kind of labels, and the mean and spread of numbers to be learned, as a table has them."""
    if task.target == table.target:
        return task
    center, spread = 0.0, 1.0
    if table.target == "number":
        numbers = torch.tensor([row.target for row in table.rows], dtype=torch.float64)
        center, spread = float(numbers.mean()), float(numbers.std(correction=0)) or 1.0
    return replace(task, target=table.target, center=center, spread=spread)


def slide_scores(task: TaskConfig, outputs: Tensor) -> Tensor:
    """Outputs as they are read: probabilities of classes or of labels, or the number in its own unit, (B, 1)."""
    outputs = outputs.float()
    if task.target == "class":
        return outputs.softmax(1)
    return outputs.sigmoid() if task.target == "labels" else outputs * task.spread + task.center


def slide_meter(task: TaskConfig, classes: int, accelerator: Accelerator, outputs: Outputs) -> Meter:
    """The metrics of what the task learns.

    Args:
        classes: number of classes, of labels, or 1.
        outputs: predicts a batch.
    """
    kind = {"class": ClassMeter, "labels": LabelsMeter}.get(task.target, NumberMeter)
    meter: Meter = kind(task, classes, accelerator, outputs)
    return meter


class SlideMeter(Meter):
    """What the three meters share: predicting a batch, and the loss."""

    def __init__(self, task: TaskConfig, classes: int, accelerator: Accelerator, outputs: Outputs) -> None:
        self.task, self.classes, self.accelerator, self.outputs = task, classes, accelerator, outputs
        self.loss = MeanMetric().to(accelerator.device)
        self.by_class: list[float | None] = []

    @override
    def update(self, model: nn.Module, batch: Batch) -> None:
        outputs = self.outputs(model, batch)
        check_outputs(outputs, batch.names)
        outputs, targets = outputs.float()[batch.valid], batch.targets[batch.valid]
        if len(targets):
            self.loss.update(slide_loss(self.task, outputs, targets, each=True))
            self.count(slide_scores(self.task, outputs), targets)

    def count(self, scores: Tensor, targets: Tensor) -> None:
        """Count the scores of some slides."""
        raise NotImplementedError

    @override
    def details(self) -> dict[str, Any]:
        """`per_class`: a number for each class or label, None where there are no slides to tell."""
        return {"per_class": self.by_class}

    def on_device(self, metrics: Mapping[str, Metric]) -> MetricCollection:
        """Several metrics, on the device of the model."""
        return MetricCollection(dict(metrics), compute_groups=False).to(self.accelerator.device)

    def computed_loss(self) -> float:
        """The mean loss over all processes."""
        return float(self.loss.compute())

    def total(self, counts: Tensor) -> Tensor:
        """Counts of all processes, on the CPU."""
        summed: Tensor = self.accelerator.reduce(counts, reduction="sum")
        return summed.cpu()


class ClassMeter(SlideMeter):
    """Accuracy over slides, its mean over classes, the area under the ROC curve, and the confusion matrix."""

    def __init__(self, task: TaskConfig, classes: int, accelerator: Accelerator, outputs: Outputs) -> None:
        super().__init__(task, classes, accelerator, outputs)
        self.metrics = self.on_device({
            "accuracy": MulticlassAccuracy(classes, average="micro"),
            "by_class": MulticlassAccuracy(classes, average="none"),
            "auc": MulticlassAUROC(classes, average="none"),
            "confusion": MulticlassConfusionMatrix(classes),
        })  # fmt: skip
        self.confusion: list[list[int]] = []

    @override
    def count(self, scores: Tensor, targets: Tensor) -> None:
        self.metrics.update(scores, targets)

    @override
    def compute(self) -> dict[str, float | None]:
        found = _quietly(self.metrics.compute)
        self.confusion = found["confusion"].tolist()
        slides = found["confusion"].sum(1).cpu()
        there, told = slides > 0, (slides > 0) & (slides < slides.sum())
        by_class = 100 * found["by_class"].cpu()
        self.by_class = [float(share) if any_slides else None for share, any_slides in zip(by_class, there, strict=True)]
        return {
            "balanced": float(by_class[there].mean()),
            "accuracy": 100 * float(found["accuracy"]),
            "auc": float(found["auc"].cpu()[told].mean()) if told.any() else None,
            "loss": self.computed_loss(),
        }

    @override
    def details(self) -> dict[str, Any]:
        """`per_class`: accuracy in percent; `confusion`: counts by true class (row) and predicted class (column)."""
        return {"per_class": self.by_class, "confusion": self.confusion}


class LabelsMeter(SlideMeter):
    """Area under the ROC curve, accuracy and F1 of each label, at a probability of 0.5, and their means over labels."""

    def __init__(self, task: TaskConfig, classes: int, accelerator: Accelerator, outputs: Outputs) -> None:
        super().__init__(task, classes, accelerator, outputs)
        self.metrics = [
            self.on_device({"auc": BinaryAUROC(), "accuracy": BinaryAccuracy(), "f1": BinaryF1Score()}) for _ in range(classes)
        ]
        self.counts = torch.zeros(2, classes, device=accelerator.device)
        """Slides that have each label, and those that do not."""

    @override
    def count(self, scores: Tensor, targets: Tensor) -> None:
        self.counts += torch.stack([targets.sum(0), (1 - targets).sum(0)])
        for label, metric in enumerate(self.metrics):
            metric.update(scores[:, label], targets[:, label].long())

    @override
    def compute(self) -> dict[str, float | None]:
        found = [_quietly(metric.compute) for metric in self.metrics]
        told = (self.total(self.counts) > 0).all(0).tolist()
        self.by_class = [float(one["auc"]) if known else None for one, known in zip(found, told, strict=True)]
        areas = [area for area in self.by_class if area is not None]
        means = {name: 100 * sum(float(one[name]) for one in found) / len(found) for name in ("accuracy", "f1")}
        return {"auc": sum(areas) / len(areas) if areas else None, **means, "loss": self.computed_loss()}

    @override
    def details(self) -> dict[str, Any]:
        """`per_class`: the area under the ROC curve of each label; None if all slides have it, or none."""
        return {"per_class": self.by_class}


class NumberMeter(SlideMeter):
    """Mean absolute and root mean squared error in the number's own unit, the share of explained variance, and correlation."""

    def __init__(self, task: TaskConfig, classes: int, accelerator: Accelerator, outputs: Outputs) -> None:
        super().__init__(task, classes, accelerator, outputs)
        self.by_class = [None]
        self.metrics = self.on_device({"mae": MeanAbsoluteError(), "rmse": MeanSquaredError(squared=False)})
        self.relative = self.on_device({"r2": R2Score(), "pearson": PearsonCorrCoef()})
        self.moments = torch.zeros(3, dtype=torch.float64, device=accelerator.device)

    @override
    def count(self, scores: Tensor, targets: Tensor) -> None:
        found = scores[:, 0].contiguous()
        self.moments += torch.stack([torch.ones_like(targets).sum(), targets.sum(), targets.square().sum()]).double()
        self.metrics.update(found, targets)
        self.relative.update(found, targets)

    @override
    def compute(self) -> dict[str, float | None]:
        found = {name: float(value) for name, value in self.metrics.compute().items()}
        count, total, squares = self.total(self.moments).tolist()
        related: dict[str, float | None] = {"r2": None, "pearson": None}
        if count > 1 and squares * count > total * total * (1 + 1e-6):  # else all targets are one number
            values = {name: float(value) for name, value in _quietly(self.relative.compute).items()}
            related = {name: value if isfinite(value) else None for name, value in values.items()}
        return {**found, **related, "loss": self.computed_loss()}


def _quietly(compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Without torchmetrics' warnings about classes that have no slides, which count for nothing here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return compute()
