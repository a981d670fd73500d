"""An exported model: its file and its description agree, and its runtime has it open."""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from .description import Description, description_of, read_description
from .runtime import Runtime
from .transform import NumpyTransform

Model = TypeVar("Model", bound="ExportedModel")


@dataclass(frozen=True)
class ExportedModel:
    """An open file and its description. B: images, C: channels."""

    file: Path
    description: Description
    runtime: Runtime
    session: Any
    """The runtime's: onnxruntime's InferenceSession, or OpenVINO's CompiledModel."""

    @classmethod
    def open_with(cls: type[Model], file: str | Path, runtime: Runtime, **options: Any) -> Model:
        """Open a file that a description lies beside: it must be the one described, and its graph must have that form."""
        file = Path(file)
        suffix = runtime.suffixes[0]
        if file.suffix != suffix:
            raise ValueError(f"an {runtime.name} file ends in {suffix}, got {file}")
        if not file.is_file():
            raise ValueError(f"there is no file {file}")
        beside = description_of(file)
        description = read_description(beside)
        if description.format != runtime.format:
            raise ValueError(f"{beside} describes a file of the format {description.format}, not an {runtime.name} file")
        for other, digest in zip(runtime.suffixes, description.sha256, strict=True):
            part = file.with_suffix(other)
            if not part.is_file():
                raise ValueError(f"there is no file {part}, which belongs to {file.name}")
            if _digest(part) != digest:
                raise ValueError(f"{part} is not the file that {beside.name} describes: truncated, or replaced")
        try:
            session = runtime.open(file, description.precision, **options)
        except (ModuleNotFoundError, ValueError):
            raise
        except Exception as error:  # the runtimes' exceptions have no common base class
            raise ValueError(f"{file} cannot be opened as {runtime.name}: {runtime.reason(error)}") from error
        model = cls(file, description, runtime, session)
        model._check()
        return model

    def logits(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
        """Images transformed by `description.transform`, (B, C, H, W) -> the output."""
        about = self.description
        if batch.ndim != 4 or batch.shape[1] != about.transform.channels:
            raise ValueError(f"images must be (B, {about.transform.channels}, H, W), got {batch.shape}")
        try:
            images = np.ascontiguousarray(batch, dtype=np.float32)
            (found,) = self.runtime.run(self.session, about.input, images, [about.output])
        except Exception as error:
            raise ValueError(f"{self.file} cannot be run on images {batch.shape}: {self.runtime.reason(error)}") from error
        return found

    def _check(self) -> None:
        """Raise unless inputs and outputs of the graph are those of the description."""
        about, kind = self.description, self.runtime.float_kind
        sides = list(about.transform.size) if isinstance(about.transform, NumpyTransform) else ["any", "any"]
        expected = {
            "input": (about.input, ["any", about.transform.channels, *sides]),
            "output": (about.output, ["any", len(about.classes), *([] if about.task == "classify" else sides)]),
        }
        for (what, (name, fitting)), found in zip(expected.items(), self.runtime.ports(self.session), strict=True):
            if len(found) != 1 or name not in found[0].names or found[0].kind != kind:
                there = ", ".join(f"{'/'.join(sorted(port.names))} {port.kind}" for port in found) or "none"
                raise ValueError(f"{self.file} must have one {what}, {name} {kind}, got {there}")
            shape = found[0].shape
            rest = zip(shape[1:], fitting[1:], strict=False)
            if (
                len(shape) != len(fitting)
                or isinstance(shape[0], int)
                or any(isinstance(side, int) and side != wanted for side, wanted in rest)
            ):
                beside = description_of(self.file).name
                raise ValueError(f"{self.file}: the {what} {shape} does not fit {fitting} of {beside}")


def _digest(file: Path) -> str:
    digest = sha256()
    with file.open("rb") as opened:
        while block := opened.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
