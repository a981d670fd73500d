"""OpenVINO on the CPU: opens an IR, `model.xml` with its weights in `model.bin`, and computes in the precision asked for.

Left alone, OpenVINO computes in bf16 wherever the CPU can, whatever the file's own precision, and is off by 1e-2. So the
precision is always said.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..compat import import_without_telemetry
from .decode import first_line
from .onnx_runtime import threads_wanted
from .runtime import Port, Runtime

XML, BIN = ".xml", ".bin"
"""The two files of an IR: the graph, and its weights."""


def open_ir(file: Path, precision: str, threads: int | None = None) -> Any:
    """Compile an IR for the CPU: OpenVINO's CompiledModel.

    Args:
        file: model.xml; model.bin lies beside it.
        precision: 'bf16' computes in bf16 where the CPU can; all others in fp32, whatever the weights are stored in.
        threads: None leaves the choice to OpenVINO.
    """
    options = {"INFERENCE_PRECISION_HINT": "bf16" if precision == "bf16" else "f32"}
    if threads is not None:
        options["INFERENCE_NUM_THREADS"] = str(threads)
    core = shared_core()
    return core.compile_model(core.read_model(file, file.with_suffix(BIN)), "CPU", options)


def import_openvino() -> Any:
    """The package, which reports nothing to its makers, or an error that says how to get it."""
    try:
        return import_without_telemetry("openvino")
    except ModuleNotFoundError as error:
        message = "an OpenVINO file needs openvino: pip install 'inline-attention[openvino]'"
        raise ModuleNotFoundError(message, name="openvino") from error
    except ImportError as error:
        raise ValueError(f"openvino cannot be loaded: {first_line(error)}") from error


def shared_core() -> Any:
    """The one `openvino.Core` of this process, which is never freed.

    A core gives the main thread another stack for signals, and takes it back when it is freed. Of two cores, the one that is
    freed last can restore the freed stack of the other, and the next signal ends the process: SIGCHLD in a training run.
    """
    return _make_core(import_openvino())


@cache
def _make_core(openvino: Any) -> Any:
    return openvino.Core()


def computes_in_bf16() -> bool:
    """Whether OpenVINO finds bf16 instructions on this CPU. It reads the CPU's own list, and runs none of them."""
    return "BF16" in shared_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def _open(file: Path, precision: str) -> Any:
    return open_ir(file, precision, threads_wanted())


def _ports(compiled: Any) -> tuple[list[Port], list[Port]]:
    inputs, outputs = (
        [
            Port(
                frozenset(entry.get_names()),
                entry.get_element_type().get_type_name(),
                ["any" if side.is_dynamic else side.get_length() for side in entry.get_partial_shape()],
            )
            for entry in entries
        ]
        for entries in (compiled.inputs, compiled.outputs)
    )
    return inputs, outputs


def _run(compiled: Any, name: str, images: NDArray[np.float32], outputs: Sequence[str]) -> list[NDArray[Any]]:
    found = compiled({name: images})
    return [np.array(found[output]) for output in outputs]


def _reason(error: BaseException) -> str:
    """OpenVINO's message without the places in its own code."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(("Exception from", "Check '"))]
    return " ".join(telling or lines) or first_line(error)


OPENVINO = Runtime("openvino", "OpenVINO", (XML, BIN), "f32", _open, _ports, _run, _reason)
