"""`inline bench export`: exported ONNX models in onnxruntime, against torch and against softmax attention in both.

A file is exported once for all image sizes, as `inline export` does. Both runtimes have the same number of threads.
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


def measure_export(case: ExportCase, seconds: float, device: torch.device) -> Record:
    """Times of "inline" and "softmax" in torch, of "inline onnx", "softmax onnx" and "int8 onnx", and of timm's "rival"."""
    if device.type != "cpu":
        raise ValueError(f"bench export runs files in onnxruntime on the CPU, got --device {device}")
    images = torch.randn(case.batch, 3, case.size, case.size)
    makers: dict[str, Callable[[], Call]] = {
        "inline": partial(_eager, case.model, "inline", images),
        "inline onnx": partial(_onnx, case.model, "inline", "fp32", images),
        "int8 onnx": partial(_onnx, case.model, "inline", "int8", images),
        "softmax onnx": partial(_onnx, case.model, "softmax", "fp32", images),
        "softmax": partial(_eager, case.model, "softmax", images),
    }
    if case.rival != TWIN:
        makers["rival"] = partial(_rival, case.rival, images)
    record = measure_candidates(makers, "forward", seconds=seconds, dtype=images.dtype, device=device)
    return {**versions("onnxruntime"), **record}


def _model(name: str, mixer: str) -> nn.Module:
    torch.manual_seed(0)
    return create_model(name, mixer=mixer).eval()


def _eager(name: str, mixer: str, images: Tensor) -> Call:
    return forward(_model(name, mixer), images)


def _rival(name: str, images: Tensor) -> Call:
    return forward(create_model(name, img_size=images.shape[-1]).eval(), images)


def _onnx(name: str, mixer: str, precision: str, images: Tensor) -> Call:
    """The file in onnxruntime, after a check that its outputs are those of the model."""
    from ..deploy.formats import open_onnx
    from ..deploy.verify import TOLERANCE

    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(_file(name, mixer, precision))
        run = open_onnx(path)
    with torch.no_grad():
        difference = float((run(images) - _model(name, mixer)(images)).abs().max())
    if precision == "fp32" and difference > TOLERANCE:
        raise ValueError(f"the file differs by {difference:.1e}")
    return lambda: run(images)


@cache
def _file(name: str, mixer: str, precision: str) -> bytes:
    """The contents of the file, exported once."""
    from ..deploy.formats import export_graph
    from ..deploy.onnx_file import write_int8, write_onnx

    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        if precision == "int8":
            whole = Path(folder) / "whole.onnx"
            whole.write_bytes(_file(name, mixer, "fp32"))
            write_int8(whole, path)
        else:
            write_onnx(export_graph(_model(name, mixer)), path)
        return path.read_bytes()


COLUMNS = ["model", "size", "batch", "runs in", "ms", "spread", "/ torch", "/ ONNX"]
LEGEND = (
    "Milliseconds per batch in the best round (ms); the median round over the best one (spread); and the time over that of "
    "InLine in torch (/ torch) and in onnxruntime (/ ONNX): below 1 is faster than InLine. Each file takes images of any size; "
    "softmax is the same model with softmax attention; timm's model is built for the size and runs in torch."
)
FORMS = {
    "inline": "InLine, torch",
    "inline onnx": "InLine, ONNX",
    "int8 onnx": "InLine, ONNX int8",
    "softmax": "softmax, torch",
    "softmax onnx": "softmax, ONNX",
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
    out = [f"Files were run by onnxruntime {version}" for version in dict.fromkeys(r["onnxruntime"] for r in records)]
    for r in records:
        eager, rival = ratio(r, "forward", "inline", "inline onnx"), ratio(r, "forward", "softmax onnx", "inline onnx")
        if not isnan(eager):
            speeds = f"{number(eager)} times as fast as in torch, {number(rival)} times as fast as softmax in ONNX"
            out.append(f"{_describe(r)}: in ONNX {speeds}")
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
