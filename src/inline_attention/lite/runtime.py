"""What a runtime of exported files must do: onnxruntime and OpenVINO do it, each in a file of its own."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Port(NamedTuple):
    """An input or output of a graph."""

    names: frozenset[str]
    """One, as a rule: OpenVINO gives an input also the names of what it takes to be the same."""
    kind: str
    """Its type, in the runtime's own words."""
    shape: list[int | str | None]
    """Numbers where a side is fixed."""


class Runtime(NamedTuple):
    """A package that runs exported files, as functions."""

    format: str
    """In the description of its files."""
    name: str
    """In messages."""
    suffixes: tuple[str, ...]
    """Of the file, and of those that belong to it."""
    float_kind: str
    """Its word for float32."""
    open: Callable[..., Any]
    """(file, precision, options) -> session."""
    ports: Callable[[Any], tuple[list[Port], list[Port]]]
    """Inputs and outputs of a session."""
    run: Callable[[Any, str, NDArray[np.float32], Sequence[str]], list[NDArray[Any]]]
    """(session, name of the input, images, names of outputs) -> the outputs."""
    reason: Callable[[BaseException], str]
    """An error of the runtime in one line."""
