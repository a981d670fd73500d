"""Detection: objects with boxes and masks, or with boxes alone."""

from collections.abc import Mapping, Sequence
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

from ..data.coco import CocoDataset, coco_splits, open_coco
from ..data.dense_transforms import DetectionEvalTransform, DetectionTrainTransform
from ..data.instance_masks import open_instance_masks
from ..data.loader import Batch, Transform
from ..data.mask_folders import INSTANCE_MASKS, FolderPair, find_pair, mask_splits
from ..data.sources import Source
from ..data.transforms import normalisation
from ..dense.average_precision import average_precision, to_results
from ..dense.detector import make_detector
from ..dense.pyramid import Pyramid
from .config import Recipe
from .dense_task import DenseTask
from .model_factory import is_pretrained
from .recipe import BOX_HEADS, model_arguments
from .task import Meter


class Detect(DenseTask):
    """The sum of the losses of proposals, boxes and masks; COCO's average precision."""

    has_masks: ClassVar[bool] = True
    columns: ClassVar[Mapping[str, str]] = {
        "mask_ap": "mask AP", "mask_ap50": "AP50", "mask_ap75": "AP75", "box_ap": "box AP", "box_ap50": "AP50",
        "box_ap75": "AP75",
    }  # fmt: skip

    def __init__(self, recipe: Recipe) -> None:
        if recipe.task.freeze_norm is None:  # without weights, a frozen norm does not normalise
            has_weights = recipe.model.weights is not None or is_pretrained(recipe.model)
            recipe = replace(recipe, task=replace(recipe.task, freeze_norm=has_weights))
        super().__init__(recipe)

    @override
    def model_spec(self, classes: int) -> tuple[str, dict[str, Any]]:
        name, arguments = super().model_spec(classes)
        if "img_size" in model_arguments(self.recipe.model):
            return name, arguments
        arguments.pop("img_size", None)  # images come in all sizes: position embeddings keep the model's own
        if name.startswith("inline_") and name.endswith("_nano"):  # whose patches follow the size
            arguments["img_size"] = self.recipe.task.sides[-1]
        return name, arguments

    @override
    def splits(self, root: Path) -> Mapping[str, Any]:
        pair = self._mask_folders(root)
        return mask_splits(root, pair) if pair else coco_splits(root)

    def _mask_folders(self, root: Path) -> FolderPair | None:
        """Folders of instance masks that the recipe names, or that are there; None for COCO's files."""
        data = self.recipe.data
        return find_pair(root, () if coco_splits(root) else INSTANCE_MASKS, data.images, data.masks)

    @override
    def read_split(
        self, root: Path, split: str, known: tuple[str, ...] | None
    ) -> tuple[CocoDataset, tuple[str, ...], tuple[str, ...]]:
        data = self.recipe.data
        masks = None if self.recipe.task.head == "auto" else self.has_masks
        if pair := self._mask_folders(root):
            return open_instance_masks(
                root, split, pair, class_name=data.class_name, classes=known, ignore=data.ignore, skip_bad=data.skip_bad
            )
        if data.ignore:
            raise ValueError(f"data.ignore is for folders of masks, and {root} has none, got {data.ignore}")
        return open_coco(root, split, classes=known, skip_bad=data.skip_bad, masks=masks)

    @override
    def suited_to(self, source: Source) -> "Detect":
        """The same task, with a head for boxes alone if it was to be chosen and the annotations have no masks."""
        masks = all(images.has_masks for images in (source.train, source.val) if isinstance(images, CocoDataset))
        if masks or self.recipe.task.head != "auto":
            return self
        return detection_task(self.recipe.with_fields({"task.head": BOX_HEADS[self.head]}))

    @override
    def learned(self) -> str:
        return self.head if self.has_masks else f"{self.head} for boxes without masks (no mask is read)"

    @override
    def add_head(self, pyramid: Pyramid, classes: int) -> nn.Module:
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
    def transform(self, *, training: bool) -> Transform:
        augment = self.recipe.augment
        return (
            DetectionTrainTransform(augment.hflip, augment.color_jitter, self.has_masks)
            if training
            else DetectionEvalTransform()
        )

    @override
    def loss(self, model: nn.Module, batch: Batch, classes: int) -> Tensor:
        losses: dict[str, Tensor] = model(list(batch.pixels), batch.targets)
        return torch.stack([loss.float() for loss in losses.values()]).sum()

    @override
    @torch.no_grad()
    def predict(self, model: nn.Module, image: Image.Image, device: torch.device, name: str = "the image") -> dict[str, Tensor]:
        """Objects, highest score first: boxes (n, 4) xyxy, labels (n,) from 1, scores (n,), and masks (n, 1, H, W) in 0..1.

        A head for boxes alone gives no masks.
        """
        pixels = to_image(image).to(device, torch.float32) / 255
        found = detections(model, [pixels], [name])[0]
        return {name: value.cpu() for name, value in found.items()}

    @override
    def meter(self, source: Source, accelerator: Accelerator) -> "ObjectMeter":
        assert isinstance(source.val, CocoDataset)
        if self.has_masks and not source.val.has_masks:
            raise ValueError(f"{source.val.coco_json} has no segmentations, and {self.head} is scored by masks: add them")
        return ObjectMeter(source.val, accelerator, masks=self.has_masks)


