"""Exports a model to a file that runs without its code: written under a temporary name, compared with the model, renamed.

A file whose outputs differ from the model's never gets its name.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from ..lite.decode import first_line
from ..lite.description import PRECISIONS, description_of, read_description
from ..lite.versions import versions
from ..ops.checks import check_name
from .formats import FORMATS, Format, HalfPrecision, Run, export_graph
from .onnx_file import DYNAMIC_SIDES, INPUT, OUTPUT, write_int8
from .verify import BATCHES, RELATIVE_TOLERANCE, SIZES, TOLERANCE, Case, check_sizes, compare_outputs


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
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Write a model to a file, and its description to a JSON file beside it.

    The outputs of a float32 file must equal the model's to `TOLERANCE`, and to `RELATIVE_TOLERANCE` of the largest, at all
    batches and sizes. For half precision and 8 bits the difference is reported only; `measure` shows what it means.

    Args:
        model: images (B, C, H, W) of any size -> one tensor. It is not changed.
        out: the file; the description has the same name with .json after it.
        facts: fields of the description: model, data, classes, and the like. data.channels is C.
        kind: a name from `FORMATS`.
        precision: a name from `PRECISIONS`; int8 is for ONNX only.
        batches, sizes: where the file is compared with the model.
        measure: runs the file on real images; its result goes into the description under 'accuracy'.
        progress: called with a line about each step.

    Returns:
        The description.
    """
    form = _check_arguments(kind, precision, out)
    copy = deepcopy(model).cpu().eval().requires_grad_(False)
    channels, classes = _channels_and_classes(facts)
    check_sizes(copy, channels, sizes)
    with _temporary_names(out, form.suffix) as (draft, description):
        progress("exporting the graph")
        program = export_graph(HalfPrecision(deepcopy(copy)) if precision == "fp16" else copy, channels)
        progress(f"writing {kind}")
        _write(form, program, draft, precision)
        progress("comparing with the model")
        run = _open(form, draft)
        cases = []
        for case in compare_outputs(copy, run, channels=channels, batches=batches, sizes=sizes):
            progress(f"{case}: differs by {case.difference:.1e}")
            _check_case(case, kind, precision, classes)
            cases.append(case)
        found = {
            **facts,
            "format": kind,
            "precision": precision,
            **_file_facts(draft, form, out, channels, classes),
            "checked": _summary(cases, precision),
            "accuracy": None if measure is None else dict(measure(run)),
            "versions": versions("inline-attention", "torch", "timm", *form.needs),
        }
        description.write_text(json.dumps(found, indent=1) + "\n")
        if kind == "onnx":  # no file is left behind that `inline predict --onnx` would refuse
            read_description(description)
    return found


def _channels_and_classes(facts: Mapping[str, Any]) -> tuple[int, int]:
    if "classes" not in facts or "channels" not in facts.get("data", ()):
        raise ValueError(f"facts must have 'classes', and 'data' with its 'channels', got {dict(facts)}")
    return int(facts["data"]["channels"]), len(facts["classes"])


def _check_arguments(kind: str, precision: str, out: Path) -> Format:
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
def _temporary_names(out: Path, suffix: str) -> Iterator[tuple[Path, Path]]:
    """Temporary names of the file and its description: renamed at the end, or removed after an error."""
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
            fp32 = draft.with_suffix(".fp32")
            draft.rename(fp32)
            write_int8(fp32, draft)
    except OSError as error:
        raise OSError(f"cannot write {draft.parent}/: {error.strerror or first_line(error)}") from error
    except RuntimeError as error:  # e.g. no compiler, or an operator that it does not support
        raise ValueError(f"the graph cannot be written: {first_line(error)}") from error


def _open(form: Format, draft: Path) -> Run:
    """Open the file; its errors become one line."""
    try:
        run = form.open(draft)
    except Exception as error:  # onnxruntime's errors have no common base class
        raise ValueError(f"the file cannot be opened again: {first_line(error)}: not written") from error

    def checked_run(images: Tensor) -> Tensor:
        try:
            return run(images)
        except Exception as error:
            shape = " x ".join(map(str, images.shape))
            raise ValueError(f"the file does not take images {shape}: {first_line(error)}: not written") from error

    return checked_run


def _check_case(case: Case, kind: str, precision: str, classes: int) -> None:
    if case.outputs != classes:
        raise ValueError(f"the model has {case.outputs} outputs, and {classes} class names are given")
    if precision == "fp32" and case.difference > min(TOLERANCE, RELATIVE_TOLERANCE * case.scale):
        raise ValueError(f"{kind} differs from the model by {case.difference:.2e} at {case}: not written")


def _file_facts(draft: Path, form: Format, out: Path, channels: int, classes: int) -> dict[str, Any]:
    batch, height, width = DYNAMIC_SIDES
    return {
        "sha256": hashlib.sha256(draft.read_bytes()).hexdigest(),
        "bytes": draft.stat().st_size,
        "load": form.load.format(path=out.name),
        "input": {"name": INPUT, "shape": [batch, channels, height, width]},
        "output": {"name": OUTPUT, "shape": [batch, classes]},
    }


def _summary(cases: Sequence[Case], precision: str) -> dict[str, Any]:
    worst = max(cases, key=lambda case: case.difference)
    return {
        "largest_difference": worst.difference,
        "at": str(worst),
        "of_largest_output": worst.difference / max(worst.scale, torch.finfo(torch.float32).tiny),
        "tolerance": TOLERANCE if precision == "fp32" else None,
        "cases": [case.as_dict() for case in cases],
    }
