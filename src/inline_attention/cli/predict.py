"""`inline predict`: classify images or slides; or, with detectors and segmenters, draw what they find."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from .large_options import LargeOptions
from .main import warn
from .map_options import MapOptions

if TYPE_CHECKING:
    import torch

    from ..training.load_trained import Trained


@dataclass(frozen=True)
class Predict:
    """Classify images; draw objects or segments over them; or predict slides from files of tile features, as the model does.

    With --onnx FILE or --openvino FILE, an exported model is used, without torch: `inline predict --onnx FILE --help`.
    """

    images: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Files, folders, or '-' for the standard input: an image, or a list of paths, one a line. Or files of features."""
    model: str | None = None
    """A run's folder, a file of weights, or a model's name with --pretrained or --weights; unset: the newest under runs/."""
    task: Literal["classify", "detect", "segment", "bags", "slides"] | None = None
    """What the model was trained for; unset: as its file says."""
    pretrained: bool = False
    """Take the published weights of a model that is given by name; they are downloaded unless they are here."""
    weights: Path | None = None
    """For a model that is given by name: a file of weights, or a folder of published files."""
    out: Path | None = None
    """Folder for the images that detectors and segmenters draw, and for maps; with --stream, a file for one map."""
    attention: bool = False
    """Slides: write how the model weighs each tile, as GeoJSON that QuPath opens and as PNG."""
    layer: int = -1
    """Of --attention: the number of the layer, from 0 on; -1: the last one."""
    threshold: float | None = None
    """Detection: the least score of an object that is printed and drawn; unset: 0.5."""
    inference: Literal["whole", "slide"] | None = None
    """Segmentation: whole images, or windows of the training crop; unset: as trained."""
    side: int | None = None
    """Segmentation: shorter side that images are resized to, 0 for their own; unset: as trained."""
    top: int = 5
    """How many classes to name."""
    ema: bool = False
    """Take the moving average out of a file that holds both."""
    batch: int = 16
    """Images at once."""
    stream: bool = False
    """Classify or segment each file at its own size, however large, in bands of rows, not resized: TIFF, slides, .npy ..."""
    large: Annotated[LargeOptions, tyro.conf.arg(name="")] = field(default_factory=LargeOptions)
    maps: Annotated[MapOptions, tyro.conf.arg(name="")] = field(default_factory=MapOptions)
    folder: Path | None = None
    """Folder for the temporary files of --stream; unset: the system's."""
    skip_bad: bool = False
    """Name images that cannot be read and go on, instead of stopping."""
    device: str = "cpu"
    """Where the model runs: cpu, cuda, mps."""
    json: bool = False
    """Print one line of JSON for each image."""

    def run(self) -> None:
        """Predict a batch at a time, and print as results come."""
        from ..training.load_trained import load_trained, task_named
        from .arguments import usable_device
        from .train import newest_run

        self._check()
        device = usable_device(self.device)
        if self.pretrained and self.model is None:
            raise ValueError("--pretrained is for a model that is named: give --model NAME")
        model = self.model or str(newest_run())
        if self.model is None:
            warn(f"by the newest run, {model}")
        task = task_named(model, self.weights)
        if self.task not in (None, task):
            raise ValueError(f"{self.weights or model} was trained to {task}, not to {self.task}")
        if not (task == "segment" and self.stream):
            self.maps.refuse()
        if task != "bags" and (self.attention or self.layer != -1):
            raise ValueError("--attention and --layer are for models of slides: `inline analyze maps` draws those of images")
        if task != "classify":
            self._predict_other(task, str(self.weights or model), device)
            return
        for name in ("out", "threshold", "inference", "side"):
            if getattr(self, name) is not None:
                raise ValueError(f"--{name} is for models that detect or segment: leave it out")
        trained = load_trained(model, self.weights, ema=self.ema, pretrained=self.pretrained)
        trained.model.to(device)
        if self.stream:
            self._stream(trained)
        else:
            self._resize(trained, device)

    def _predict_other(self, task: str, model: str, device: "torch.device") -> None:
        """Boxes, masks and labels of pixels, and slides."""
        from .bags import predict_bags
        from .dense import predict_dense
        from .segment_files import predict_maps
        from .slides import predict_slides

        if task == "bags":
            predict_bags(self, model, device)
        elif task == "slides":
            predict_slides(self, model, device)
        elif task == "segment" and self.stream:
            predict_maps(self, model, device)
        else:
            predict_dense(self, model, device)

    def _check(self) -> None:
        if not self.images:
            raise ValueError("no images: give files, folders, or '-' for the standard input")
        if self.batch < 1 or self.top < 1:
            raise ValueError(f"--batch and --top must be positive, got {self.batch} and {self.top}")
        if self.folder is not None and not self.stream:
            raise ValueError(f"--folder {self.folder} is where --stream works: give --stream too")
        if not self.stream:
            self.large.refuse_without("--stream")

    def _resize(self, trained: "Trained", device: "torch.device") -> None:
        """Classify resized images, a batch at a time."""
        import torch

        from ..data.transforms import evaluation_transform
        from ..lite.image_paths import open_images
        from ..training.load_trained import top_classes
        from .predict_output import in_batches, print_classes

        transform, channels = evaluation_transform(trained.data), trained.data.channels
        images = open_images(self.images)
        for names, pixels in in_batches(images, transform, channels, self.batch, skip_bad=self.skip_bad):
            print_classes(names, top_classes(trained, torch.stack(pixels).to(device), self.top, names), as_json=self.json)

    def _stream(self, trained: "Trained") -> None:
        """Classify each image at its own size, with a progress bar."""
        from rich.console import Console

        from ..data.transforms import normalisation
        from ..large.image_reader import open_image
        from ..large.stages import ways_through
        from ..large.stream import stream
        from ..lite.text import printable
        from ..training.load_trained import top_of_logits
        from .file_batch import explain_failure, find_files
        from .predict_output import print_classes
        from .progress import step_counter

        data = trained.data
        mean, std = normalisation(data)
        ways_through(trained.model, "--stream")
        for name in [str(file.path) for file in find_files(self.images)]:
            try:
                image = open_image(self.large.open(name), channels=data.channels, mean=mean, std=std)
                with step_counter(printable(Path(name).name), Console(stderr=True), "band") as progress:
                    found = stream(trained.model, image, progress=progress, folder=self.folder)
            except Exception as error:  # the other images are classified all the same
                said = explain_failure(Path(name), error)
                if not self.skip_bad:
                    raise ValueError(f"{said} (--skip-bad goes on)") from error
                warn(said)
                continue
            print_classes([name], top_of_logits(trained, found.logits, self.top, [name]), as_json=self.json)
