"""`inline bench export`: exported models in onnxruntime and OpenVINO, against torch, eager and compiled, and against softmax.

A file is exported once for all image sizes, as `inline export` does; torch.compile compiles for the one that is measured. All
have the same number of threads.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import isnan
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from matplotlib.figure import Figure
from timm.models import create_model
from torch import Tensor, nn
from torch.export import ExportedProgram

from ..lite.versions import versions
from .measure import Call, forward, measure_candidates
from .models import DEIT, TWIN
from .report import GREY, INLINE, SOFTMAX, TEXTBOOK, cases_where, failures, logarithmic, number
from .result import Record, ratio, seconds, spread


@dataclass(frozen=True)
class ExportCase:
    """A batch of square images, in fp32 unless the candidate is int8."""

    model: str
    rival: str
    """A softmax model of timm's, run in torch; TWIN if only the same model with softmax attention is compared."""
    size: int
    batch: int


EXPORT_CASES = [
    *(ExportCase(*DEIT, size, batch) for size, batch in ((224, 1), (224, 8), (448, 1), (896, 1))),
    *(ExportCase("inline_pvt_tiny", TWIN, size, 1) for size in (224, 448, 896)),
]
QUICK_EXPORT_CASES = [ExportCase("inline_deit_nano", TWIN, size, 1) for size in (64, 128)]


FILES = {
    "inline onnx": ("onnx", "inline", "fp32"),
    "int8 onnx": ("onnx", "inline", "int8"),
    "softmax onnx": ("onnx", "softmax", "fp32"),
    "inline openvino": ("openvino", "inline", "fp32"),
    "int8 openvino": ("openvino", "inline", "int8"),
    "softmax openvino": ("openvino", "softmax", "fp32"),
}
"""Format, attention and precision of each file."""


def measure_export(case: ExportCase, seconds: float, device: torch.device) -> Record:
    """Times of "inline", "compiled" and "softmax" in torch, of three files in each of two runtimes, and of timm's "rival"."""
    if device.type != "cpu":
        raise ValueError(f"bench export runs files in onnxruntime and OpenVINO on the CPU, got --device {device}")
    images = torch.randn(case.batch, 3, case.size, case.size)
    makers: dict[str, Callable[[], Call]] = {
        "inline": partial(_eager, case.model, "inline", images),
        "compiled": partial(_compiled, case.model, images),
        **{name: partial(_exported, *file, case.model, images) for name, file in FILES.items()},
        "softmax": partial(_eager, case.model, "softmax", images),
    }
    if case.rival != TWIN:
        makers["rival"] = partial(_rival, case.rival, images)
    record = measure_candidates(makers, "forward", seconds=seconds, dtype=images.dtype, device=device)
    return {**versions("onnxruntime", "openvino"), **record}


def _model(name: str, mixer: str) -> nn.Module:
    torch.manual_seed(0)
    return create_model(name, mixer=mixer).eval()


def _eager(name: str, mixer: str, images: Tensor) -> Call:
    return forward(_model(name, mixer), images)


def _rival(name: str, images: Tensor) -> Call:
    return forward(create_model(name, img_size=images.shape[-1]).eval(), images)


def _compiled(name: str, images: Tensor) -> Call:
    return forward(torch.compile(_model(name, "inline"), dynamic=False), images)


def _exported(kind: str, mixer: str, precision: str, name: str, images: Tensor) -> Call:
    """A file in its runtime, after a check that its outputs are those of the model."""
    from ..deploy.formats import FORMATS
    from ..deploy.verify import TOLERANCE

    with TemporaryDirectory() as folder:
        path = Path(folder) / f"model{FORMATS[kind].suffix}"
        for suffix, data in _files(name, kind, mixer, precision).items():
            path.with_suffix(suffix).write_bytes(data)
        run = FORMATS[kind].open(path, precision)
    with torch.no_grad():
        difference = float((run(images) - _model(name, mixer)(images)).abs().max())
    if precision == "fp32" and difference > TOLERANCE:
        raise ValueError(f"the file differs by {difference:.1e}")
    return lambda: run(images)


@cache
def _files(name: str, kind: str, mixer: str, precision: str) -> dict[str, bytes]:
    """The contents of a file, and of those that belong to it, by their suffixes; written once."""
    from ..deploy.formats import FORMATS

    form = FORMATS[kind]
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"model{form.suffix}"
        form.write(_graph(name, mixer), path, precision)
        return {suffix: path.with_suffix(suffix).read_bytes() for suffix in form.suffixes}


@cache
def _graph(name: str, mixer: str) -> ExportedProgram:
    from ..deploy.formats import export_graph

    return export_graph(_model(name, mixer).requires_grad_(False))


