"""Reads COCO's instance files: images with objects, their boxes, classes and masks."""

import json
import re
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from hashlib import blake2b
from io import StringIO
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pycocotools import mask as rle
from pycocotools.coco import COCO

from ..lite.decode import BadImageError, decode_file, first_line
from ..lite.text import check_names
from .coco_annotations import EntryChecker, clip_box, decode_masks, has_segmentation, is_integer, is_number, to_rle
from .datasets import file_entry
from .splits import by_split, canonical, choose_split

COCO_FILE = re.compile(r"instances_(.+?)(20\d\d)?\.json")
ROBOFLOW_FILE = "_annotations.coco.json"


@dataclass(frozen=True, eq=False)
class Objects:
    """The annotated objects of an image, n of them."""

    boxes: NDArray[np.float32]
    """(n, 4) as x1, y1, x2, y2, clipped to the image."""
    labels: NDArray[np.int64]
    """(n,) from 1 on."""
    segmentations: tuple[Any, ...]
    """As COCO writes them: lists of polygons, or run lengths in a dict; None for each of a dataset of boxes alone."""
    crowd: NDArray[np.bool_]
    """(n,) true for annotations of many objects in one mask."""
    image_id: int
    height: int
    width: int

    def masks(self, indices: Sequence[int] | NDArray[np.int64] | None = None) -> NDArray[np.uint8]:
        """(n, height, width), 1 inside an object: of all objects, or of those at `indices`."""
        chosen = range(len(self.segmentations)) if indices is None else indices
        return decode_masks([self.segmentations[index] for index in chosen], self.height, self.width)


@dataclass(frozen=True, eq=False)
class CocoImage:
    """One image of the file."""

    image_id: int
    file: str
    height: int
    width: int
    annotations: bytes
    """JSON text: hundreds of thousands of Python lists would be copied into every worker process as they are read."""


class CocoDataset:
    """Images with their objects, ordered by image id.

    Attributes:
        coco_json: the annotation file.
        category_ids: COCO's category ids; label 1 is the first. A class that the file does not have gets an id that the
            file does not use.
        has_masks: whether objects have masks, or boxes alone.
    """

    def __init__(
        self,
        coco_json: Path,
        folder: Path,
        classes: Sequence[str],
        category_ids: Sequence[int],
        images: Sequence[CocoImage],
        *,
        has_masks: bool = True,
    ) -> None:
        self.coco_json, self.category_ids, self.has_masks = coco_json, tuple(category_ids), has_masks
        self._folder, self._classes, self._images = folder, tuple(classes), tuple(images)
        self._labels = {category: label for label, category in enumerate(self.category_ids, 1)}

    def __len__(self) -> int:
        return len(self._images)

    def name(self, index: int) -> str:
        """The image's path."""
        return str(self._folder / self._images[index].file)

    def load(self, index: int, channels: int) -> tuple[Image.Image, Objects]:
        """The image and its objects."""
        entry, name = self._images[index], self.name(index)
        image = decode_file(name, channels)
        if image.size != (entry.width, entry.height):
            raise BadImageError(
                f"{name} is {image.width} x {image.height} (width x height), and {self.coco_json} says "
                f"{entry.width} x {entry.height}"
            )
        return image, self._objects(entry)

    def choose(self, indices: Iterable[int]) -> "CocoDataset":
        """The images at these indices."""
        images = [self._images[index] for index in indices]
        return CocoDataset(self.coco_json, self._folder, self._classes, self.category_ids, images, has_masks=self.has_masks)

    def files(self) -> list[str]:
        """Names of all files without their folders."""
        return [PurePosixPath(image.file).name for image in self._images]

    def labels(self) -> None:
        """None: an image has no class of its own."""

    def digest(self) -> str:
        """A hash of all annotations."""
        return blake2b(b"\n".join(image.annotations for image in self._images), digest_size=16).hexdigest()

    def entries(self) -> list[str]:
        """A line for each image, for `fingerprint`: its file, and a hash of its annotations."""
        hashes = (blake2b(image.annotations, digest_size=16).hexdigest() for image in self._images)
        files = (file_entry(image.file, self._folder / image.file) for image in self._images)
        return [f"{file}\t{objects}" for file, objects in zip(files, hashes, strict=True)]

    def ground_truth(self) -> COCO:
        """These images and their objects for COCO's evaluation, with boxes as in the file."""
        annotations = []
        for image in self._images:
            for annotation in json.loads(image.annotations):
                if not is_number(annotation["area"]):
                    code, (_, _, across, down) = annotation["segmentation"], annotation["bbox"]
                    area = across * down if code is None else rle.area(to_rle(code, image.height, image.width))
                    annotation["area"] = float(area)
                annotations.append({**annotation, "image_id": image.image_id})
        coco = COCO()
        coco.dataset = {
            "images": [
                {"id": image.image_id, "file_name": image.file, "height": image.height, "width": image.width}
                for image in self._images
            ],
            "annotations": annotations,
            "categories": [{"id": number, "name": name} for number, name in zip(self.category_ids, self._classes, strict=True)],
        }
        with redirect_stdout(StringIO()):  # pycocotools prints its progress
            coco.createIndex()
        return coco

    def _objects(self, image: CocoImage) -> Objects:
        annotations: list[dict[str, Any]] = json.loads(image.annotations)
        boxes = [clip_box(annotation["bbox"], image.height, image.width) for annotation in annotations]
        return Objects(
            boxes=np.stack(boxes) if boxes else np.zeros((0, 4), np.float32),
            labels=np.array([self._labels[annotation["category_id"]] for annotation in annotations], np.int64),
            segmentations=tuple(annotation["segmentation"] for annotation in annotations),
            crowd=np.array([annotation["iscrowd"] for annotation in annotations], np.bool_),
            image_id=image.image_id,
            height=image.height,
            width=image.width,
        )


