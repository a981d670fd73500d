"""Models as ONNX files in onnxruntime, against themselves in torch and against softmax in both.

Files are made once for all sizes, as `inline export` makes them. Both runtimes have the same number of threads.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from timm.models import create_model
from torch import Tensor, nn

from .models import TWIN
from .race import Call, forward, race
from .record import Record


@dataclass(frozen=True)
class ExportCase:
    """A batch of square pictures, in fp32 if nothing else is said."""

    model: str
    rival: str
    """A softmax model of timm's that runs in torch; TWIN for none but the twin."""
    size: int
    batch: int


DEIT = ("inline_deit_tiny", "deit_tiny_patch16_224")
EXPORT_CASES = [
    *(ExportCase(*DEIT, size, batch) for size, batch in ((224, 1), (224, 8), (448, 1), (896, 1))),
    *(ExportCase("inline_pvt_tiny", TWIN, size, 1) for size in (224, 448, 896)),
]
QUICK_EXPORT_CASES = [ExportCase("inline_deit_nano", TWIN, size, 1) for size in (64, 128)]


def measure_export(case: ExportCase, seconds: float, device: torch.device) -> Record:
    """Times of "inline" and "softmax" in torch, of "inline onnx", "softmax onnx" and "int8 onnx", and of timm's "rival"."""
    if device.type != "cpu":
        raise ValueError(f"bench export runs files in onnxruntime on the CPU, got --device {device}")
    pictures = torch.randn(case.batch, 3, case.size, case.size)
    makers: dict[str, Callable[[], Call]] = {
        "inline": partial(_eager, case.model, "inline", pictures),
        "inline onnx": partial(_onnx, case.model, "inline", "fp32", pictures),
        "int8 onnx": partial(_onnx, case.model, "inline", "int8", pictures),
        "softmax onnx": partial(_onnx, case.model, "softmax", "fp32", pictures),
        "softmax": partial(_eager, case.model, "softmax", pictures),
    }
    if case.rival != TWIN:
        makers["rival"] = partial(_rival, case.rival, pictures)
    record = race(makers, "forward", seconds=seconds, dtype=pictures.dtype, device=device)
    return {"onnxruntime": version("onnxruntime"), **record}


def _model(name: str, mixer: str) -> nn.Module:
    torch.manual_seed(0)
    return create_model(name, mixer=mixer).eval()


def _eager(name: str, mixer: str, pictures: Tensor) -> Call:
    return forward(_model(name, mixer), pictures)


def _rival(name: str, pictures: Tensor) -> Call:
    return forward(create_model(name, img_size=pictures.shape[-1]).eval(), pictures)


def _onnx(name: str, mixer: str, precision: str, pictures: Tensor) -> Call:
    """The file in onnxruntime, after a look at whether it says what the model says."""
    from ..deploy.export import open_onnx
    from ..deploy.verify import TOLERANCE

    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(_file(name, mixer, precision))
        run = open_onnx(path)
    with torch.no_grad():
        difference = float((run(pictures) - _model(name, mixer)(pictures)).abs().max())
    if precision == "fp32" and difference > TOLERANCE:
        raise ValueError(f"the file differs by {difference:.1e}")
    return lambda: run(pictures)


@cache
def _file(name: str, mixer: str, precision: str) -> bytes:
    """The file's contents, made once."""
    from ..deploy.capture import capture
    from ..deploy.onnx_file import write_int8, write_onnx

    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        if precision == "int8":
            whole = Path(folder) / "whole.onnx"
            whole.write_bytes(_file(name, mixer, "fp32"))
            write_int8(whole, path)
        else:
            write_onnx(capture(_model(name, mixer)), path)
        return path.read_bytes()
