"""Writes an exported program as one ONNX file: standard operators, named dynamic sides, no paths of this machine."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from ..lite.decode import first_line
from .resampling import pooling_as_products

INPUT, OUTPUT = "images", "logits"
DYNAMIC_SIDES = ("batch", "height", "width")


def write_onnx(program: ExportedProgram, path: Path) -> None:
    """Translate an exported program to ONNX and write it.

    Removed: the source file and line that torch records for each node, and the sizes of intermediate results, which are those
    of the example.
    """
    import onnx

    try:
        with _quiet():
            translated = torch.onnx.export(
                pooling_as_products(program),
                dynamo=True,
                input_names=[INPUT],
                output_names=[OUTPUT],
                verbose=False,
                optimize=False,
            )
            graph = _simplify(translated.model) if translated is not None else None
    except Exception as error:  # torch.onnx raises many kinds
        raise ValueError(f"the graph cannot be written as ONNX: {_cause(error)}") from error
    if graph is None:
        raise ValueError("the graph cannot be written as ONNX: torch.onnx returned nothing")
    foreign = {node.domain for node in graph.graph.node} - {"", "ai.onnx"}
    if foreign or graph.functions:
        raise ValueError(f"the graph needs operators that are not ONNX's own: {', '.join(sorted(foreign)) or 'functions'}")
    _name_dynamic_sides(graph)
    del graph.graph.value_info[:]
    for part in (graph, graph.graph, *graph.graph.node, *graph.graph.input, *graph.graph.output):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    onnx.checker.check_model(graph)
    path.write_bytes(graph.SerializeToString())


def _simplify(model: Any) -> Any:
    """Fold constants, and remove what is unused or there twice.

    `optimize=True` of torch.onnx would do that, too, but also searches for subgraphs to rewrite, in a time that grows with the
    square of the graph: minutes for a deep model. Its file runs no faster, since onnxruntime itself rewrites a graph to run it.
    """
    import onnx_ir
    from onnx_ir.passes import common
    from onnxscript.optimizer import fold_constants

    for _ in range(2):  # folding once lets more be folded
        fold_constants(model)
        common.RemoveUnusedNodesPass()(model)
    for step in (
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.DeduplicateInitializersPass(),
        common.CommonSubexpressionEliminationPass(),
        common.IdentityEliminationPass(),
        common.RemoveUnusedNodesPass(),
        common.RemoveUnusedOpsetsPass(),
    ):
        step(model)
    return onnx_ir.to_proto(model)


def write_int8(source: Path, path: Path) -> None:
    """Write a copy whose linear layers have 8-bit weights, with activations rounded to 8 bits at run time.

    Products between tokens and convolutions are not changed.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graph = onnx.load(source).graph
    ranks = {tensor.name: len(tensor.dims) for tensor in graph.initializer}
    excluded = [node.name for node in graph.node if node.op_type == "MatMul" and ranks.get(node.input[1], 2) != 2]
    with _quiet():
        quantize_dynamic(
            source,
            path,
            op_types_to_quantize=["MatMul", "Gemm"],
            nodes_to_exclude=excluded,
            per_channel=True,
            weight_type=QuantType.QInt8,
        )


def _name_dynamic_sides(graph: Any) -> None:
    """Name the dynamic sides of input and output."""
    images = graph.graph.input[0].type.tensor_type.shape.dim
    names = {images[place].dim_param: name for place, name in zip((0, 2, 3), DYNAMIC_SIDES, strict=True)}
    if "" in names or len(names) != len(DYNAMIC_SIDES):
        fixed = [name for place, name in zip((0, 2, 3), DYNAMIC_SIDES, strict=True) if not images[place].dim_param]
        raise ValueError(f"the graph is for one {', '.join(fixed) or 'size'} only: it is not written")
    outputs = graph.graph.output[0].type.tensor_type.shape.dim
    for side in (*images, *outputs):
        if side.dim_param:
            side.dim_param = names.get(side.dim_param, side.dim_param)
    if len(outputs) == 4:  # one for each pixel: torch writes the sides of the image as they were computed
        for place, name in zip((2, 3), DYNAMIC_SIDES[1:], strict=True):
            outputs[place].dim_param = name


def _cause(error: BaseException) -> str:
    """The first line of the first error in a chain of causes."""
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without torch.onnx's progress messages and warnings."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
