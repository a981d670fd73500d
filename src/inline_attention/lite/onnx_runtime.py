"""onnxruntime: opens an ONNX file, and runs it."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .decode import first_line
from .runtime import Port, Runtime

FATAL = 4
"""onnxruntime's log level: its errors are raised as well, and need not be logged."""


def threads_wanted() -> int | None:
    """OMP_NUM_THREADS; None leaves the choice to the runtime."""
    threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(threads) if threads.isdecimal() else None


def _open(file: Path, precision: str, providers: Sequence[str] = ("CPUExecutionProvider",)) -> Any:
    """onnxruntime's InferenceSession. The file itself has its precision."""
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
    options.intra_op_num_threads = threads_wanted() or 0
    return onnxruntime.InferenceSession(str(file), options, providers=list(providers))


def _ports(session: Any) -> tuple[list[Port], list[Port]]:
    inputs, outputs = (
        [Port(frozenset((entry.name,)), entry.type, list(entry.shape)) for entry in entries]
        for entries in (session.get_inputs(), session.get_outputs())
    )
    return inputs, outputs


def _run(session: Any, name: str, images: NDArray[np.float32], outputs: Sequence[str]) -> list[NDArray[Any]]:
    found: list[NDArray[Any]] = session.run(list(outputs), {name: images})
    return found


def _reason(error: BaseException) -> str:
    """onnxruntime's message in one line, without its number."""
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", " ".join(str(error).split())) or first_line(error)


ONNX = Runtime("onnx", "ONNX", (".onnx",), "tensor(float)", _open, _ports, _run, _reason)
