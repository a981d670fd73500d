"""The models that `inline analyze` compares, and the images that all of them get."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from ..analysis.model_analysis import AnalyzedModel
    from ..training.load_trained import Trained


@dataclass(frozen=True)
class LoadedModel:
    """A model, with the name by which the user gave it."""

    given: str
    trained: "Trained"
    subject: "AnalyzedModel"


@dataclass(frozen=True)
class AnalyzedImages:
    """Images, their labels if they have any, and their source."""

    images: list["Image.Image"]
    labels: list[int] | None
    source: str
    classes: tuple[str, ...] = ()
    """Names of the labels: the classes of the first model."""
    names: tuple[str, ...] = ()
    """Of the images, for messages."""


def load_models(names: Sequence[str], *, pretrained: bool, seed: int, device: "torch.device") -> list[LoadedModel]:
    """Load runs' folders, files of weights, and models by name: untrained, but for tags and with `pretrained`."""
    from ..analysis.model_analysis import AnalyzedModel
    from ..data.transforms import evaluation_transform
    from ..training.load_trained import load_trained, make_named

    if not names:
        raise ValueError("no model: give runs' folders, files of weights, or names such as inline_deit_nano")
    found = []
    labels = _labels(names)
    for given, label in zip(names, labels, strict=True):
        there = Path(given).exists()
        trained = load_trained(given) if there else make_named(given, pretrained=pretrained, seed=seed)
        label += "" if trained.trained else " (untrained)"
        found.append(
            LoadedModel(
                given, trained, AnalyzedModel(label, trained.model.to(device), _transform(trained, evaluation_transform))
            )
        )
    return found


def _transform(trained: "Trained", make_transform: Callable[..., Any]) -> Callable[["Image.Image"], "torch.Tensor"]:
    """From an image, grey or not, to the model's input."""
    transform, mode = make_transform(trained.data), "RGB" if trained.data.channels == 3 else "L"
    return lambda image: transform(image.convert(mode))


def load_images(
    models: Sequence[LoadedModel], count: int, *, data: str | None, root: str | None, split: str | None, seed: int
) -> AnalyzedImages:
    """Some validation images, drawn by the seed: of the data, or those of the first run or of the first model's weights.

    Where a model is not known to belong to images, they are sample images.

    They have labels if their classes are those of the first run, or of the first model.
    """
    import torch

    from ..analysis.sample_images import PHOTOS, sample_image
    from ..data.config import DataConfig
    from ..data.datasets import StreamingDataset
    from ..data.sources import open_split
    from ..data.splits import NoSplitError
    from ..models.packaged_weights import PACKAGED
    from ..training.eval_images import validation_set

    if count < 1:
        raise ValueError(f"--count must be positive, got {count}")
    first = next((one for one in models if Path(one.given).is_dir()), models[0])
    if data is None and not Path(first.given).is_dir() and first.given not in PACKAGED:
        return AnalyzedImages([sample_image(name) for name in PHOTOS][:count], None, "sample images")
    labelled = True
    try:
        images = validation_set(first.trained, first.given, data, root, split)
        dataset, source = images.source.val, images.name
    except NoSplitError:
        raise
    except ValueError:
        if data is None:
            raise
        labelled, source = False, data  # images of other classes can be analysed all the same
        dataset = open_split(DataConfig(source=data, root=root), split).val
    if isinstance(dataset, StreamingDataset):
        raise ValueError(f"{source} comes as a stream: images can be drawn from folders, archives and data sets only")
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(seed)).tolist()[:count]
    pairs = [dataset.load(index, 3) for index in order]
    labels = [label for _, label in pairs] if labelled else None
    names = tuple(dataset.name(index) for index in order)
    return AnalyzedImages([image for image, _ in pairs], labels, source, first.trained.classes, names)


def choose_image(image: str | None, analyzed: AnalyzedImages) -> tuple["Image.Image", str]:
    """The image of a file, a sample by its name, or the first analysed image; and its name."""
    from ..analysis.sample_images import SAMPLES, sample_image
    from ..lite.decode import decode

    if image is None:
        return analyzed.images[0], f"the first of {analyzed.source}"
    if image in SAMPLES and not Path(image).exists():
        return sample_image(image), image
    if not Path(image).is_file():
        raise ValueError(f"{image} is neither a file nor a sample; samples are: {', '.join(SAMPLES)}")
    return decode(Path(image).open("rb"), image, 3), image


def whole_image(one: LoadedModel, image: "Image.Image") -> "torch.Tensor":
    """(1, C, H, W): the model's input, from the image without a crop."""
    from ..data.transforms import full_image_transform

    return _transform(one.trained, full_image_transform)(image)[None].to(next(one.subject.model.parameters()).device)


def to_draw(image: "Image.Image", most: int = 480) -> "torch.Tensor":
    """(H, W, 3) in 0..1, no larger than a figure needs, and of no larger aspect ratio."""
    import numpy as np
    import torch

    from ..analysis.map_plots import LARGEST_ASPECT

    small = image.convert("RGB")
    small.thumbnail((most, most))
    least = round(max(small.size) / LARGEST_ASPECT)
    small = small.resize((max(small.width, least), max(small.height, least)))
    return torch.from_numpy(np.asarray(small) / np.float32(255))


def _labels(names: Sequence[str]) -> list[str]:
    """Short names, all different."""
    short = [Path(name).name or name for name in names]
    counts = Counter(short)
    found = [name if counts[end] > 1 else end for name, end in zip(names, short, strict=True)]
    repeated = [label for label, times in Counter(found).items() if times > 1]
    if repeated:
        raise ValueError(f"{repeated[0]} is given more than once")
    return found