COLUMNS = ["model", "size", "batch", "runs in", "ms", "spread", "/ torch", "/ ONNX"]
LEGEND = (
    "Milliseconds per batch in the best round (ms); the median round over the best one (spread); and the time over that of "
    "InLine in torch (/ torch) and in onnxruntime (/ ONNX): below 1 is faster than InLine. Each file takes images of any size; "
    "softmax is the same model with softmax attention; timm's model is built for the size and runs in torch."
)
FORMS = {
    "inline": "InLine, torch",
    "compiled": "InLine, torch.compile",
    "inline onnx": "InLine, ONNX",
    "int8 onnx": "InLine, ONNX int8",
    "inline openvino": "InLine, OpenVINO",
    "int8 openvino": "InLine, OpenVINO int8",
    "softmax": "softmax, torch",
    "softmax onnx": "softmax, ONNX",
    "softmax openvino": "softmax, OpenVINO",
    "rival": "timm's softmax, torch",
}


def rows(records: Sequence[Record]) -> list[list[str]]:
    """The table: one row per case and form that ran."""
    return [
        [
            r["model"],
            f"{r['size']}",
            f"{r['batch']}",
            label,
            number(1e3 * seconds(r, "forward", form), 1),
            number(spread(r, "forward", form)),
            number(ratio(r, "forward", form, "inline")),
            number(ratio(r, "forward", form, "inline onnx")),
        ]
        for r in records
        for form, label in FORMS.items()
        if not isnan(seconds(r, "forward", form))
    ]


def sentences(records: Sequence[Record]) -> list[str]:
    """The speed of InLine in ONNX over torch and over softmax in ONNX, the cases in which it is slower, and what failed."""
    runtimes = (
        " and ".join(f"{name} {record[name]}" for name in ("onnxruntime", "openvino") if record.get(name)) for record in records
    )
    out = [f"Files were run by {names}" for names in dict.fromkeys(runtimes)]
    for r in records:
        eager, rival = ratio(r, "forward", "inline", "inline onnx"), ratio(r, "forward", "softmax onnx", "inline onnx")
        if not isnan(eager):
            speeds = f"{number(eager)} times as fast as in torch, {number(rival)} times as fast as softmax in ONNX"
            out.append(f"{_describe(r)}: in ONNX {speeds}")
        faster = {other: ratio(r, "forward", other, "inline openvino") for other in ("inline", "compiled", "inline onnx")}
        if not isnan(faster["inline"]):
            speeds = f"{number(faster['inline'])} times as fast as in torch, {number(faster['compiled'])} as compiled"
            out.append(f"{_describe(r)}: in OpenVINO {speeds}, {number(faster['inline onnx'])} as in ONNX")
    for form, label in FORMS.items():
        over = partial(ratio, kind="forward", name=form, other="inline onnx")
        if form != "inline onnx" and not all(isnan(over(r)) for r in records):
            lost = cases_where(records, over, _describe, lambda value: value < 1)
            out.append(f"{label} is faster than InLine, ONNX: {lost or 'in no case'}")
    return out + failures(records)


def draw(records: Sequence[Record]) -> Figure:
    """Time per image against its side: one panel per model."""
    styles = {
        "inline": (INLINE, "--o"),
        "inline onnx": (INLINE, "-o"),
        "int8 onnx": (TEXTBOOK, "-d"),
        "compiled": (INLINE, ":o"),
        "inline openvino": (INLINE, "-v"),
        "int8 openvino": (TEXTBOOK, "-v"),
        "softmax openvino": (SOFTMAX, "-v"),
        "softmax": (SOFTMAX, "--s"),
        "softmax onnx": (SOFTMAX, "-s"),
        "rival": (GREY, ":^"),
    }
    models = list(dict.fromkeys(r["model"] for r in records))
    figure = Figure(figsize=(4.6 * max(2, len(models)), 3.8), layout="constrained")
    axes = figure.subplots(1, len(models), squeeze=False)[0]
    for axis, model in zip(axes, models, strict=True):
        found = sorted((r for r in records if r["model"] == model and r["batch"] == 1), key=lambda r: r["size"])
        sizes = [r["size"] for r in found]
        for form, (colour, style) in styles.items():
            times = [1e3 * seconds(r, "forward", form) for r in found]
            if not all(map(isnan, times)):
                axis.plot(sizes, times, style, color=colour, label=FORMS[form], markersize=5)
        logarithmic(axis, sizes)
        axis.set(xlabel="side of the image, pixels", ylabel="time per image, ms", title=model)
        axis.legend(fontsize=8)
    return figure


def _describe(record: Record) -> str:
    return f"{record['model']} at {record['size']}, batch {record['batch']}"
