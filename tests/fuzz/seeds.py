"""Small valid inputs of every kind that a command reads, which the cases are made from."""

import gzip
import json
import shutil
import struct
import tarfile
from pathlib import Path

import numpy as np
import timm
import torch
from PIL import Image

from inline_attention.cli.linearize import Linearize
from inline_attention.deploy.hub import save_for_hub
from inline_attention.training.config import Recipe
from inline_attention.training.load_trained import load_trained
from inline_attention.training.recipe import load
from inline_attention.training.run import run_training
from inline_attention.training.task import make_task

from ..data.bags import write_slides
from ..lite import exported
from ..training.small import RecordingReporter, never, small_recipe, write_images, write_recipe
from ..training.small_dense import changed, detect_recipe, segment_recipe, write_coco, write_maps
from .seeds_large import write_large

STORED = Path(__file__).parents[1] / "stored"
DEIT = {"name": "inline_deit_nano", "drop_path": 0.0, "args": "patch_size=4, depth=1, embed_dim=16, num_heads=2"}
PLAIN = {"auto": "", "mixup": 0.0, "cutmix": 0.0, "erase": 0.0}


def write_seeds(root: Path) -> None:
    """Write all seeds into a folder; paths in them are relative to its parent, the working directory."""
    root.mkdir()
    write_images(root / "classes", 3, size=(16, 20))
    _images(root / "images")
    write_large(root / "large")
    _archives(root)
    batch = {"batch": 4, "device_batch": 4}
    recipe = small_recipe("seeds/classes", model=DEIT, augment=PLAIN, optim=batch)
    write_recipe(root / "recipe.toml", recipe)
    _runs(root, recipe)
    _linear(root)
    _weights(root)
    _results(root)
    exported.write(root / "onnx")
    exported.write_ir(root / "openvino")


def _images(folder: Path) -> None:
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (20, 28, 3), np.uint8)
    image = Image.fromarray(pixels)
    for name in ("a.png", "a.jpg", "a.tif", "a.webp", "a.gif", "a.ppm", "a.bmp"):
        image.save(folder / name)
    image.save(folder / "deflated.tiff", compression="tiff_deflate")
    image.save(folder / "animated.webp", save_all=True, append_images=[image.rotate(90)])
    image.quantize(16).save(folder / "palette.png", transparency=3)
    Image.fromarray(pixels[..., 0].astype(np.uint16) * 257).save(folder / "sixteen.png")
    Image.fromarray(pixels[..., 0] / np.float32(255)).save(folder / "float.tiff")
    np.save(folder / "a.npy", pixels)
    np.save(folder / "float.npy", pixels / np.float32(255))


def _archives(root: Path) -> None:
    """A tar of class folders, the same as shards, and a small Fashion-MNIST."""
    (root / "tar").mkdir()
    with tarfile.open(root / "tar" / "train.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
        archive.add(root / "classes", "classes")
    (root / "fashion-mnist").mkdir()
    for split in ("train", "t10k"):
        pixels = struct.pack(">4i", 2051, 20, 28, 28) + bytes(range(196)) * 80
        labels = struct.pack(">2i", 2049, 20) + bytes(range(10)) * 2
        (root / "fashion-mnist" / f"{split}-images-idx3-ubyte.gz").write_bytes(gzip.compress(pixels))
        (root / "fashion-mnist" / f"{split}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
    (root / "wds").mkdir()
    with tarfile.open(root / "wds" / "train-0000.tar", "w") as archive:
        for number, file in enumerate(sorted((root / "classes").rglob("*.png"))):
            label = root / "label.cls"
            label.write_text(str(number % 3))
            archive.add(file, f"{number:04}.png")
            archive.add(label, f"{number:04}.cls")
    label.unlink()
    shutil.copy(root / "wds" / "train-0000.tar", root / "wds" / "validation-0000.tar")
    splits = {
        split: {"name": split, "filenames": [f"{split}-0000.tar"], "shard_lengths": [9], "num_samples": 9}
        for split in ("train", "validation")
    }
    (root / "wds" / "_info.json").write_text(json.dumps({"splits": splits, "class_names": ["blue", "green", "red"]}))


def _runs(root: Path, recipe: Recipe) -> None:
    """A finished classifier, its softmax twin, one that was stopped, a detector, a segmenter, and a model of slides."""
    write_coco(root / "coco", 2, 1)
    write_maps(root / "maps", 2, 1)
    once = changed(recipe, schedule={"epochs": 1, "warmup": 0})
    pairs = {"batch": 2, "device_batch": 2}
    write_slides(root / "slides", slides=6)
    bag = {"features": torch.randn(4, 6), "coords": torch.tensor([[0, 0], [0, 9], [9, 0], [9, 9]])}
    torch.save(bag, root / "slides" / "s1.pt")
    of_slides = {
        "data.source": "seeds/slides/features", "data.labels": "seeds/slides/labels.csv", "data.columns": ("label",),
        "model.args": "patch_size=1, depth=1, embed_dim=16, num_heads=2", "optim.batch": 2, "schedule.epochs": 1,
        "schedule.warmup": 0,
    }  # fmt: skip
    recipes = {
        "bag_run": load("bags").with_fields(of_slides),
        "run": once,
        "stopped": recipe,
        "softmax": changed(once, model={"args": f"{DEIT['args']}, mixer='softmax'"}),
        "segment": segment_recipe("seeds/maps", schedule={"steps": 1}, optim=pairs),
        "detect": detect_recipe("seeds/coco", schedule={"epochs": 1, "shape": "cosine", "drops": ()}, optim=pairs),
    }
    for name, one in recipes.items():
        stop = (lambda: True) if name == "stopped" else never
        run_training(make_task(one), root / name, reporter=RecordingReporter(), stop=stop, device="cpu")


def _linear(root: Path) -> None:
    """A distillation that was begun: its options, as `inline linearize` keeps them."""
    (root / "linear").mkdir()
    options = Linearize(model="seeds/softmax", data="seeds/classes", steps=(0, 0, 1), batch=2)
    options._write_options(root / "linear")


def _weights(root: Path) -> None:
    """A published-style pickle of a nano model, a hub folder, and results of benches."""
    (root / "pickle").mkdir()
    model = timm.create_model("inline_deit_nano", num_classes=3)
    torch.save({"model": model.state_dict(), "epoch": 3, "args": {"lr": 1e-3}}, root / "pickle" / "weights.pth")
    trained = load_trained(str(root / "run"))
    data = {
        key: getattr(trained.data, key) for key in ("size", "channels", "crop_mode", "crop", "interpolation", "mean", "std")
    }
    save_for_hub(
        trained.model,
        root / "hub",
        name=trained.name,
        arguments=trained.arguments,
        classes=trained.classes,
        data=data,
        card="# A\n",
    )


def _results(root: Path) -> None:
    results = root / "results"
    results.mkdir()
    shutil.copy(STORED / "reproduce_0_1.json", results / "results.json")
    shutil.copy(STORED.parents[1] / "benchmarks" / "results" / "stream.json", results / "stream.json")
