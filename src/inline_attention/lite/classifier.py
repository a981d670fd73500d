"""A classifier in an ONNX file, run by onnxruntime."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .decode import first_line
from .description import Description, description_of, read_description
from .finite import check_images

FATAL = 4
"""onnxruntime's log level: its errors are raised as well, and need not be logged."""


@dataclass(frozen=True)
class OnnxClassifier:
    """An open ONNX file and its description. B: images, C: channels."""

    file: Path
    description: Description
    session: Any
    """onnxruntime's InferenceSession."""

    @classmethod
    def open(cls, file: str | Path, providers: Sequence[str] = ("CPUExecutionProvider",)) -> "OnnxClassifier":
        """Open `model.onnx`, which `model.onnx.json` beside it describes.

        Args:
            file: the ONNX file.
            providers: onnxruntime's execution providers, in order of preference. OMP_NUM_THREADS sets the number of threads.
        """
        file = Path(file)
        if file.suffix != ".onnx":
            raise ValueError(f"an ONNX file ends in .onnx, got {file}")
        if not file.is_file():
            raise ValueError(f"there is no file {file}")
        beside = description_of(file)
        description = read_description(beside)
        if _digest(file) != description.sha256:
            raise ValueError(f"{file} is not the file that {beside.name} describes: truncated, or replaced")
        session = _session(file, providers)
        _check(session, description, file)
        return cls(file, description, session)

    def classify(self, batch: NDArray[np.float32], names: Sequence[str] = ()) -> NDArray[np.float32]:
        """Images transformed by `description.transform`, (B, C, H, W) -> probabilities of classes, (B, classes).

        Outputs that are not finite raise a FloatingPointError with the image's name, if `names` has it.
        """
        about = self.description
        if batch.ndim != 4 or batch.shape[1] != about.transform.channels:
            raise ValueError(f"images must be (B, {about.transform.channels}, H, W), got {batch.shape}")
        try:
            (logits,) = self.session.run([about.output], {about.input: np.ascontiguousarray(batch, dtype=np.float32)})
        except Exception as error:  # onnxruntime's exceptions have no common base class
            raise ValueError(f"{self.file} cannot be run on images {batch.shape}: {_reason(error)}") from error
        if logits.shape != (len(batch), len(about.classes)):
            raise ValueError(f"{self.file} gave {logits.shape} for {len(batch)} images and {len(about.classes)} classes")
        finite = np.isfinite(logits).all(1).tolist()
        check_images(finite, names, str(self.file), f"{about.precision} is not enough for it")
        powers = np.exp(logits - logits.max(1, keepdims=True))
        probabilities: NDArray[np.float32] = powers / powers.sum(1, keepdims=True)
        return probabilities

    def likeliest(
        self, batch: NDArray[np.float32], count: int = 5, images: Sequence[str] = ()
    ) -> list[list[tuple[str, float]]]:
        """(name, probability) of the likeliest classes of each image in (B, C, H, W); `images` are their names."""
        names, probabilities = self.description.classes, self.classify(batch, images)
        places = np.argsort(-probabilities, axis=1, kind="stable")[:, :count]
        return [[(names[place], float(row[place])) for place in best] for row, best in zip(probabilities, places, strict=True)]


def _digest(file: Path) -> str:
    digest = sha256()
    with file.open("rb") as opened:
        while block := opened.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _session(file: Path, providers: Sequence[str]) -> Any:
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "an ONNX file needs onnxruntime: pip install 'inline-attention[onnx]'", name="onnxruntime"
        ) from error
    except ImportError as error:
        raise ValueError(f"onnxruntime cannot be loaded: {first_line(error)}") from error
    available = onnxruntime.get_available_providers()
    if missing := [name for name in providers if name not in available]:
        raise ValueError(f"onnxruntime has no provider {missing[0]!r}; there are: {', '.join(available)}")
    onnxruntime.set_default_logger_severity(FATAL)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = FATAL
    threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if threads.isdecimal():
        options.intra_op_num_threads = int(threads)
    try:
        return onnxruntime.InferenceSession(str(file), options, providers=list(providers))
    except Exception as error:  # onnxruntime's exceptions have no common base class
        raise ValueError(f"{file} cannot be opened as ONNX: {_reason(error)}") from error


def _check(session: Any, about: Description, file: Path) -> None:
    """Raise unless inputs and outputs of the graph are those of the description."""
    shapes = {}
    for kind, name, found in (("input", about.input, session.get_inputs()), ("output", about.output, session.get_outputs())):
        if [entry.name for entry in found] != [name] or found[0].type != "tensor(float)":
            there = ", ".join(f"{entry.name} {entry.type}" for entry in found) or "none"
            raise ValueError(f"{file} must have one {kind}, {name} tensor(float), got {there}")
        shapes[kind] = list(found[0].shape)
    expected = {"input": ["any", about.transform.channels, *about.transform.size], "output": ["any", len(about.classes)]}
    for kind, shape in shapes.items():
        rest = zip(shape[1:], expected[kind][1:], strict=False)
        if (
            len(shape) != len(expected[kind])
            or isinstance(shape[0], int)
            or any(isinstance(a, int) and a != b for a, b in rest)
        ):
            raise ValueError(f"{file}: the {kind} {shape} does not fit {expected[kind]} of {description_of(file).name}")


def _reason(error: BaseException) -> str:
    """onnxruntime's message in one line, without its number."""
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", " ".join(str(error).split())) or first_line(error)
