"""Small images with shapes on them, as COCO and as label maps, and small recipes for both."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from inline_attention.data.config import AugmentConfig, DataConfig
from inline_attention.training.config import ModelConfig, OptimConfig, Recipe, RunConfig, ScheduleConfig, TaskConfig
from inline_attention.training.run import run_training
from inline_attention.training.task import make_task

from .small import RecordingReporter, never

COLOURS = {"ball": (220, 60, 40), "box": (50, 80, 220)}
NANO = ModelConfig("inline_pvt_nano", args="embed_dims=[8,16,16,32], num_heads=[1,2,2,4], depths=[1,1,1,1], patch_size=4")


def shapes(generator, height, width):
    """An image, and for each of its shapes: class, mask."""
    image = generator.normal(110, 12, (height, width, 3))
    rows, columns = np.mgrid[:height, :width]
    found = []
    for kind in generator.permutation(2)[: generator.integers(1, 3)]:
        side = generator.integers(height // 4, height // 2)
        top, left = generator.integers(0, height - side), generator.integers(0, width - side)
        mask = (rows >= top) & (rows < top + side) & (columns >= left) & (columns < left + side)
        if kind == 0:
            centre = (top + side / 2, left + side / 2)
            mask = (rows - centre[0] + 0.5) ** 2 + (columns - centre[1] + 0.5) ** 2 <= (side / 2) ** 2
        for _, before in found:
            before &= ~mask
        image[mask] = np.array(list(COLOURS.values())[kind]) + generator.normal(0, 12, (int(mask.sum()), 3))
        found.append((int(kind), mask))
    return image.clip(0, 255).astype(np.uint8), [(kind, mask) for kind, mask in found if mask.sum() > 8]


def write_maps(root: Path, train: int = 8, val: int = 4, size=(40, 56)) -> Path:
    """images/ and masks/ with train/ and val/: 0 ground, 1 ball, 2 box, and an ignored corner."""
    generator = np.random.default_rng(0)
    for split, count in (("train", train), ("val", val)):
        for folder in ("images", "masks"):
            (root / folder / split).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            image, found = shapes(generator, *size)
            labels = np.zeros(size, np.uint8)
            for kind, mask in found:
                labels[mask] = kind + 1
            labels[:3, :3] = 255
            Image.fromarray(image).save(root / "images" / split / f"{number}.png")
            Image.fromarray(labels).save(root / "masks" / split / f"{number}.png")
    (root / "classes.txt").write_text("ground\nball\nbox\n")
    return root


def write_coco(root: Path, train: int = 8, val: int = 0, size=(48, 64)) -> Path:
    """COCO's layout; masks as run lengths, the second image without objects, a crowd on the third."""
    generator = np.random.default_rng(1)
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    for split, count in (("train", train), ("val", val)):
        if not count:
            continue
        images, annotations = [], []
        (root / f"{split}2017").mkdir(exist_ok=True)
        for number in range(1, count + 1):
            image, found = shapes(generator, *size)
            if number == 2:
                image, found = np.full((*size, 3), 110, np.uint8), []
            Image.fromarray(image).save(root / f"{split}2017" / f"{number}.png")
            images.append({"id": number, "file_name": f"{number}.png", "height": size[0], "width": size[1]})
            for place, (kind, mask) in enumerate(found):
                rows, columns = np.nonzero(mask)
                box = [int(columns.min()), int(rows.min()), int(np.ptp(columns) + 1), int(np.ptp(rows) + 1)]
                counts = runs(mask)
                annotations.append(
                    {
                        "id": len(annotations) + 1,
                        "image_id": number,
                        "category_id": (3, 8)[kind],
                        "bbox": box,
                        "area": int(mask.sum()),
                        "iscrowd": int(number == 3 and place == 0),
                        "segmentation": {"size": list(size), "counts": counts},
                    }
                )
        categories = [{"id": 3, "name": "ball"}, {"id": 8, "name": "box"}]
        told = {"images": images, "annotations": annotations, "categories": categories}
        (root / "annotations" / f"instances_{split}2017.json").write_text(json.dumps(told))
    return root


def without_masks(root: Path) -> Path:
    """The same folder of COCO's layout, its annotations with boxes alone."""
    for path in (root / "annotations").iterdir():
        told = json.loads(path.read_text())
        for annotation in told["annotations"]:
            del annotation["segmentation"]
        path.write_text(json.dumps(told))
    return root


def runs(mask) -> list[int]:
    """Lengths of runs of equal pixels, column by column, the first of zeros."""
    line = np.concatenate([[0], mask.astype(int).flatten(order="F"), [0]])
    changes = np.flatnonzero(np.diff(line))
    lengths = np.diff(np.concatenate([[0], changes, [mask.size]])).tolist()
    return lengths[:-1] if lengths[-1] == 0 else lengths


def segment_recipe(source, **parts) -> Recipe:
    recipe = Recipe(
        task=TaskConfig("segment", "semantic_fpn", width=64),
        model=NANO,
        data=DataConfig(source=str(source), size=(32, 32), workers=0, interpolation="bilinear"),
        augment=AugmentConfig(resize=(0.8, 1.25), color_jitter=0.2),
        optim=OptimConfig(batch=4, device_batch=4, rate_batch=4, lr=4e-3, warmup_lr=1e-4, min_lr=1e-5, clip=5.0),
        schedule=ScheduleConfig(steps=5, warmup=0, shape="poly"),
        run=RunConfig(log=1),
    )
    return changed(recipe, **parts)


def detect_recipe(source, **parts) -> Recipe:
    recipe = Recipe(
        task=TaskConfig("detect", "mask_rcnn", width=16, sides=(48, 64), longest=96, anchors=(8, 12, 16, 24, 32), samples=32),
        model=NANO,
        data=DataConfig(source=str(source), workers=0, val="train"),
        augment=AugmentConfig(color_jitter=0.2),
        optim=OptimConfig(batch=4, device_batch=2, rate_batch=4, lr=2e-3, warmup_lr=1e-4, min_lr=1e-5, clip=5.0),
        schedule=ScheduleConfig(epochs=2, warmup=0, shape="drops", drops=(1,)),
        run=RunConfig(log=1),
    )
    return changed(recipe, **parts)


def changed(recipe: Recipe, **parts) -> Recipe:
    return replace(recipe, **{name: replace(getattr(recipe, name), **fields) for name, fields in parts.items()})


def run(recipe, out, *, stop=never, resume=False):
    report = RecordingReporter()
    outcome = run_training(make_task(recipe), out, resume=resume, reporter=report, stop=stop, device="cpu")
    return report, outcome
