"""What the sub-commands of `inline analyze` share: options, loading, progress, output."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .analyze_inputs import AnalyzedImages, LoadedModel, load_images, load_models
from .arguments import prepare_folder, usable_device
from .console import table_console
from .main import warn
from .progress import counter, track

if TYPE_CHECKING:
    import torch

    from ..analysis.capture import Captured
    from ..analysis.masked_accuracy import MaskedAccuracy

LAYERS = 5
"""Layers that a figure draws of a model that has more: evenly spread, with the first and the last."""


@dataclass(frozen=True)
class Analysis:
    """The options of every sub-command of `inline analyze`, and how each begins and ends."""

    models: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Runs' folders, files of weights, or names of models: ours, or any vision transformer of timm's. Names are untrained, but
    for those with a tag: inline_swin_nano.digits is in the package."""
    pretrained: bool = False
    """Take the published weights of models that are given by name; they are downloaded unless they are here."""
    data: str | None = None
    """Images: any source of `inline train` (its validation set), or a folder of class folders; unset: the validation set of the
    first run, or of the first model of the package that is trained, or sample images."""
    root: str | None = None
    """Folder of a wds/, hfds/ or torch/ source."""
    split: str | None = None
    """Which split of the images, such as test; unset: the validation set, or all images of a folder without splits."""
    count: int = 32
    """How many images to analyse."""
    out: Path = Path("analysis")
    """Folder for the PNG and JSON files."""
    seed: int = 0
    """Seed of the choice of images, and of the weights of untrained models."""
    device: str = "cpu"
    """Where to compute: cpu, cuda, mps."""
    json: bool = False
    """Print JSON instead of the table."""

    def begin(self) -> tuple[list[LoadedModel], AnalyzedImages]:
        """Load the models, and the images that all of them get."""
        device = usable_device(self.device)
        prepare_folder(self.out)
        models = load_models(self.models, pretrained=self.pretrained, seed=self.seed, device=device)
        images = load_images(models, self.count, data=self.data, root=self.root, split=self.split, seed=self.seed)
        return models, images

    def capture(self, model: LoadedModel, images: AnalyzedImages, label: str) -> Iterator["Captured"]:
        """The captured attention of a model, a few images at a time, with a progress bar."""
        from ..analysis.model_analysis import capture_batches

        size = 8
        batches = capture_batches(model.subject, images.images, size, images.names)
        console = Console(stderr=True)
        total = -(-len(images.images) // size)
        for number, seen in enumerate(track(batches, f"{label}: {model.subject.label}", total, console)):
            if number == 0:
                warn_left_out(model.subject.label, seen)
            yield seen

    def write(self, name: str, numbers: dict[str, Any], tables: Sequence[Table], files: Sequence[Path], *lines: str) -> None:
        """Write JSON to a file; print tables, sentences and the names of all files, or with --json the JSON alone."""
        text = json.dumps(numbers, indent=1)
        (self.out / f"{name}.json").write_text(text + "\n")
        if self.json:
            print(text)
            return
        console = table_console()
        for table in tables:
            if table.title:
                console.print(table.title, highlight=False, soft_wrap=True, markup=False)
                table.title = None
            console.print(table)
        written = [self.out / f"{name}.json", *files]
        for line in (*lines, f"Written: {', '.join(map(str, written))}"):
            console.print(line, highlight=False, soft_wrap=True, markup=False)


def measure_masking(
    model: LoadedModel, images: AnalyzedImages, sizes: Sequence[int], batch: int, seed: int
) -> "MaskedAccuracy":
    """Accuracy with tokens masked, over the images, with a progress bar."""
    import torch

    from ..analysis.masked_accuracy import masked_accuracy

    if images.labels is None:
        raise ValueError("masking needs images with classes: give trained runs, or --data DIR with a model's classes")
    if model.trained.classes != images.classes:
        raise ValueError(f"{model.subject.label} does not know the classes of {images.source}")
    device = next(model.subject.model.parameters()).device
    labels = torch.tensor(images.labels)

    def batches() -> Iterator[tuple["torch.Tensor", "torch.Tensor"]]:
        for start in range(0, len(images.images), batch):
            pixels = torch.stack([model.subject.prepare(image) for image in images.images[start : start + batch]])
            yield pixels.to(device), labels[start : start + batch].to(device)

    with counter(f"masking: {model.subject.label}", len(images.images), Console(stderr=True)) as progress:
        return masked_accuracy(model.subject.model, batches(), sizes, seed=seed, progress=progress)


def make_table(*columns: str, title: str | None = None) -> Table:
    """An empty table: a row for each model, or for each layer of the model that the title names."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), title=title, title_justify="left")
    for column in columns if title else ("model", *columns):
        left = column in ("model", "layer", "attention", "hidden")
        table.add_column(column, justify="left" if left else "right", overflow="fold")
    return table


def warn_left_out(label: str, seen: "Captured") -> None:
    """Print a warning if layers could not be captured."""
    if seen.left_out:
        reason = f"{len(seen.left_out)} layers attend within windows that do not fit the image, or pool: left out"
        warn(f"{label}: {reason}")


def spread(layers: int) -> list[int]:
    """Numbers of some layers, with the first and the last."""
    return sorted({round(place * (layers - 1) / (LAYERS - 1)) for place in range(LAYERS)})


def check_point(point: tuple[float, float]) -> tuple[float, float]:
    """Return the point, if it is on the image; raise otherwise."""
    if not all(0 <= share <= 1 for share in point):
        raise ValueError(f"--point is two shares of the image, from 0 to 1, got {point[0]} {point[1]}")
    return point


def name_images(images: AnalyzedImages) -> str:
    """How many images, and their source, in words."""
    return f"{len(images.images):,} images of {images.source}"


def image_facts(images: AnalyzedImages) -> dict[str, Any]:
    """How many images, and their source, for JSON."""
    return {"images": len(images.images), "source": images.source}
