"""A model as a file that runs without it: captured, written beside its name, compared with the model, renamed.

A file that gives something else than the model is never there.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from ..ops.checks import check_name
from ..plain.description import PRECISIONS, description_of, read_description
from ..plain.wording import first_line
from .capture import InHalf, capture
from .onnx_file import INPUT, OUTPUT, SIDES, write_int8, write_onnx
from .verify import BATCHES, SHARE, SIZES, TOLERANCE, Case, compare, see_that_it_takes

Run = Callable[[Tensor], Tensor]


class Format(NamedTuple):
    """A kind of file."""

    suffix: str
    write: Callable[[ExportedProgram, Path], None]
    open: Callable[[Path], Run]
    needs: tuple[str, ...]
    """Packages besides torch."""
    load: str
    """How a user opens it."""


def open_onnx(path: Path) -> Run:
    """An ONNX file, run by onnxruntime on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda pictures: torch.from_numpy(session.run(None, {INPUT: pictures.numpy()})[0])


def _write_program(program: ExportedProgram, path: Path) -> None:
    """Without the example that it was captured with, and without the lines of code that its nodes came from."""
    program.example_inputs = None
    for module in program.graph_module.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            node.meta.pop("stack_trace", None)
    with path.open("wb") as file:
        torch.export.save(program, file)


def _open_program(path: Path) -> Run:
    return torch.export.load(path).module(check_guards=False)


def _write_compiled(program: ExportedProgram, path: Path) -> None:
    torch._inductor.aoti_compile_and_package(program, package_path=str(path))


def _open_compiled(path: Path) -> Run:
    package: Run = torch._inductor.aoti_load_package(str(path))
    return package


FORMATS = {
    "onnx": Format(
        ".onnx", write_onnx, open_onnx, ("onnx", "onnxscript", "onnxruntime"), "inline predict --onnx {path} PICTURES"
    ),
    "torch-export": Format(
        ".pt2", _write_program, _open_program, (), "torch.export.load({path!r}).module(check_guards=False)"
    ),
    "aoti": Format(".pt2", _write_compiled, _open_compiled, (), "torch._inductor.aoti_load_package({path!r})"),
}  # fmt: skip


