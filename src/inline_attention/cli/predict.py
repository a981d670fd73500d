"""`inline predict`: what is in a picture."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

if TYPE_CHECKING:
    import torch

    from ..training.trained import Trained


@dataclass(frozen=True)
class Predict:
    """What is in pictures: the five likeliest classes of each; or, drawn over them, objects or classes of pixels."""

    pictures: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Files, folders, or '-' for the standard input: a picture, or a list of paths, one a line."""
    model: str | None = None
    """A run's folder, a file of weights, or a model's name with --weights; unset: the newest run under runs/."""
    task: Literal["classify", "detect", "segment"] | None = None
    """What the model was trained for; unset: as its file says."""
    weights: Path | None = None
    """File of weights for a model that is named."""
    onnx: Path | None = None
    """A classifier exported to ONNX, with its .json beside it, in place of --model: needs onnxruntime and no torch."""
    out: Path | None = None
    """Folder for the pictures that detectors and segmenters draw; unset: predictions/."""
    threshold: float | None = None
    """Detection: the least score of an object that is told; unset: 0.5."""
    inference: Literal["whole", "slide"] | None = None
    """Segmentation: whole pictures, or windows of the training crop; unset: as trained."""
    side: int | None = None
    """Segmentation: shorter side to show pictures at, 0 for their own; unset: as trained."""
    top: int = 5
    """How many classes to name."""
    ema: bool = False
    """Take the moving average out of a file that holds both."""
    batch: int = 16
    """Pictures at once."""
    stream: bool = False
    """Show each file as it is, of whatever size, one by one in bands of rows, instead of resized: for all-InLine models."""
    folder: Path | None = None
    """Where --stream keeps what it works on; unset: the system's place for such files."""
    skip_bad: bool = False
    """Name pictures that cannot be read and go on, instead of stopping."""
    device: str = "cpu"
    """Where the model runs."""
    json: bool = False
    """Print one line of JSON for each picture."""

    def run(self) -> None:
        """Look at the pictures, a batch at a time, and print as they come."""
        if self.onnx is not None:
            self._onnx(self.onnx)
            return
        from ..training.trained import load_trained, task_named
        from .arguments import usable_device
        from .predict_dense import predict_dense
        from .train import newest_run

        self._check()
        device = usable_device(self.device)
        model = self.model or str(newest_run())
        if self.model is None:
            print(f"inline: by the newest run, {model}", file=sys.stderr)
        task = task_named(model, self.weights)
        if self.task not in (None, task):
            raise ValueError(f"{self.weights or model} was trained to {task}, not to {self.task}")
        if task != "classify":
            predict_dense(self, str(self.weights or model), device)
            return
        for name in ("out", "threshold", "inference", "side"):
            if getattr(self, name) is not None:
                raise ValueError(f"--{name} is for models that detect or segment: leave it out")
        trained = load_trained(model, self.weights, ema=self.ema)
        trained.model.to(device)
        if self.stream:
            self._stream(trained)
        else:
            self._resize(trained, device)

    def _check(self) -> None:
        if not self.pictures:
            raise ValueError("no pictures: give files, folders, or '-' for the standard input")
        if self.batch < 1 or self.top < 1:
            raise ValueError(f"--batch and --top must be positive, got {self.batch} and {self.top}")
        if self.folder is not None and not self.stream:
            raise ValueError(f"--folder {self.folder} is where --stream works: give --stream too")

    def _onnx(self, file: Path) -> None:
        """As `main` does it where torch is not installed."""
        from .predict_onnx import ELSEWHERE, PredictOnnx, does_not_go

        for name in ELSEWHERE:
            if getattr(self, name) != getattr(Predict, name):
                raise ValueError(does_not_go(name))
        PredictOnnx(self.pictures, file, self.top, self.batch, self.skip_bad, self.json).run()

    def _resize(self, trained: "Trained", device: "torch.device") -> None:
        """Pictures as the model was trained on them, a batch at a time."""
        import torch

        from ..plain.opening import opened_pictures
        from ..training.trained import top_classes
        from ..training.view import evaluation_view
        from .batches import in_batches, tell_classes

        view, channels = evaluation_view(trained.data), trained.data.channels
        pictures = opened_pictures(self.pictures)
        for names, shown in in_batches(pictures, view, channels, self.batch, skip_bad=self.skip_bad):
            tell_classes(names, top_classes(trained, torch.stack(shown).to(device), self.top), as_json=self.json)

    def _stream(self, trained: "Trained") -> None:
        """Each picture at its own size, with a bar."""
        from rich.console import Console

        from ..models.bands import all_linear
        from ..models.picture import open_picture
        from ..models.streaming import stream
        from ..training.trained import likeliest
        from .batches import tell_classes
        from .progress import step_counter

        data = trained.data
        mean, std = (part if data.channels == 3 else (sum(part) / 3,) for part in (data.mean, data.std))
        all_linear(trained.model, "--stream")
        for name in self.pictures:
            if not Path(name).is_file():
                raise ValueError(f"--stream takes files, pictures or .npy arrays, got {name}")
            try:
                picture = open_picture(name, channels=data.channels, mean=mean, std=std)
                with step_counter(Path(name).name, Console(stderr=True)) as tell:
                    found = stream(trained.model, picture, progress=tell, folder=self.folder)
            except ValueError as error:
                if not self.skip_bad:
                    raise ValueError(f"{name}: {error} (--skip-bad goes on)") from error
                print(f"inline: {name}: {error}", file=sys.stderr)
                continue
            tell_classes([name], likeliest(trained, found.logits, self.top), as_json=self.json)
