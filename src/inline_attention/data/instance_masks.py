"""Reads images with instance masks, where 0 is background and every other number is one object, as a COCO dataset."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as rle

from ..lite.decode import BadImageError
from ..lite.text import printable
from .coco import CocoDataset, CocoImage
from .datasets import check_classes
from .mask_folders import FolderPair, choose_place, find_masks, mask_splits, read_mask


def open_instance_masks(
    root: Path,
    split: str,
    pair: FolderPair,
    *,
    class_name: str = "object",
    classes: tuple[str, ...] | None = None,
    ignore: Sequence[int] = (),
    skip_bad: bool = False,
) -> tuple[CocoDataset, tuple[str, ...], tuple[str, ...]]:
    """Open one split of a folder of images and instance masks. All masks are read once, to find the objects.

    Args:
        root: the folder.
        split: which, by any spelling of its name; 'train' and 'all' are all images of a folder without splits.
        pair: its folders of images and masks, such as PennFudan's `PNGImages` and `PedMasks`.
        class_name: of all objects.
        classes: the classes of a model, which must be one.
        ignore: numbers that are background, too, such as 255 for borders.
        skip_bad: leave out images whose mask cannot be read instead of raising.

    Returns:
        The dataset, ordered by name; the class's name; and a line for each image that was left out.
    """
    if classes is not None and len(classes) != 1:
        raise ValueError(f"{root} has instance masks, which are of one class, and the model has {len(classes)}")
    found: list[CocoImage] = []
    left_out: list[str] = []
    count = 0
    names = check_classes(classes or (class_name,), "data.class_name")
    images, masks = find_masks(root, pair, choose_place(split, mask_splits(root, pair), root))
    for image, mask in zip(images, masks, strict=True):
        try:
            numbers = read_mask(mask)
        except BadImageError as error:
            if not skip_bad:
                raise ValueError(f"{error} (--skip-bad goes on without such images)") from error
            left_out.append(printable(str(error)))
            continue
        objects = _annotations(numbers, ignore, count + 1)
        count += len(objects)
        height, width = numbers.shape
        found.append(CocoImage(len(found) + 1, image.name, height, width, json.dumps(objects).encode()))
    if not count:
        raise ValueError(f"the masks of {root}, {pair.masks}, hold no object: all their pixels are background")
    return CocoDataset(root / pair.masks, images[0].parent, names, (1,), found), names, tuple(left_out)


def _annotations(numbers: NDArray[Any], ignore: Sequence[int], first_id: int) -> list[dict[str, Any]]:
    """The objects of one mask (H, W) as COCO's annotations of category 1, by rising numbers."""
    objects: list[dict[str, Any]] = []
    for number in np.unique(numbers):
        if number == 0 or number in ignore:
            continue
        code = rle.encode(np.asfortranarray(numbers == number, dtype=np.uint8))
        segmentation = {"size": list(numbers.shape), "counts": code["counts"].decode("ascii")}
        objects.append({
            "id": first_id + len(objects), "category_id": 1, "bbox": rle.toBbox(code).tolist(), "segmentation": segmentation,
            "iscrowd": 0, "area": float(rle.area(code)),
        })  # fmt: skip
    return objects
