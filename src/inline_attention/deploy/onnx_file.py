"""A captured program as one ONNX file: standard operators, named sides, nothing of this machine in it."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from ..plain.wording import first_line

INPUT, OUTPUT = "pictures", "logits"
SIDES = ("batch", "height", "width")


def write_onnx(program: ExportedProgram, path: Path) -> None:
    """Translate and write.

    torch notes in each node from which line of which file it came: that is taken out, as are the sizes of what is in between,
    and what the example said of batches and sides.
    """
    import onnx

    try:
        with _quiet():
            made = torch.onnx.export(
                program, dynamo=True, input_names=[INPUT], output_names=[OUTPUT], verbose=False, optimize=False
            )
            graph = _tidied(made.model) if made is not None else None
    except Exception as error:  # of the translator, in many kinds
        raise ValueError(f"the graph cannot be written as ONNX: {_cause(error)}") from error
    if graph is None:
        raise ValueError("the graph cannot be written as ONNX: torch.onnx gave nothing")
    foreign = {node.domain for node in graph.graph.node} - {"", "ai.onnx"}
    if foreign or graph.functions:
        raise ValueError(f"the graph needs operators that are not ONNX's own: {', '.join(sorted(foreign)) or 'functions'}")
    _name_sides(graph)
    del graph.graph.value_info[:]
    for part in (graph, graph.graph, *graph.graph.node, *graph.graph.input, *graph.graph.output):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    onnx.checker.check_model(graph)
    path.write_bytes(graph.SerializeToString())


def _tidied(model: Any) -> Any:
    """With constants folded, and without what is there twice or for nothing.

    `optimize=True` would do that too, and look for subgraphs to rewrite, in a time that grows with the square of the graph:
    minutes for a deep model, whose file then runs no faster, since onnxruntime rewrites what it opens.
    """
    import onnx_ir
    from onnx_ir.passes import common
    from onnxscript.optimizer import fold_constants

    for _ in range(2):  # what one round folds lets the next fold more
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
    """A copy whose linear maps have weights of 8 bits, and activations that are rounded to 8 bits as they come.

    What a layer computes between tokens stays as it is, and so do convolutions.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graph = onnx.load(source).graph
    sides = {tensor.name: len(tensor.dims) for tensor in graph.initializer}
    other = [node.name for node in graph.node if node.op_type == "MatMul" and sides.get(node.input[1], 2) != 2]
    with _quiet():
        quantize_dynamic(
            source,
            path,
            op_types_to_quantize=["MatMul", "Gemm"],
            nodes_to_exclude=other,
            per_channel=True,
            weight_type=QuantType.QInt8,
        )


def _name_sides(graph: Any) -> None:
    """Call the free sides of what goes in and what comes out by their names."""
    pictures = graph.graph.input[0].type.tensor_type.shape.dim
    names = {pictures[place].dim_param: name for place, name in zip((0, 2, 3), SIDES, strict=True)}
    if "" in names or len(names) != len(SIDES):
        fixed = [name for place, name in zip((0, 2, 3), SIDES, strict=True) if not pictures[place].dim_param]
        raise ValueError(f"the graph is for one {', '.join(fixed) or 'size'} only: it is not written")
    for side in (*pictures, *graph.graph.output[0].type.tensor_type.shape.dim):
        if side.dim_param:
            side.dim_param = names.get(side.dim_param, side.dim_param)


def _cause(error: BaseException) -> str:
    """What is at the bottom of the translator's pile of errors."""
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the translator's reports of its progress."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
