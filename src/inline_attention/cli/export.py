"""`inline export`: write a classifier or segmenter as a file that other programs run."""

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.console import Console

from ..lite.transform import TRANSFORM_FIELDS
from .arguments import prepare_folder
from .progress import stages

if TYPE_CHECKING:
    from torch import Tensor

    from ..training.load_trained import Trained

LARGEST_SIDE = 16_384
"""Pixels that --sizes may ask for."""
HUB_OPTIONS = ("push", "private")
"""Options of hub folders alone."""
NO_DETECTORS = (
    "its boxes are chosen by their values, which torch.onnx cannot trace for images of any size (both of its exporters were "
    "tried): classifiers and segmenters can be exported"
)
FILE_OPTIONS = ("precision", "data", "root", "sizes", "batches")
"""Options of files alone."""


@dataclass(frozen=True)
class Export:
    """Export a classifier or segmenter as a file for other programs, compared with the model and kept only if it agrees."""

    model: Annotated[str, tyro.conf.Positional]
    """A run's folder, a file of weights (ours or the authors'), or a name: untrained without --pretrained, --weights or tag."""
    pretrained: bool = False
    """Take the published weights of a model that is given by name; they are downloaded unless they are here."""
    weights: Path | None = None
    """For a model that is given by name: a file of weights, or a folder of published files."""
    format: Literal["onnx", "openvino", "torch-export", "aoti", "hub"] = "onnx"
    """ONNX, OpenVINO's IR, torch's own graph, a library compiled for this kind of machine, or a folder that timm loads."""
    out: Path | None = None
    """The file, .onnx, .xml or .pt2, or the folder; unset: named after the model, here."""
    precision: Literal["fp32", "fp16", "bf16", "int8"] = "fp32"
    """Precision of the file's numbers, and with bf16 of the computation; int8 is for ONNX and OpenVINO, bf16 for OpenVINO."""
    data: str | None = None
    """Images to compare accuracy on: any source of `inline train`, or a folder; unset: those of a run, if not in fp32."""
    root: str | None = None
    """Folder of a wds/, hfds/ or torch/ source."""
    split: str | None = None
    """Which split of the images, such as test; unset: the validation set, or all images of a folder without splits."""
    count: int = 1000
    """The most images to compare accuracy on."""
    workers: int | None = None
    """Processes that read images; unset: by the number of cores."""
    sizes: tuple[str, ...] = ()
    """Heights x widths to compare outputs at, such as 224x224 256x320; unset: the model's own and two rectangles like it."""
    batches: tuple[int, ...] = (1, 2, 5)
    """Images at once to compare outputs with."""
    ema: bool = False
    """Take the moving average out of a file that holds both."""
    seed: int = 0
    """Seed of an untrained model's weights, and of the choice of images."""
    json: bool = False
    """Print the description, which is also written beside the file, instead of the table."""
    push: str | None = None
    """Upload the hub folder as OWNER/NAME."""
    private: bool = False
    """Make the repository of --push private."""

    def run(self) -> None:
        """Load the model, write the file, compare the two, print the result."""
        self._check()
        trained = self._load()
        if self.format == "hub":
            from .export_hub import export_hub

            export_hub(self, trained)
            return
        from ..deploy.export import export
        from ..deploy.formats import FORMATS

        suffix = FORMATS[self.format].suffix
        low = ("" if self.precision == "fp32" else f"-{self.precision}") + ("-aoti" if self.format == "aoti" else "")
        out = self.out or Path(f"{trained.name}{low}{suffix}")
        sizes = [_size(text) for text in self.sizes] or sizes_like(trained, odd=self.format == "openvino")
        prepare_folder(out.parent)
        with stages(Console(stderr=True)) as say:
            found = export(
                trained.model,
                out,
                facts=facts_of(trained),
                kind=self.format,
                precision=self.precision,
                batches=self.batches,
                sizes=sizes,
                measure=self._measure(trained, say),
                progress=say,
            )
        if self.json:
            print(json.dumps(found, indent=1))
        else:
            self._print(trained, found, out)

    def _check(self) -> None:
        if not self.batches or min(self.batches) < 1:
            raise ValueError(f"--batches must be positive, got {' '.join(map(str, self.batches)) or 'none'}")
        if self.count < 1:
            raise ValueError(f"--count must be positive, got {self.count}")
        if self.workers is not None and self.workers < 0:
            raise ValueError(f"--workers must not be negative, got {self.workers}")
        for text in self.sizes:
            _size(text)
        other = FILE_OPTIONS if self.format == "hub" else HUB_OPTIONS
        for name in other:
            if getattr(self, name) != getattr(Export, name):
                kind = "files, not for --format hub" if self.format == "hub" else "--format hub"
                raise ValueError(f"--{name} is for {kind}: leave it out")
        if self.private and self.push is None:
            raise ValueError("--private is about the repository that --push OWNER/NAME makes: give that too")
        if self.push is not None and not re.fullmatch(r"[^/\s]+/[^/\s]+", self.push):
            raise ValueError(f"--push takes OWNER/NAME, got {self.push!r}")

    def _load(self) -> "Trained":
        from ..training.load_trained import load_trained, make_named, task_named

        there = Path(self.model).exists()
        if there and self.weights is not None:
            raise ValueError(f"--weights is for a model that is named, and {self.model} has its own: leave out one of the two")
        task = task_named(self.model, self.weights)
        source = str(self.weights or self.model)
        if task == "detect":
            raise ValueError(f"{source} was trained to detect: {NO_DETECTORS}")
        if task == "bags":
            raise ValueError(
                f"{source} is a model for bags of tiles, whose mask an exported file would not take: it has no export"
            )
        if task == "segment":
            return self._load_segmenter(source)
        if there or self.weights is not None or self.pretrained:
            return load_trained(self.model, self.weights, ema=self.ema, pretrained=self.pretrained)
        if self.ema:
            raise ValueError(f"--ema: {self.model} has no weights to take an average out of: --weights FILE")
        trained = make_named(self.model, seed=self.seed)
        if not trained.classes:
            raise ValueError(f"{self.model} has no classifier: there is nothing to export")
        return trained

    def _load_segmenter(self, source: str) -> "Trained":
        from ..training.dense_task import load_dense
        from ..training.load_trained import Trained, metadata_of, spec_of
        from ..training.model_factory import weights_path

        if self.format == "hub" or self.ema or self.data is not None:
            raise ValueError("--format hub, --ema and --data are for models that classify: leave them out")
        dense, path = load_dense(source), weights_path(source)
        _, arguments = spec_of(metadata_of(path), path)
        recipe = dense.task.recipe
        return Trained(dense.model, dense.name, dense.classes, recipe.data, dense.loaded, arguments=arguments, task=recipe.task)

    def _measure(
        self, trained: "Trained", say: Callable[[str], None]
    ) -> Callable[[Callable[["Tensor"], "Tensor"]], Mapping[str, Any]] | None:
        """A function that compares the file with the model on real images; None if there are none."""
        if (self.data is None and (self.precision == "fp32" or not Path(self.model).is_dir())) or trained.task is not None:
            return None
        from .compare_export import compare_predictions, open_eval_set

        images = open_eval_set(trained, self.model, self.data, self.root, self.split)
        return lambda run: compare_predictions(
            trained, run, images, count=self.count, workers=self.workers, seed=self.seed, say=say
        )

    def _print(self, trained: "Trained", found: Mapping[str, Any], out: Path) -> None:
        from ..deploy.formats import FORMATS
        from ..lite.description import description_of

        checked, accuracy = found["checked"], found["accuracy"]
        share = checked["of_largest_output"]
        rows = {
            "file": str(out),
            "described in": str(description_of(out)),
            "bytes": f"{found['bytes']:,}",
            "largest difference": f"{checked['largest_difference']:.1e} at {checked['at']}, {share:.1e} of the largest output",
        }
        if accuracy is not None:
            rows["images"] = f"{accuracy['images']:,} of {accuracy['data']}"
            if accuracy["change"] is not None:
                rows["top-1 of the model"] = f"{accuracy['model_top1']:.2f} %"
                rows["top-1 of the file"] = f"{accuracy['file_top1']:.2f} %"
                rows["change"] = f"{accuracy['change']:+.2f}"
            rows["same top-1"] = f"{accuracy['same_top1']:.2f} %"
        print(f"{trained.name}: {trained.loaded}" + ("" if trained.trained else "; its weights are random"))
        print_rows(rows)
        if accuracy is not None and accuracy["change"] is None:
            print(f"The classes of {accuracy['data']} are not the model's: only their agreement can be measured.")
        if accuracy is None and self.precision != "fp32":
            remedy = ": --data DIR measures it" if trained.task is None else ""
            print(f"The effect of {self.precision} on accuracy was not measured{remedy}.")
        if self.format in ("onnx", "openvino"):
            print(f"Use it: inline predict --{self.format} {shlex.quote(str(out))} IMAGES")
        else:
            print(f"Load it: {FORMATS[self.format].load.format(path=str(out))}")