class DetectBoxes(Detect):
    """Detection by a head without masks: boxes alone, in losses and in scores."""

    has_masks: ClassVar[bool] = False
    columns: ClassVar[Mapping[str, str]] = {"box_ap": "box AP", "box_ap50": "AP50", "box_ap75": "AP75"}


def detection_task(recipe: Recipe) -> Detect:
    """The task of a recipe to detect, with masks or without, as its head has them."""
    return DetectBoxes(recipe) if recipe.task.head in BOX_HEADS.values() else Detect(recipe)


def detections(model: nn.Module, images: list[Tensor], names: Sequence[str]) -> list[dict[str, Tensor]]:
    """A detector's predictions. If numbers in it are not finite, the error has the name of the first image that causes it."""
    try:
        found: list[dict[str, Tensor]] = model(images)
        return found
    except FloatingPointError:
        for image, name in zip(images, names, strict=False):  # boxes of all images go through its heads together
            try:
                model([image])
            except FloatingPointError as error:
                raise FloatingPointError(f"{error} for {name}: its numbers overflow") from error
        raise


class ObjectMeter(Meter):
    """COCO's average precision of boxes, and of masks if there are any, through pycocotools."""

    def __init__(self, images: CocoDataset, accelerator: Accelerator, *, masks: bool = True) -> None:
        self.images, self.accelerator, self.masks = images, accelerator, masks
        self.results: list[dict[str, Any]] = []
        self.found: dict[str, Any] = {}

    @override
    def update(self, model: nn.Module, batch: Batch) -> None:
        found = detections(model, list(batch.pixels), batch.names)
        for detection, target, valid in zip(found, batch.targets, batch.valid.tolist(), strict=True):
            if valid:
                self.results += to_results(int(target["image_id"]), detection, self.images.category_ids)

    @override
    def compute(self) -> dict[str, float | None]:
        shared: list[Any] = [None]
        results = gather_object(self.results)
        if self.accelerator.is_main_process:
            shared[0] = average_precision(self.images.ground_truth(), results, masks=self.masks)
        self.found = broadcast_object_list(shared)[0]
        return {name: value for name, value in self.found.items() if not name.endswith("_by_class")}

    @override
    def details(self) -> dict[str, Any]:
        """`per_class`: average precision of each class's masks, or boxes without masks; None for one without objects."""
        return {"per_class": self.found["mask_ap_by_class" if self.masks else "box_ap_by_class"]}
