"""The formats of exported files: ONNX, OpenVINO, torch.export, a compiled library, all written from one graph for every size.

`torch.export` runs a model on symbolic sizes. Where two sizes of its example happen to be equal, it takes them to be equal for
good. So the example is chosen such that none are: at every stage of a model its map is padded and has several windows.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from ..compat import LOAD_COMPILED, compile_ahead_of_time, load_compiled
from ..lite.decode import first_line
from ..lite.description import PRECISIONS
from ..lite.openvino_runtime import BIN, XML
from .onnx_file import write_int8, write_onnx
from .openvino_file import open_openvino, write_openvino

EXAMPLE_SIZE = (3, 513, 577)
"""Batch, height and width: odd after every halving, and no multiple of a usual window or patch."""

Run = Callable[[Tensor], Tensor]


class Format(NamedTuple):
    """A file format."""

    suffixes: tuple[str, ...]
    """Of the file, and of those that belong to it."""
    write: Callable[[ExportedProgram, Path, str], None]
    """Called with a precision; in fp16 the program itself is in half precision, unless `stores_fp16`."""
    open: Callable[[Path, str], Run]
    needs: tuple[str, ...]
    """Packages besides torch."""
    load: str
    """How a user opens the file."""
    precisions: tuple[str, ...] = ("fp32", "fp16")
    stores_fp16: bool = False
    """Whether fp16 is how weights are stored, and not how the file computes."""

    @property
    def suffix(self) -> str:
        """Of the file that is opened."""
        return self.suffixes[0]


class HalfPrecision(nn.Module):
    """A model in half precision with float32 inputs and outputs.

    Sums over all tokens inside a layer stay in float32, as they do outside of a file.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model.half()

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> the model's output."""
        out: Tensor = self.model(images.half())
        return out.float()


def export_graph(model: nn.Module, channels: int = 3) -> ExportedProgram:
    """Export a model with dynamic batch, height and width; the model itself is left in evaluation mode.

    The program has guards on the memory layout of its example, which its results do not depend on: run it as
    `program.module(check_guards=False)`.
    """
    model.eval()
    batch, height, width = EXAMPLE_SIZE
    images = torch.zeros(batch, channels, height, width, device=next(model.parameters()).device)
    dynamic: dict[int, Any] = {0: Dim.DYNAMIC, 2: Dim.DYNAMIC, 3: Dim.DYNAMIC}
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.export(model, (images,), dynamic_shapes=(dynamic,))
    except Exception as error:  # a model's own code may raise anything on symbolic sizes
        raise ValueError(
            f"{type(model).__name__} cannot be exported for every batch, height and width: {first_line(error)} "
            "(of timm's ViTs, those made with dynamic_img_size=True and dynamic_img_pad=True can)"
        ) from error


def _write_onnx(program: ExportedProgram, path: Path, precision: str) -> None:
    if precision != "int8":
        write_onnx(program, path)
        return
    fp32 = path.with_suffix(".fp32")
    write_onnx(program, fp32)
    write_int8(fp32, path)
    fp32.unlink()


def open_onnx(path: Path, precision: str = "fp32") -> Run:
    """Open an ONNX file with onnxruntime on the CPU; the file itself has its precision."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (entry,) = session.get_inputs()
    return lambda images: torch.from_numpy(session.run(None, {entry.name: images.numpy()})[0])


def _write_program(program: ExportedProgram, path: Path, precision: str) -> None:
    """Without the example input, and without the source lines of the nodes, which name this machine's paths."""
    program.example_inputs = None
    for module in program.graph_module.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            node.meta.pop("stack_trace", None)
    with path.open("wb") as file:
        torch.export.save(program, file)


def _open_program(path: Path, precision: str) -> Run:
    return torch.export.load(path).module(check_guards=False)


FORMATS = {
    "onnx": Format(
        (".onnx",), _write_onnx, open_onnx, ("onnx", "onnxscript", "onnxruntime"), "inline predict --onnx {path} IMAGES",
        ("fp32", "fp16", "int8"),
    ),
    "openvino": Format(
        (XML, BIN), write_openvino, open_openvino, ("openvino", "onnx", "onnxscript"),
        "inline predict --openvino {path} IMAGES", PRECISIONS, stores_fp16=True,
    ),
    "torch-export": Format(
        (".pt2",), _write_program, _open_program, (), "torch.export.load({path!r}).module(check_guards=False)"
    ),
    "aoti": Format(
        (".pt2",), lambda program, path, _: compile_ahead_of_time(program, path), lambda path, _: load_compiled(path), (),
        LOAD_COMPILED,
    ),
}  # fmt: skip
