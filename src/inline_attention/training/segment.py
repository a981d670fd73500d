"""Semantic segmentation: a class for every pixel."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from PIL import Image
from torch import Tensor, nn
from typing_extensions import override

from ..data.dense_transforms import SegmentationEvalTransform, SegmentationTrainTransform
from ..data.label_maps import IGNORED, LabelMapDataset, label_map_splits, open_label_maps
from ..data.loader import Batch, Transform
from ..data.sources import Source
from ..data.transforms import normalisation
from ..dense.inference import PixelLabels, argmax_labels, slide
from ..dense.miou import MeanIoU
from ..dense.pyramid import Pyramid
from ..dense.segmenter import Segmenter, upsample_logits
from ..models.finite import check_outputs
from .dense_task import DenseTask
from .task import Meter


class Segment(DenseTask):
    """Cross entropy over all pixels; mean intersection over union."""

    columns: ClassVar[Mapping[str, str]] = {"miou": "mIoU %", "macc": "mAcc %", "aacc": "aAcc %", "loss": "loss"}

    @override
    def splits(self, root: Path) -> Mapping[str, Any]:
        data = self.recipe.data
        return label_map_splits(root, data.images, data.masks)

    @override
    def read_split(
        self, root: Path, split: str, known: tuple[str, ...] | None
    ) -> tuple[LabelMapDataset, tuple[str, ...], tuple[()]]:
        data = self.recipe.data
        found = open_label_maps(root, split, classes=known, ignore=data.ignore, images=data.images, masks=data.masks)
        return (*found, ())

    @override
    def learned(self) -> str:
        height, width = self.recipe.data.size
        return f"{self.head} on crops of {height} x {width}"

    @override
    def add_head(self, pyramid: Pyramid, classes: int) -> nn.Module:
        return Segmenter(pyramid, self.head, classes, width=self.recipe.task.width)

    @override
    def transform(self, *, training: bool) -> Transform:
        data, augment = self.recipe.data, self.recipe.augment
        mean, std = normalisation(data)
        if not training:
            side = min(data.size) if self.recipe.task.side is None else self.recipe.task.side
            return SegmentationEvalTransform(side or None, self.recipe.task.longest, mean, std, data.interpolation)
        return SegmentationTrainTransform(
            data.size, augment.resize, augment.hflip, augment.color_jitter, mean, std, data.interpolation
        )

    @override
    def loss(self, model: nn.Module, batch: Batch, classes: int) -> Tensor:
        logits, *auxiliary = model(batch.pixels)
        loss = pixel_loss(logits, batch.targets)
        for more in auxiliary:
            loss = loss + self.recipe.task.auxiliary * pixel_loss(more, batch.targets)
        return loss

    @override
    def meter(self, source: Source, accelerator: Accelerator) -> "PixelMeter":
        return PixelMeter(self, len(source.classes), accelerator)

    @override
    @torch.no_grad()
    def predict(self, model: nn.Module, image: Image.Image, device: torch.device, name: str = "the image") -> Tensor:
        """The class of every pixel, (H, W)."""
        unlabelled = np.full((image.height, image.width), IGNORED, dtype=np.uint8)
        pixels, _ = self.transform(training=False)(image, unlabelled)
        sizes = [torch.Size(unlabelled.shape)]
        return self.predict_labels(model, pixels[None].to(device), sizes, names=(name,))[0].labels.cpu()

    def predict_labels(
        self,
        model: nn.Module,
        pixels: Tensor,
        sizes: Sequence[torch.Size],
        truths: Sequence[Tensor] | None = None,
        names: Sequence[str] = (),
    ) -> list[PixelLabels]:
        """The class of every pixel of images (B, C, h, w), each at its own size (H, W), seen whole or by windows.

        Logits that are not finite raise a FloatingPointError with the image's name.
        """
        size_in = pixels.shape[2], pixels.shape[3]
        if isinstance(model, Segmenter) and self.recipe.task.inference == "whole":
            logits, inside = model.coarse_logits(pixels), partial(upsample_logits, size=size_in)
        else:
            logits, inside = self.logits(model, pixels), partial(_identity)
        check_outputs(logits, names)
        return [
            argmax_labels(found, partial(_sized, inside, size), None if truths is None else truths[place])
            for place, (found, size) in enumerate(zip(logits, sizes, strict=True))
        ]

    def logits(self, model: nn.Module, pixels: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, classes, H, W), from the whole image or from windows."""
        task, size = self.recipe.task, self.recipe.data.size
        if task.inference == "whole":
            whole: Tensor = model(pixels)
            return whole.float()
        stride = (max(1, int(size[0] * task.stride)), max(1, int(size[1] * task.stride)))
        return slide(model, pixels, size, stride).float()


def _identity(logits: Tensor) -> Tensor:
    return logits


def _sized(inside: Callable[[Tensor], Tensor], size: torch.Size, logits: Tensor) -> Tensor:
    """Logits (n, h, w), cropped to the model's input and resized to the image's own size."""
    return F.interpolate(inside(logits[None]), size=size, mode="bilinear")[0]


def pixel_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy over labelled pixels; 0 without any. (B, classes, H, W), (B, H, W) -> ()."""
    total = F.cross_entropy(logits.float(), targets, ignore_index=IGNORED, reduction="sum")
    return total / (targets != IGNORED).sum().clamp(min=1)


class PixelMeter(Meter):
    """mIoU and the other metrics, at the images' own sizes."""

    def __init__(self, task: Segment, classes: int, accelerator: Accelerator) -> None:
        self.task, self.accelerator = task, accelerator
        self.miou = MeanIoU(classes, accelerator.device)
        self.loss = torch.zeros(2, dtype=torch.float64)

    @override
    def update(self, model: nn.Module, batch: Batch) -> None:
        together = [batch.pixels] if isinstance(batch.pixels, Tensor) else [pixels[None] for pixels in batch.pixels]
        truths, valid, names = list(batch.targets), batch.valid.tolist(), batch.names
        for pixels in together:
            mine, counts = truths[: len(pixels)], valid[: len(pixels)]
            truths, valid = truths[len(pixels) :], valid[len(pixels) :]
            found = self.task.predict_labels(model, pixels, [truth.shape for truth in mine], mine, names)
            names = names[len(pixels) :]
            for predicted, truth, counted in zip(found, mine, counts, strict=True):
                if counted:
                    self.miou.update(predicted.labels, truth)
                    self.loss += torch.tensor([predicted.loss, int((truth != IGNORED).sum())], dtype=torch.float64)

    @override
    def compute(self) -> dict[str, float | None]:
        device = self.accelerator.device
        total, pixels = self.accelerator.reduce(self.loss.float().to(device), reduction="sum").tolist()
        found = self.miou.compute()
        return {name: found[name] for name in ("miou", "macc", "aacc")} | {"loss": total / max(pixels, 1)}

    @override
    def details(self) -> dict[str, Any]:
        """`per_class`: intersection over union of each class, None for one without pixels."""
        return {"per_class": self.miou.compute()["iou"], "confusion": self.miou.confusion_matrix().cpu().tolist()}
