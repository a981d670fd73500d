"""A classifier in an exported file: probabilities, and the likeliest classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .exported import ExportedModel
from .finite import check_images
from .onnx_runtime import ONNX
from .openvino_runtime import OPENVINO


@dataclass(frozen=True)
class Classifier(ExportedModel):
    """An exported classifier. B: images, C: channels."""

    def classify(self, batch: NDArray[np.float32], names: Sequence[str] = ()) -> NDArray[np.float32]:
        """Images transformed by `description.transform`, (B, C, H, W) -> probabilities of classes, (B, classes).

        Outputs that are not finite raise a FloatingPointError with the image's name, if `names` has it.
        """
        about, logits = self.description, self.logits(batch)
        if logits.shape != (len(batch), len(about.classes)):
            raise ValueError(f"{self.file} gave {logits.shape} for {len(batch)} images and {len(about.classes)} classes")
        finite = [bool(row.all()) for row in np.isfinite(logits)]
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


class OnnxClassifier(Classifier):
    """A classifier in an ONNX file, run by onnxruntime."""

    @classmethod
    def open(cls, file: str | Path, providers: Sequence[str] = ("CPUExecutionProvider",)) -> "OnnxClassifier":
        """Open `model.onnx`, which `model.onnx.json` beside it describes.

        Args:
            file: the ONNX file.
            providers: onnxruntime's execution providers, in order of preference. OMP_NUM_THREADS sets the number of threads.
        """
        return cls.open_with(file, ONNX, providers=providers)


class OpenVinoClassifier(Classifier):
    """A classifier in OpenVINO's IR, run by OpenVINO on the CPU."""

    @classmethod
    def open(cls, file: str | Path) -> "OpenVinoClassifier":
        """Open `model.xml` with `model.bin`, which `model.xml.json` describes. OMP_NUM_THREADS sets the number of threads."""
        return cls.open_with(file, OPENVINO)