def export(
    model: nn.Module,
    out: Path,
    *,
    facts: Mapping[str, Any],
    kind: str = "onnx",
    precision: str = "fp32",
    batches: Sequence[int] = BATCHES,
    sizes: Sequence[tuple[int, int]] = SIZES,
    measure: Callable[[Run], Mapping[str, Any]] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Write a model as a file, and what is known about it as JSON beside it.

    A float32 file has to give the model's outputs to `TOLERANCE`, and to `SHARE` of the largest, at all batches and sizes. What
    half precision and 8 bits change is told, and is for `measure` to weigh.

    Args:
        model: takes pictures (B, C, H, W) of any size, gives one tensor. It is left as it is.
        out: the file; the description is called like it, with .json after its name.
        facts: what the description says besides: model, data, classes, and the like. data.channels is C.
        kind: a name from `FORMATS`.
        precision: a name from `PRECISIONS`; int8 is for ONNX only.
        batches, sizes: where file and model are compared.
        measure: shows the file real pictures; what it finds goes into the description, under 'accuracy'.
        say: told what is being done.

    Returns:
        The description.
    """
    form = _checked(kind, precision, out)
    copy = deepcopy(model).cpu().eval().requires_grad_(False)
    if "classes" not in facts or "channels" not in facts.get("data", ()):
        raise ValueError(f"facts must have 'classes', and 'data' with its 'channels', got {dict(facts)}")
    channels = int(facts["data"]["channels"])
    see_that_it_takes(copy, channels, sizes)
    with _beside(out, form.suffix) as (draft, description):
        say("capturing the graph")
        program = capture(InHalf(deepcopy(copy)) if precision == "fp16" else copy, channels)
        say(f"writing {kind}")
        _write(form, program, draft, precision)
        say("comparing with the model")
        run = _opened(form, draft)
        cases = []
        for case in compare(copy, run, channels=channels, batches=batches, sizes=sizes):
            say(f"{case}: differs by {case.difference:.1e}")
            cases.append(case)
            if case.outputs != len(facts["classes"]):
                raise ValueError(f"the model gives {case.outputs} outputs, and {len(facts['classes'])} classes have names")
            if precision == "fp32" and case.difference > min(TOLERANCE, SHARE * case.scale):
                raise ValueError(f"{kind} differs from the model by {case.difference:.2e} at {case}: not written")
        found = {
            **facts,
            "format": kind,
            "precision": precision,
            "sha256": hashlib.sha256(draft.read_bytes()).hexdigest(),
            "bytes": draft.stat().st_size,
            "load": form.load.format(path=out.name),
            "input": {"name": INPUT, "shape": [SIDES[0], channels, *SIDES[1:]]},
            "output": {"name": OUTPUT, "shape": [SIDES[0], len(facts["classes"])]},
            "checked": _summary(cases, precision),
            "accuracy": None if measure is None else dict(measure(run)),
            "versions": {name: version(name) for name in ("inline-attention", "torch", "timm", *form.needs)},
        }
        description.write_text(json.dumps(found, indent=1) + "\n")
        if kind == "onnx":  # what `inline predict --onnx` would refuse is not left behind
            read_description(description)
    return found


def _checked(kind: str, precision: str, out: Path) -> Format:
    check_name("format", kind, FORMATS)
    check_name("precision", precision, PRECISIONS)
    form = FORMATS[kind]
    if precision == "int8" and kind != "onnx":
        raise ValueError(f"int8 is for ONNX files, not for {kind}")
    if out.suffix != form.suffix or out.is_dir():
        raise ValueError(f"a file of the format {kind} ends in {form.suffix}, got {out}")
    for name in form.needs:
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"no {name}", name=name)
    return form


@contextmanager
def _beside(out: Path, suffix: str) -> Iterator[tuple[Path, Path]]:
    """Names to write to, which become the file and its description if nothing goes wrong, and are gone if it does."""
    mark = f".{out.stem}.{os.getpid()}.tmp"
    draft, description = out.with_name(mark + suffix), out.with_name(mark + ".json")
    try:
        yield draft, description
        draft.replace(out)
        description.replace(description_of(out))
    finally:
        for left in out.parent.iterdir():
            if left.name.startswith(mark):
                left.unlink(missing_ok=True)


def _write(form: Format, program: ExportedProgram, draft: Path, precision: str) -> None:
    try:
        form.write(program, draft)
        if precision == "int8":
            whole = draft.with_suffix(".whole")
            draft.rename(whole)
            write_int8(whole, draft)
    except OSError as error:
        raise OSError(f"cannot write {draft.parent}/: {error.strerror or first_line(error)}") from error
    except RuntimeError as error:  # a compiler that is not there, an operator that it does not know
        raise ValueError(f"the graph cannot be written: {first_line(error)}") from error


def _opened(form: Format, draft: Path) -> Run:
    """The file, whose errors are told in one line."""
    try:
        run = form.open(draft)
    except Exception as error:  # onnxruntime's own kinds
        raise ValueError(f"the file cannot be opened again: {first_line(error)}: not written") from error

    def tell(pictures: Tensor) -> Tensor:
        try:
            return run(pictures)
        except Exception as error:
            shape = " x ".join(map(str, pictures.shape))
            raise ValueError(f"the file does not take pictures {shape}: {first_line(error)}: not written") from error

    return tell


def _summary(cases: Sequence[Case], precision: str) -> dict[str, Any]:
    worst = max(cases, key=lambda case: case.difference)
    return {
        "largest_difference": worst.difference,
        "at": str(worst),
        "of_largest_output": worst.difference / max(worst.scale, torch.finfo(torch.float32).tiny),
        "tolerance": TOLERANCE if precision == "fp32" else None,
        "cases": [case.as_dict() for case in cases],
    }
