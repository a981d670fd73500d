"""`inline predict --onnx FILE`: what is in a picture, where neither torch nor the command's other needs are installed."""

from argparse import SUPPRESS, ArgumentParser, BooleanOptionalAction
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from .options import explain_unknown

ELSEWHERE = ("model", "task", "weights", "out", "threshold", "inference", "side", "ema", "stream", "folder", "device")
"""Options of `inline predict` that an ONNX file has no use for."""


@dataclass(frozen=True)
class PredictOnnx:
    """What is in pictures, by an exported model."""

    pictures: tuple[str, ...]
    onnx: Path
    top: int = 5
    batch: int = 16
    skip_bad: bool = False
    json: bool = False

    def run(self) -> None:
        """Look at the pictures, a batch at a time, and print as they come."""
        if not self.pictures:
            raise ValueError("no pictures: give files, folders, or '-' for the standard input")
        if self.batch < 1 or self.top < 1:
            raise ValueError(f"--batch and --top must be positive, got {self.batch} and {self.top}")
        import numpy as np

        from ..plain.classifier import OnnxClassifier
        from ..plain.opening import opened_pictures
        from .batches import in_batches, tell_classes

        classifier = OnnxClassifier.open(self.onnx)
        view = classifier.description.view
        pictures = opened_pictures(self.pictures)
        for names, shown in in_batches(pictures, view, view.channels, self.batch, skip_bad=self.skip_bad):
            tell_classes(names, classifier.likeliest(np.stack(shown), self.top), as_json=self.json)


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message.removeprefix("argument "))


def parse(words: list[str]) -> PredictOnnx:
    """The words after `inline predict`."""
    parser = _Parser(
        prog="inline predict",
        usage="inline predict [OPTIONS] --onnx FILE PICTURES...",
        description="What is in pictures: the likeliest classes of each. PICTURES are files, folders, or '-' for the standard "
        "input: a picture, or a list of paths, one a line.",
        allow_abbrev=False,
        argument_default=SUPPRESS,
    )
    add = parser.add_argument
    add("--onnx", type=Path, required=True, metavar="FILE", help="an exported classifier; its .json lies beside it")
    add("--top", type=int, metavar="N", help="how many classes to name (5)")
    add("--batch", type=int, metavar="N", help="pictures at once (16)")
    skip = "name pictures that cannot be read and go on, instead of stopping"
    add("--skip-bad", "--skip_bad", action=BooleanOptionalAction, help=skip)
    add("--json", action=BooleanOptionalAction, help="print one line of JSON for each picture")
    end = words.index("--") if "--" in words else len(words)
    options, rest = parser.parse_known_args(words[:end])
    unknown = [word for word in rest if word.startswith("-") and word != "-"]
    pictures = (*(word for word in rest if word not in unknown), *words[end + 1 :])
    asked = PredictOnnx(pictures, **vars(options))
    if unknown:
        name = unknown[0].partition("=")[0].lstrip("-")
        if name.removeprefix("no-") in ELSEWHERE:
            raise ValueError(does_not_go(name))
        raise ValueError(explain_unknown(unknown, asked))
    return asked


def does_not_go(name: str) -> str:
    """One line about an option of `inline predict`."""
    return f"--{name} does not go with --onnx: leave it out"
