"""Writes an exported program as OpenVINO's IR: `model.xml`, the graph, and `model.bin`, the weights.

It is read from the ONNX graph, which runs faster than what OpenVINO makes of torch's program, and keeps the names of input and
output. `openvino.convert_model` is not called: it stores paths of this machine.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from ..compat import import_without_telemetry
from ..lite.decode import first_line
from ..lite.openvino_runtime import XML, import_openvino, open_ir, shared_core
from .onnx_file import write_onnx
from .resampling import antialiasing_as_products


def write_openvino(program: ExportedProgram, path: Path, precision: str = "fp32") -> None:
    """Write `path`, model.xml, and model.bin beside it.

    fp16 and int8 are those of the stored weights; bf16 is how they are computed with, and changes nothing in the file.
    """
    openvino = import_openvino()
    onnx = path.with_suffix(".onnx")
    write_onnx(antialiasing_as_products(program), onnx)
    try:
        model = shared_core().read_model(onnx)
        if precision == "int8":
            model = _compress(model)
        openvino.save_model(model, path, compress_to_fp16=precision == "fp16")
    except RuntimeError as error:
        raise ValueError(f"the graph cannot be written for OpenVINO: {first_line(error)}") from error
    finally:
        onnx.unlink(missing_ok=True)


def open_openvino(path: Path, precision: str = "fp32") -> Callable[[Tensor], Tensor]:
    """Open an IR on the CPU, with torch's number of threads."""
    assert path.suffix == XML
    compiled = open_ir(path, precision, torch.get_num_threads())
    return lambda images: torch.from_numpy(compiled(images.numpy())[0].copy())


def _compress(model: Any) -> Any:
    """Weights in 8 bits, a scale for each output channel."""
    nncf = import_without_telemetry("nncf")
    return nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM)