def open_coco(
    root: Path,
    split: str,
    *,
    classes: tuple[str, ...] | None = None,
    skip_bad: bool = False,
    masks: bool | None = None,
) -> tuple[CocoDataset, tuple[str, ...], tuple[str, ...]]:
    """Open one split of a folder in COCO's layout.

    Args:
        root: has `annotations/instances_<split>2017.json` (or of another year; of several the newest that has images) with
            `<split>2017/`, or `annotations/instances_<split>.json` with `<split>/`, both also with images in
            `images/<split>...`; or, as Roboflow writes it, `<split>/_annotations.coco.json` (`valid/` for val).
        split: which, by any spelling of its name.
        classes: class names in the order of the labels, e.g. of the training split. Default: those of the file, by category id.
        skip_bad: leave out wrong entries instead of raising.
        masks: whether every object must have a mask, or masks are not read; None: they must unless no object has one.

    Returns:
        The dataset, ordered by image id, with or without objects in an image; the class names; and a line for each entry that
        was left out.
    """
    coco_json, folder = _find(root, split)
    content = _read(coco_json)
    classes, category_ids = _match_classes(coco_json, content["categories"], classes)
    if masks is None:
        masks = not content["annotations"] or any(map(has_segmentation, content["annotations"]))
    checker = EntryChecker(coco_json, folder, skip_bad, masks=masks)
    images = _join(content, checker)
    if not images:
        raise ValueError(f"{coco_json} has no image" + " without errors" * bool(checker.left_out))
    dataset = CocoDataset(coco_json, folder, classes, category_ids, images, has_masks=masks)
    return dataset, classes, tuple(checker.left_out)


def coco_splits(root: Path) -> dict[str, list[Path]]:
    """The splits of a folder in COCO's layout: annotation files of each, the one to take first if it has images."""
    if not root.is_dir():
        raise ValueError(f"there is no folder {root}")
    files: dict[str, list[Path]] = {}
    for path in sorted(root.glob("annotations/instances_*.json"), reverse=True):  # the newest year first
        if named := COCO_FILE.fullmatch(path.name):
            files.setdefault(canonical(named[1]), []).append(path)
    for path in sorted(root.glob(f"*/{ROBOFLOW_FILE}")):
        files.setdefault(canonical(path.parent.name), []).append(path)
    return by_split(files, root)


