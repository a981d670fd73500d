"""Semantic segmentation as a task: a class for every pixel."""

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

from ..dense.label_maps import MapPictures, open_maps
from ..dense.overlap import IGNORED, OverlapMeter
from ..dense.pyramid import Pyramid
from ..dense.read_out import ReadOut, read_out
from ..dense.segmenter import Segmenter, grown
from ..dense.sliding import slide
from ..dense.splits import Split
from ..dense.variation import MapEvaluation, MapTraining
from ..training.loader import Batch, Show
from ..training.source import Source
from ..training.task import Meter
from ..training.view import normalisation
from .dense_task import DenseTask


class Segment(DenseTask):
    """Cross entropy of every pixel; mean intersection over union."""

    columns: ClassVar[Mapping[str, str]] = {"miou": "mIoU %", "macc": "mAcc %", "aacc": "aAcc %", "loss": "loss"}

    @override
    def read_split(
        self, root: Path, split: Split, known: tuple[str, ...] | None
    ) -> tuple[MapPictures, tuple[str, ...], tuple[()]]:
        return (*open_maps(root, split, known=known), ())

    @override
    def on(self, pyramid: Pyramid, classes: int) -> nn.Module:
        return Segmenter(pyramid, self.head, classes, width=self.recipe.task.width)

    @override
    def show(self, *, training: bool) -> Show:
        data, augment = self.recipe.data, self.recipe.augment
        mean, std = normalisation(data)
        if not training:
            side = min(data.size) if self.recipe.task.side is None else self.recipe.task.side
            return MapEvaluation(side or None, self.recipe.task.longest, mean, std, data.interpolation)
        return MapTraining(data.size, augment.resize, augment.hflip, augment.color_jitter, mean, std, data.interpolation)

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
    def look(self, model: nn.Module, picture: Image.Image, device: torch.device) -> Tensor:
        """The class of every pixel, (H, W)."""
        nowhere = np.full((picture.height, picture.width), IGNORED, dtype=np.uint8)
        pixels, _ = self.show(training=False)(picture, nowhere)
        return self.read(model, pixels[None].to(device), [torch.Size(nowhere.shape)])[0].labels.cpu()

    def read(
        self, model: nn.Module, pixels: Tensor, sizes: Sequence[torch.Size], truths: Sequence[Tensor] | None = None
    ) -> list[ReadOut]:
        """The class of every pixel of pictures (B, C, h, w), each at its own size (H, W), seen whole or by windows."""
        shown = pixels.shape[2], pixels.shape[3]
        if isinstance(model, Segmenter) and self.recipe.task.inference == "whole":
            logits, inside = model.coarse(pixels), partial(grown, size=shown)
        else:
            logits, inside = self.logits(model, pixels), partial(_as_it_is)
        return [
            read_out(found, partial(_sized, inside, size), None if truths is None else truths[place])
            for place, (found, size) in enumerate(zip(logits, sizes, strict=True))
        ]

    def logits(self, model: nn.Module, pixels: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, classes, H, W), of the whole or by windows."""
        task, size = self.recipe.task, self.recipe.data.size
        if task.inference == "whole":
            whole: Tensor = model(pixels)
            return whole.float()
        stride = (max(1, int(size[0] * task.stride)), max(1, int(size[1] * task.stride)))
        return slide(model, pixels, size, stride).float()


def _as_it_is(logits: Tensor) -> Tensor:
    return logits


def _sized(inside: Callable[[Tensor], Tensor], size: torch.Size, logits: Tensor) -> Tensor:
    """Logits (n, h, w), cut to the picture that was shown, at the picture's own size."""
    return F.interpolate(inside(logits[None]), size=size, mode="bilinear")[0]


def pixel_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy over pixels that count; 0 where none does. (B, classes, H, W), (B, H, W) -> ()."""
    total = F.cross_entropy(logits.float(), targets, ignore_index=IGNORED, reduction="sum")
    return total / (targets != IGNORED).sum().clamp(min=1)


class PixelMeter(Meter):
    """Intersections and unions of classes, at the pictures' own sizes."""

    def __init__(self, task: Segment, classes: int, accelerator: Accelerator) -> None:
        self.task, self.accelerator = task, accelerator
        self.overlap = OverlapMeter(classes, accelerator.device)
        self.loss = torch.zeros(2, dtype=torch.float64)

    @override
    def observe(self, model: nn.Module, batch: Batch) -> None:
        together = [batch.pixels] if isinstance(batch.pixels, Tensor) else [pixels[None] for pixels in batch.pixels]
        truths, valid = list(batch.targets), batch.valid.tolist()
        for pixels in together:
            mine, counts = truths[: len(pixels)], valid[: len(pixels)]
            truths, valid = truths[len(pixels) :], valid[len(pixels) :]
            found = self.task.read(model, pixels, [truth.shape for truth in mine], mine)
            for said, truth, counted in zip(found, mine, counts, strict=True):
                if counted:
                    self.overlap.add(said.labels, truth)
                    self.loss += torch.tensor([said.loss, int((truth != IGNORED).sum())], dtype=torch.float64)

    @override
    def numbers(self) -> dict[str, float | None]:
        device = self.accelerator.device
        self.overlap.counts = self.accelerator.reduce(self.overlap.counts, reduction="sum")
        total, pixels = self.accelerator.reduce(self.loss.float().to(device), reduction="sum").tolist()
        found = self.overlap.result()
        return {name: found[name] for name in ("miou", "macc", "aacc")} | {"loss": total / max(pixels, 1)}

    @override
    def details(self) -> dict[str, Any]:
        """`per_class`: intersection over union of each class, None for one that is nowhere."""
        return {"per_class": self.overlap.result()["iou"], "confusion": self.overlap.counts.cpu().tolist()}
