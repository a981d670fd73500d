"""Exports a model to a file that runs without its code: written under a temporary name, compared with the model, renamed.

A file whose outputs differ from the model's never gets its name.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from ..lite.decode import first_line
from ..lite.description import PRECISIONS, description_of, read_description
from ..lite.openvino_runtime import computes_in_bf16
from ..lite.versions import versions
from ..ops.checks import check_name
from .draft_files import draft_files
from .formats import FORMATS, Format, HalfPrecision, Run, export_graph
from .onnx_file import DYNAMIC_SIDES, INPUT, OUTPUT
from .verify import BATCHES, ODD_SIZES, RELATIVE_TOLERANCE, SIZES, TOLERANCE, Case, check_sizes, compare_outputs

READ_BACK = ("onnx", "openvino")
"""Formats that `inline predict` opens: no file is left behind whose description it would refuse."""


def export(
    model: nn.Module,
    out: Path,
    *,
    facts: Mapping[str, Any],
    kind: str = "onnx",
    precision: str = "fp32",
    batches: Sequence[int] = BATCHES,
    sizes: Sequence[tuple[int, int]] | None = None,
    measure: Callable[[Run], Mapping[str, Any]] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Write a model to a file, and its description to a JSON file beside it.

    The outputs of a float32 file must equal the model's to `TOLERANCE`, and to `RELATIVE_TOLERANCE` of the largest, at all
    batches and sizes. For half precision and 8 bits the difference is reported only; `measure` shows what it means.

    Args:
        model: images (B, C, H, W) of any size -> one tensor, (B, classes) or (B, classes, H, W). It is not changed.
        out: the file; the description has the same name with .json after it.
        facts: fields of the description: model, data, classes, and the like. data.channels is C; task is 'classify', which it
            also is if left out, or 'segment'.
        kind: a name from `FORMATS`.
        precision: one of those of the format.
        batches, sizes: where the file is compared with the model; by default `SIZES`, for OpenVINO `ODD_SIZES` too.
        measure: runs the file on real images; its result goes into the description under 'accuracy'.
        progress: called with a line about each step.

    Returns:
        The description.
    """
    form = _check_arguments(kind, precision, out)
    copy = deepcopy(model).cpu().eval().requires_grad_(False)
    channels, classes = _channels_and_classes(facts)
    sizes = sizes or (SIZES + ODD_SIZES if kind == "openvino" else SIZES)
    check_sizes(copy, channels, sizes)
    with draft_files(out, form.suffixes, description_of(out)) as (draft, description):
        progress("exporting the graph")
        half = precision == "fp16" and not form.stores_fp16
        program = export_graph(HalfPrecision(deepcopy(copy)) if half else copy, channels)
        progress(f"writing {kind}")
        _write(form, program, draft, precision)
        progress("comparing with the model")
        run = _open(form, draft, precision)
        cases = []
        for case in compare_outputs(copy, run, channels=channels, batches=batches, sizes=sizes):
            progress(f"{case}: differs by {case.difference:.1e}")
            _check_case(case, kind, precision, classes)
            cases.append(case)
        found = {
            **facts,
            "format": kind,
            "precision": precision,
            **_file_facts(draft, form, out, channels, classes, facts.get("task", "classify")),
            "checked": _summary(cases, precision),
            "accuracy": None if measure is None else dict(measure(run)),
            "versions": versions("inline-attention", "torch", "timm", *form.needs),
        }
        description.write_text(json.dumps(found, indent=1) + "\n")
        if kind in READ_BACK:
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
    if precision not in form.precisions:
        formats = [name for name, other in FORMATS.items() if precision in other.precisions]
        raise ValueError(f"{precision} is for files of the format {' or '.join(formats)}, not for {kind}")
    if out.suffix != form.suffix or out.is_dir():
        raise ValueError(f"a file of the format {kind} ends in {form.suffix}, got {out}")
    for name in form.needs:
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"no {name}", name=name)
    if precision == "bf16" and not computes_in_bf16():
        raise ValueError("this CPU has no bf16 instructions: the file could not be compared with the model, take fp32")
    return form


def _write(form: Format, program: ExportedProgram, draft: Path, precision: str) -> None:
    try:
        form.write(program, draft, precision)
    except OSError as error:
        raise OSError(f"cannot write {draft.parent}/: {error.strerror or first_line(error)}") from error
    except RuntimeError as error:  # e.g. no compiler, or an operator that it does not support
        raise ValueError(f"the graph cannot be written: {first_line(error)}") from error


def _open(form: Format, draft: Path, precision: str) -> Run:
    """Open the file; its errors become one line."""
    try:
        run = form.open(draft, precision)
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


def _file_facts(draft: Path, form: Format, out: Path, channels: int, classes: int, task: str) -> dict[str, Any]:
    batch, height, width = DYNAMIC_SIDES
    sha256, *more = (hashlib.sha256(draft.with_suffix(suffix).read_bytes()).hexdigest() for suffix in form.suffixes)
    return {
        "sha256": sha256,
        **{f"sha256_{suffix[1:]}": digest for suffix, digest in zip(form.suffixes[1:], more, strict=True)},
        "bytes": sum(draft.with_suffix(suffix).stat().st_size for suffix in form.suffixes),
        "load": form.load.format(path=out.name),
        "input": {"name": INPUT, "shape": [batch, channels, height, width]},
        "output": {"name": OUTPUT, "shape": [batch, classes, *((height, width) if task == "segment" else ())]},
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