def print_rows(rows: Mapping[str, str]) -> None:
    """Print labels and values, a line each."""
    width = max(map(len, rows))
    for label, text in rows.items():
        print(f"  {label:{width}}  {text}")


def facts_of(trained: "Trained") -> dict[str, Any]:
    """The facts about a model that the description of its file records."""
    data = {key: getattr(trained.data, key) for key in TRANSFORM_FIELDS}
    facts = {
        "model": trained.name,
        "arguments": dict(trained.arguments),
        "weights": trained.loaded,
        "classes": list(trained.classes),
        "data": data,
    }
    task = trained.task
    if task is None:
        return facts
    (height, width), windows = trained.data.size, None
    if task.inference == "slide":
        windows = [height, width, max(1, int(height * task.stride)), max(1, int(width * task.stride))]
    side = min(height, width) if task.side is None else task.side
    more = {"side": side, "longest": task.longest, "windows": windows}
    return {**facts, "task": task.name, "head": task.head, "width": task.width, "data": {**data, **more}}


def sizes_like(trained: "Trained", *, odd: bool = False) -> list[tuple[int, int]]:
    """The model's own size, a larger rectangle and a smaller one; for 224 x 224 also 256 x 320 and 160 x 96.

    With `odd` four more, whose sides are odd: 101 x 67, 137 x 251, and two hardly larger than the least.
    """
    from ..deploy.verify import ODD_SIZES, SIZES
    from ..models.backbone import SMALLEST, Backbone

    height, width = trained.data.size
    least = max(SMALLEST, 2 * trained.model.patch_size) if isinstance(trained.model, Backbone) else min(height, width, 32)
    sizes = [(max(least, round(tall * height / 224)), max(least, round(wide * width / 224))) for tall, wide in SIZES]
    if odd:
        sizes += [(max(least, tall * height // 224) | 1, max(least, wide * width // 224) | 1) for tall, wide in ODD_SIZES]
        sizes += [(least + 5 | 1, least + 14 | 1), (least + 22 | 1, least + 2 | 1)]
    return list(dict.fromkeys(sizes))


def _size(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)x(\d+)", text)
    if not found or not all(0 < int(side) <= LARGEST_SIDE for side in found.groups()):
        raise ValueError(f"--sizes are heights and widths such as 224x224 256x320, got {text!r}")
    return int(found[1]), int(found[2])
