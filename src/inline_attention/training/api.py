"""Training, evaluation and prediction from Python; `inline_attention.training` has these names."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from ..data.config import DataConfig
from ..data.sources import Source, open_source
from ..data.transforms import evaluation_transform
from ..lite.decode import BadImageError, decode
from ..ops.checks import find_device
from .bags import BagModel, load_bags
from .chosen_recipe import choose_recipe, looks_dense
from .classify import Classify
from .config import Recipe
from .dense_task import DenseModel, load_dense
from .engine import Reporter
from .eval_images import eval_images
from .load_trained import Trained, load_trained, task_named, top_classes
from .recipe import absolute_source
from .recipe import load as load_recipe
from .recipe import shipped as _shipped
from .run import TrainingResult, run_training
from .run_folder import RunFolder, new_run_folder
from .slides import SlideModel, load_slides
from .task import Score, Task, evaluate_once, make_task

__all__ = ["Recipe", "evaluate", "list_recipes", "load_recipe", "predict", "train"]

BATCH = 64


def list_recipes() -> list[str]:
    """Names of the recipes in the package, for `load_recipe`."""
    return list(_shipped())


def train(
    recipe: Recipe | str | None = None,
    data: str | Path | None = None,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    device: str = "auto",
    reporter: Reporter | None = None,
) -> TrainingResult:
    """Train a model and return what was reached.

    Args:
        recipe: a recipe, or the name or TOML file of one; None for one that suits the images.
        data: images, such as a folder of class folders, in place of the recipe's `data.source`.
        out: folder of the run; None for a new one under runs/.
        resume: go on with the run in `out`, by its own recipe.
        device: 'auto', 'cpu', or the accelerator that must be there.
        reporter: receives messages and metrics while it runs; None for silence.

    Example:
        >>> recipe = load_recipe("digits").with_fields({"schedule.steps": 2, "schedule.warmup": 0})
        >>> result = train(recipe, out="runs/two_steps")
        >>> result.finished, result.metrics["step"], (result.folder / "best.safetensors").exists()
        (True, 2, True)
    """
    source: Source | None = None
    if resume:
        if out is None or recipe is not None:
            raise ValueError("resume=True goes on with the run in `out`, by its own recipe: give `out`, and no recipe")
        recipe = RunFolder(Path(out)).recipe()
    elif recipe is None:
        if data is None:
            recipe = load_recipe("digits")
        else:
            if suited := looks_dense(Path(data).expanduser()):
                raise ValueError(f"{data} has {suited[1]}, not class folders: choose a recipe for the task {suited[0]}")
            source = open_source(DataConfig(source=absolute_source(str(data))))
            recipe = choose_recipe(str(data), source)[1]
    elif isinstance(recipe, str):
        recipe = load_recipe(recipe)
    if data is not None:
        recipe = recipe.with_fields({"data.source": absolute_source(str(data))})
    folder = Path(out) if out is not None else new_run_folder(recipe)
    if not resume and (folder / "recipe.toml").exists():
        raise ValueError(f"{folder} holds a run: give resume=True, or another `out`")
    return run_training(make_task(recipe), folder, source=source, resume=resume, reporter=reporter, device=device)


def evaluate(
    model: str | Path | Trained | DenseModel | BagModel | SlideModel,
    data: str | Path | None = None,
    *,
    split: str | None = None,
    batch: int | None = None,
    workers: int | None = None,
    skip_bad: bool = False,
    device: str = "auto",
) -> Score:
    """Score a trained model on a validation set.

    Args:
        model: a run's folder, a file of weights, or a loaded model.
        data: images; None for those of the run.
        split: of these, such as 'test'; None for the validation set, or for all images of a folder without splits.
        batch: images at once; None for 64 to classify, else 4.
        workers: processes that read images; None for as many as there are cores.
        skip_bad: leave out images that cannot be read, and list them in the score, instead of stopping.
        device: 'auto', 'cpu', or the accelerator that must be there.

    Example:
        >>> evaluate("runs/two_steps").images
        359
    """
    loaded, name = _load(model), "the model" if isinstance(model, Trained | DenseModel | BagModel | SlideModel) else str(model)
    task: Task = Classify(Recipe(data=loaded.data)) if isinstance(loaded, Trained) else loaded.task
    images = None if data is None else absolute_source(str(data))
    source = eval_images(task, loaded.classes, name, images, split=split, skip_bad=skip_bad).source
    source = replace(source, classes=loaded.classes)
    score = evaluate_once(loaded.model, task, source, device=device, batch=batch, workers=workers, skip_bad=skip_bad)
    return replace(score, bad=(*source.bad, *score.bad))


def predict(
    model: str | Path | Trained | DenseModel | BagModel | SlideModel,
    images: str | Path | Image.Image | Iterable[str | Path | Image.Image],
    *,
    top: int = 5,
    batch: int = BATCH,
    skip_bad: bool = False,
    device: str = "auto",
) -> list[Any]:
    """Predict images, in their order.

    Args:
        model: a run's folder, a file of weights, or a loaded model.
        images: one image or several: files, or images in memory; files of tile features for a model of slides.
        top: classes of each image.
        batch: images at once; detectors and segmenters take one by one.
        skip_bad: return None for images that cannot be read, instead of stopping.
        device: 'auto', 'cpu', 'cuda' and so on.

    Returns:
        For each image of a classifier, the most likely classes with their probabilities; of a detector, its boxes, labels,
        scores and masks; of a segmenter, the class of every pixel, (H, W). For each file of tile features of a slide, the
        probability of each class or label, or its number, by name.

    Example:
        >>> from PIL import Image
        >>> [(name, probability), *others] = predict("runs/two_steps", [Image.new("L", (8, 8))])[0]
        >>> name in set("0123456789"), len(others)
        (True, 4)
    """
    loaded, place = _load(model), find_device(device)
    images = [images] if isinstance(images, str | Path | Image.Image) else images
    network = loaded.model.to(place)
    if isinstance(loaded, BagModel):
        return _predict_bags(loaded, images, place, skip_bad=skip_bad)
    if isinstance(loaded, SlideModel):
        return _predict_slides(loaded, images, skip_bad=skip_bad)
    data = loaded.task.recipe.data if isinstance(loaded, DenseModel) else loaded.data
    transform = None if isinstance(loaded, DenseModel) else evaluation_transform(data)
    numbered = zip(images, count(1), strict=False)
    opened = (_read(image, number, data.channels, transform, skip_bad=skip_bad) for image, number in numbered)
    if isinstance(loaded, DenseModel):
        return [None if image is None else loaded.task.predict(network, image, place, name) for name, image in opened]
    found = list[Any]()
    while taken := list(islice(opened, batch)):  # batch by batch, so that memory does not grow with their number
        names, pixels = [name for name, image in taken if image is not None], [image for _, image in taken if image is not None]
        classes = iter(top_classes(loaded, torch.stack(pixels).to(place), top, names) if pixels else ())
        found += [None if image is None else next(classes) for _, image in taken]
    return found


def _load(model: str | Path | Trained | DenseModel | BagModel | SlideModel) -> Trained | DenseModel | BagModel | SlideModel:
    if isinstance(model, Trained | DenseModel | BagModel | SlideModel):
        return model
    task = task_named(str(model))
    if task == "bags":
        return load_bags(str(model))
    if task == "slides":
        return load_slides(str(model))
    return load_trained(str(model)) if task == "classify" else load_dense(str(model))


def _predict_bags(model: BagModel, files: Iterable[Any], device: torch.device, *, skip_bad: bool) -> list[Any]:
    """Predictions of files of tile features; see `BagModel.predict`."""
    found = list[Any]()
    for file in files:
        if isinstance(file, Image.Image):
            raise ValueError("a model for bags of tiles takes files of features, got an image")
        try:
            found.append(model.predict(model.read(Path(file)), device, str(file)))
        except BadImageError:
            if not skip_bad:
                raise
            found.append(None)
    return found


def _predict_slides(model: SlideModel, files: Iterable[Any], *, skip_bad: bool) -> list[Any]:
    """Predictions of images of slides; see `SlideModel.predict`."""
    found = list[Any]()
    for file in files:
        if isinstance(file, Image.Image):
            raise ValueError("a model for slides takes image files, which it reads by rows, got an image in memory")
        try:
            found.append(model.predict(Path(file)))
        except BadImageError:
            if not skip_bad:
                raise
            found.append(None)
    return found


def _read(
    image: str | Path | Image.Image,
    number: int,
    channels: int,
    transform: Callable[[Image.Image], Any] | None,
    *,
    skip_bad: bool,
) -> tuple[str, Any]:
    """Name of the image, and the decoded image, transformed; None for one that cannot be read, with `skip_bad`."""
    name = f"image {number}" if isinstance(image, Image.Image) else str(image)
    if not isinstance(image, Image.Image) and not Path(image).is_file():
        raise ValueError(f"there is no image {image}")
    try:
        opened = image.copy() if isinstance(image, Image.Image) else Path(image).open("rb")  # noqa: SIM115  `decode` closes it
        decoded = decode(opened, name, channels)
        return name, decoded if transform is None else transform(decoded)
    except BadImageError:
        if not skip_bad:
            raise
        return name, None
