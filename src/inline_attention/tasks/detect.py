"""Detection as a task: objects with boxes and masks."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms.v2.functional import to_image
from typing_extensions import override

from ..dense.average_precision import average_precision, to_results
from ..dense.coco import CocoPictures, open_coco
from ..dense.detector import make_detector
from ..dense.pyramid import Pyramid
from ..dense.splits import Split
from ..dense.variation import ObjectEvaluation, ObjectTraining
from ..training.loader import Batch, Show
from ..training.recipe import Recipe, model_arguments
from ..training.source import Source
from ..training.task import Meter
from ..training.view import normalisation
from .dense_task import DenseTask


class Detect(DenseTask):
    """The losses of proposals, boxes and masks added up; COCO's average precision."""

    columns: ClassVar[Mapping[str, str]] = {
        "mask_ap": "mask AP", "mask_ap50": "AP50", "mask_ap75": "AP75", "box_ap": "box AP", "box_ap50": "AP50",
        "box_ap75": "AP75",
    }  # fmt: skip

    def __init__(self, recipe: Recipe) -> None:
        if recipe.task.freeze_norm is None:  # without weights, a norm that stays as it is normalises nothing
            trained = recipe.model.weights is not None or bool(model_arguments(recipe.model).get("pretrained"))
            recipe = replace(recipe, task=replace(recipe.task, freeze_norm=trained))
        super().__init__(recipe)

    @override
    def creation(self, classes: int) -> tuple[str, dict[str, Any]]:
        name, arguments = super().creation(classes)
        if "img_size" in model_arguments(self.recipe.model):
            return name, arguments
        arguments.pop("img_size", None)  # pictures come in all sizes: position embeddings keep the model's own
        if name.startswith("inline_") and name.endswith("_nano"):  # whose patches follow the size
            arguments["img_size"] = self.recipe.task.sides[-1]
        return name, arguments

    @override
    def read_split(
        self, root: Path, split: Split, known: tuple[str, ...] | None
    ) -> tuple[CocoPictures, tuple[str, ...], tuple[str, ...]]:
        return open_coco(root, split, known=known, skip_bad=self.recipe.data.skip_bad)

    @override
    def on(self, pyramid: Pyramid, classes: int) -> nn.Module:
        task = self.recipe.task
        mean, std = normalisation(self.recipe.data)
        return make_detector(
            pyramid,
            self.head,
            classes,
            width=task.width,
            sides=task.sides,
            longest=task.longest,
            anchors=task.anchors,
            samples=task.samples,
            mean=mean,
            std=std,
            freeze_norm=bool(task.freeze_norm),
        )

    @override
    def show(self, *, training: bool) -> Show:
        augment = self.recipe.augment
        return ObjectTraining(augment.hflip, augment.color_jitter) if training else ObjectEvaluation()

    @override
    def loss(self, model: nn.Module, batch: Batch, classes: int) -> Tensor:
        losses: dict[str, Tensor] = model(list(batch.pixels), batch.targets)
        return torch.stack([loss.float() for loss in losses.values()]).sum()

    @override
    @torch.no_grad()
    def look(self, model: nn.Module, picture: Image.Image, device: torch.device) -> dict[str, Tensor]:
        """Objects, the surest first: boxes (n, 4) xyxy, labels (n,) from 1, scores (n,), masks (n, 1, H, W) in 0..1."""
        pixels = to_image(picture).to(device, torch.float32) / 255
        found: dict[str, Tensor] = model([pixels])[0]
        return {name: value.cpu() for name, value in found.items()}

    @override
    def meter(self, source: Source, accelerator: Accelerator) -> "ObjectMeter":
        assert isinstance(source.val, CocoPictures)
        return ObjectMeter(source.val, accelerator)


class ObjectMeter(Meter):
    """COCO's average precision of boxes and masks, through pycocotools."""

    def __init__(self, pictures: CocoPictures, accelerator: Accelerator) -> None:
        self.pictures, self.accelerator = pictures, accelerator
        self.results: list[dict[str, Any]] = []
        self.found: dict[str, Any] = {}

    @override
    def observe(self, model: nn.Module, batch: Batch) -> None:
        detections = model(list(batch.pixels))
        for detection, target, valid in zip(detections, batch.targets, batch.valid.tolist(), strict=True):
            if valid:
                self.results += to_results(int(target["image_id"]), detection, self.pictures.category_ids)

    @override
    def numbers(self) -> dict[str, float | None]:
        told: list[Any] = [None]
        results = gather_object(self.results)
        if self.accelerator.is_main_process:
            told[0] = average_precision(self.pictures.ground_truth(), results)
        self.found = broadcast_object_list(told)[0]
        return {name: value for name, value in self.found.items() if not name.endswith("_by_class")}

    @override
    def details(self) -> dict[str, Any]:
        """`per_class`: average precision of each class's masks, None for one that is nowhere."""
        return {"per_class": self.found["mask_ap_by_class"]}