def _find(root: Path, split: str) -> tuple[Path, Path]:
    """The annotation file of a split, and the folder of its images."""
    splits = coco_splits(root)
    if not splits:
        raise ValueError(
            f"{root} holds no objects: annotations/instances_train2017.json (COCO, of any year or of none), "
            f"train/{ROBOFLOW_FILE} (Roboflow), images/ with instances/, or PNGImages/ with PedMasks/ is expected in it"
        )
    files = choose_split(split, splits, root)
    for path in files:
        if path.name == ROBOFLOW_FILE:
            return path, path.parent
        part = _part(path)
        for folder in (root / part, root / "images" / part):
            if folder.is_dir():
                return path, folder
    part = _part(files[0])
    raise ValueError(f"{files[0]} is there, but not its images: neither {part}/ nor images/{part}/ in {root}")


def _part(path: Path) -> str:
    """'train2017' of 'instances_train2017.json'."""
    return path.name.removeprefix("instances_").removesuffix(".json")


def _read(coco_json: Path) -> dict[str, list[Any]]:
    """The file, with its three lists."""
    try:
        content = json.loads(coco_json.read_bytes())
    except OSError as error:
        raise ValueError(f"{coco_json} cannot be read: {error.strerror or first_line(error)}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{coco_json} is not JSON: {first_line(error)}") from error
    for key in ("images", "annotations", "categories"):
        if not isinstance(content, dict) or not isinstance(content.get(key), list):
            raise ValueError(f'{coco_json} has no list "{key}": it is no file of COCO\'s instances')
    return content


def _match_classes(
    coco_json: Path, categories: list[Any], classes: tuple[str, ...] | None
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Class names in the order of labels, and the category id of each."""
    ids: dict[str, int] = {}
    for place, entry in enumerate(categories):
        if not isinstance(entry, dict) or not is_integer(entry.get("id")):
            raise ValueError(f"{coco_json}: category at place {place} has no whole number as its id")
        number, name = entry["id"], entry.get("name")
        if not isinstance(name, str) or not name:
            raise ValueError(f"{coco_json}: category {number} has no name")
        check_names([name], f"{coco_json}: category {number}")
        if number in ids.values():
            raise ValueError(f"{coco_json}: category {number} is there twice: ids must differ")
        if name in ids:
            raise ValueError(f"{coco_json}: categories {ids[name]} and {number} are both called {name!r}: rename one")
        if classes is not None and name not in classes:
            expected = ", ".join(classes)
            raise ValueError(f"{coco_json}: category {number}, {name!r}, is not a class of the model: {expected}"[:300])
        ids[name] = number
    if not ids:
        raise ValueError(f"{coco_json} has no category: there is nothing to detect")
    if classes is None:
        classes = tuple(sorted(ids, key=lambda name: ids[name]))
    unused = max(ids.values())
    return classes, tuple(ids.get(name, unused + place) for place, name in enumerate(classes, 1))


def _join(content: dict[str, list[Any]], checker: EntryChecker) -> list[CocoImage]:
    """All good images by their ids, with their good annotations."""
    images = checker.images(content["images"])
    annotations: dict[int, list[dict[str, Any]]] = {number: [] for number in images}
    categories = {entry["id"] for entry in content["categories"]}
    for entry in checker.annotations(content["annotations"], images, categories):
        kept = {key: entry[key] for key in ("id", "category_id", "bbox")}
        kept["segmentation"] = entry["segmentation"] if checker.masks else None
        crowd = int(bool(entry.get("iscrowd")))
        annotations[entry["image_id"]].append({**kept, "iscrowd": crowd, "area": entry.get("area")})
    return [
        CocoImage(number, entry["file_name"], entry["height"], entry["width"], json.dumps(annotations[number]).encode())
        for number, entry in images.items()
    ]
