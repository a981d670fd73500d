"""`inline predict --onnx FILE`: classify images without torch; and the batches and the output of every `inline predict`."""

import json
from argparse import SUPPRESS, ArgumentParser, BooleanOptionalAction
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NoReturn, TypeVar

from PIL import Image

from ..lite.decode import BadImageError, decode
from ..lite.text import printable
from .arguments import explain_unknown, option_types
from .main import warn

Pixels = TypeVar("Pixels")
NOT_FOR_ONNX = (
    "model",
    "task",
    "pretrained",
    "weights",
    "out",
    "threshold",
    "inference",
    "side",
    "ema",
    "stream",
    "folder",
    "device",
)
"""Options of `inline predict` that an ONNX file has no use for."""


@dataclass(frozen=True)
class PredictOnnx:
    """Classify images by an exported model. The options that `Predict` has too mean the same."""

    images: tuple[str, ...]
    onnx: Path
    top: int = 5
    batch: int = 16
    skip_bad: bool = False
    json: bool = False

    @classmethod
    def from_words(cls, words: list[str]) -> "PredictOnnx":
        """Parse the words after `inline predict` with argparse, because tyro may not be installed."""
        end = words.index("--") if "--" in words else len(words)
        options, rest = _parser().parse_known_args(words[:end])
        unknown = [word for word in rest if word.startswith("-") and word != "-"]
        if unknown:
            name = unknown[0].partition("=")[0].lstrip("-")
            if name.removeprefix("no-") in NOT_FOR_ONNX:
                raise ValueError(f"--{name} does not go with --onnx: leave it out")
            raise ValueError(explain_unknown(unknown[0], option_types(cls)))
        return cls((*(word for word in rest if word not in unknown), *words[end + 1 :]), **vars(options))

    def run(self) -> None:
        """Classify the images, a batch at a time, and print as they come."""
        if not self.images:
            raise ValueError("no images: give files, folders, or '-' for the standard input")
        if self.batch < 1 or self.top < 1:
            raise ValueError(f"--batch and --top must be positive, got {self.batch} and {self.top}")
        import numpy as np

        from ..lite.classifier import OnnxClassifier
        from ..lite.image_paths import open_images

        classifier = OnnxClassifier.open(self.onnx)
        transform = classifier.description.transform
        images = open_images(self.images)
        for names, pixels in in_batches(images, transform, transform.channels, self.batch, skip_bad=self.skip_bad):
            print_classes(names, classifier.likeliest(np.stack(pixels), self.top, names), as_json=self.json)


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message.removeprefix("argument "))


def _parser() -> ArgumentParser:
    parser = _Parser(
        prog="inline predict",
        usage="inline predict [OPTIONS] --onnx FILE IMAGES...",
        description="Classify images: print the likeliest classes of each. IMAGES are files, folders, or '-' for the standard "
        "input: an image, or a list of paths, one a line.",
        allow_abbrev=False,
        argument_default=SUPPRESS,
    )
    add = parser.add_argument
    add("--onnx", type=Path, required=True, metavar="FILE", help="an exported classifier; its .json lies beside it")
    add("--top", type=int, metavar="N", help="how many classes to name (5)")
    add("--batch", type=int, metavar="N", help="images at once (16)")
    skip = "name images that cannot be read and go on, instead of stopping"
    add("--skip-bad", "--skip_bad", action=BooleanOptionalAction, help=skip)
    add("--json", action=BooleanOptionalAction, help="print one line of JSON for each image")
    return parser


def in_batches(
    opened: Iterable[tuple[str, IO[bytes]]],
    transform: Callable[[Image.Image], Pixels],
    channels: int,
    size: int,
    *,
    skip_bad: bool,
) -> Iterator[tuple[list[str], list[Pixels]]]:
    """Names and transformed images, `size` at once. A bad image is an error, or is named on the error output and left out."""
    names: list[str] = []
    batch: list[Pixels] = []
    bad = 0
    for name, file in opened:
        try:
            batch.append(transform(decode(file, name, channels)))
            names.append(name)
        except BadImageError as error:
            if not skip_bad:
                raise ValueError(f"{error} (--skip-bad goes on)") from error
            warn(error)
            bad += 1
        if len(batch) == size:
            yield names, batch
            names, batch = [], []
    if batch:
        yield names, batch
    if bad:
        warn(f"{bad} images could not be read")


def print_classes(names: list[str], found: list[list[tuple[str, float]]], *, as_json: bool) -> None:
    """Print the likeliest classes of each image, with their probabilities."""
    for name, classes in zip(names, found, strict=True):
        if as_json:
            print(json.dumps({"image": name, "classes": [{"name": c, "probability": p} for c, p in classes]}))
            continue
        print(printable(name))
        for label, probability in classes:
            print(f"  {probability:7.2%}  {printable(label)}")
