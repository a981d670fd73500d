"""`inline predict --onnx FILE` and `--openvino FILE`: classify or segment images by an exported model, without torch."""

import json
from abc import abstractmethod
from argparse import SUPPRESS, ArgumentParser, BooleanOptionalAction
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NoReturn

from .arguments import explain_unknown, option_types, prepare_folder
from .predict_output import DrawingPaths, in_batches, print_classes, segment_facts, segment_lines, single_images

if TYPE_CHECKING:
    from typing_extensions import Self

    from ..lite.classifier import Classifier
    from ..lite.runtime import Runtime
    from ..lite.segmenter import ExportedSegmenter

NOT_FOR_FILES = (
    *("model", "task", "pretrained", "weights", "threshold", "inference", "side", "ema", "stream", "folder", "device"),
    *("large", "maps", "attention", "layer"),
)
"""Options of `inline predict` that an exported file has no use for."""


@dataclass(frozen=True)
class PredictExported:
    """Classify or segment images by an exported model. The options that `Predict` has too mean the same."""

    images: tuple[str, ...]
    top: int = 5
    out: Path | None = None
    batch: int = 16
    skip_bad: bool = False
    json: bool = False
    kind: ClassVar[str]
    """The option with the file."""

    @property
    @abstractmethod
    def runtime(self) -> "Runtime":
        """What runs the file."""

    @classmethod
    def from_words(cls, words: list[str]) -> "Self":
        """Parse the words after `inline predict` with argparse, because tyro may not be installed."""
        end = words.index("--") if "--" in words else len(words)
        options, rest = _parser(cls.kind).parse_known_args(words[:end])
        unknown = [word for word in rest if word.startswith("-") and word != "-"]
        if unknown:
            name = unknown[0].partition("=")[0].lstrip("-")
            if name.removeprefix("no-") in (*NOT_FOR_FILES, *KINDS):
                raise ValueError(f"--{name} does not go with --{cls.kind}: leave it out")
            raise ValueError(explain_unknown(unknown[0], option_types(cls)))
        return cls((*(word for word in rest if word not in unknown), *words[end + 1 :]), **vars(options))

    def run(self) -> None:
        """Open the file, and predict a batch at a time."""
        if not self.images:
            raise ValueError("no images: give files, folders, or '-' for the standard input")
        if self.batch < 1 or self.top < 1:
            raise ValueError(f"--batch and --top must be positive, got {self.batch} and {self.top}")
        from ..lite.classifier import Classifier
        from ..lite.exported import ExportedModel
        from ..lite.segmenter import ExportedSegmenter

        opened = ExportedModel.open_with(getattr(self, self.kind), self.runtime)
        if opened.description.task == "segment":
            self._segment(ExportedSegmenter(**vars(opened)))
            return
        if self.out is not None:
            raise ValueError("--out is for models that segment: leave it out")
        self._classify(Classifier(**vars(opened)))

    def _classify(self, classifier: "Classifier") -> None:
        import numpy as np

        from ..lite.image_paths import open_images

        transform = classifier.description.transform
        images = open_images(self.images)
        for names, pixels in in_batches(images, transform, transform.channels, self.batch, skip_bad=self.skip_bad):
            print_classes(names, classifier.likeliest(np.stack(pixels), self.top, names), as_json=self.json)

    def _segment(self, segmenter: "ExportedSegmenter") -> None:
        """One image at a time, at its own size; the drawings and label maps of `inline predict`."""
        from ..lite.image_paths import open_images
        from ..lite.label_drawing import draw_labels

        about, paths = segmenter.description, DrawingPaths(self.out or Path("predictions"))
        prepare_folder(paths.out)
        images = open_images(self.images)
        for name, image in single_images(images, about.transform.channels, skip_bad=self.skip_bad):
            labels, path = segmenter.labels(image, name), paths.unused(name)
            draw_labels(image, labels, about.classes).save(path)
            facts = {"image": name, "drawn": str(path), **segment_facts(labels, about.classes, path)}
            print(json.dumps(facts) if self.json else "\n".join(segment_lines(facts)))


@dataclass(frozen=True)
class PredictOnnx(PredictExported):
    """By an ONNX file."""

    onnx: Path = field(kw_only=True)
    kind: ClassVar[str] = "onnx"

    @property
    def runtime(self) -> "Runtime":
        """onnxruntime."""
        from ..lite.onnx_runtime import ONNX

        return ONNX


@dataclass(frozen=True)
class PredictOpenVino(PredictExported):
    """By OpenVINO's IR."""

    openvino: Path = field(kw_only=True)
    kind: ClassVar[str] = "openvino"

    @property
    def runtime(self) -> "Runtime":
        """OpenVINO."""
        from ..lite.openvino_runtime import OPENVINO

        return OPENVINO


KINDS = {"onnx": "model.onnx", "openvino": "model.xml, with model.bin"}
"""The options with files, and which file it is."""


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message.removeprefix("argument "))


def _parser(kind: str) -> ArgumentParser:
    parser = _Parser(
        prog="inline predict",
        usage=f"inline predict [OPTIONS] --{kind} FILE IMAGES...",
        description="Classify images: print the likeliest classes of each; or, with a segmenter, draw the class of each pixel. "
        "IMAGES are files, folders, or '-' for the standard input: an image, or a list of paths, one a line.",
        allow_abbrev=False,
        argument_default=SUPPRESS,
    )
    add = parser.add_argument
    add(f"--{kind}", type=Path, required=True, metavar="FILE", help=f"{KINDS[kind]}; its .json lies beside it")
    add("--top", type=int, metavar="N", help="how many classes to name (5)")
    add("--out", type=Path, metavar="DIR", help="folder for what a segmenter draws (predictions)")
    add("--batch", type=int, metavar="N", help="images at once (16)")
    skip = "name images that cannot be read and go on, instead of stopping"
    add("--skip-bad", "--skip_bad", action=BooleanOptionalAction, help=skip)
    add("--json", action=BooleanOptionalAction, help="print one line of JSON for each image")
    return parser
