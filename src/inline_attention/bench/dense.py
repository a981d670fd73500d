"""`inline bench dense`: segmentation of one large image, with an InLine backbone and with the same one using softmax."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import isnan
from time import perf_counter
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from .measure import Call, Timing, measure_candidates, peak_memory_of_one_call
from .report import INLINE, SOFTMAX, TEXTBOOK, failures, logarithmic, number
from .result import Record, peak, seconds, spread

CLASSES = 150
WIDTH = 256


@dataclass(frozen=True)
class DenseCase:
    """A square image, in fp32."""

    model: str
    head: str
    size: int
    most: int
    """Side in pixels up to which softmax over all tokens is timed like the others; above it, a single call is timed."""
    written: int
    """Side in pixels up to which softmax that stores its attention weights fits into memory."""


DENSE_CASES = [DenseCase("inline_pvt_tiny", "semantic_fpn", size, most=512, written=512) for size in (512, 1024, 2048)]
QUICK_DENSE_CASES = [DenseCase("inline_pvt_tiny", "semantic_fpn", size, most=256, written=256) for size in (128, 256)]

FORMS: dict[str, dict[str, Any]] = {
    "inline": {},
    "reduced": {"mixer": "softmax"},
    "softmax": {"mixer": "softmax", "sr_ratios": (1, 1, 1, 1)},
}
"""InLine; PVT's softmax over spatially reduced keys; softmax over all keys, through SDPA."""


def measure_dense(case: DenseCase, seconds: float, device: torch.device) -> Record:
    """Times and peak memory of "inline", "reduced", "softmax", and "written": softmax that stores its attention weights."""
    image = torch.randn(1, 3, case.size, case.size, device=device)
    timed = [form for form in FORMS if form != "softmax" or case.size <= case.most]
    makers = {form: partial(_make, case, image, form) for form in timed}
    if case.size <= case.written:
        makers["written"] = partial(_make_written, case, image)
    record = measure_candidates(makers, "forward", seconds=seconds, dtype=image.dtype, device=device)
    if case.size > case.most:
        call = _make(case, image, "softmax")
        start = perf_counter()
        record["memory"]["softmax"] = peak_memory_of_one_call(call, device)
        taken = perf_counter() - start
        record["once"] = {"softmax": asdict(Timing(taken, taken, 1))}
    return record


def _make(case: DenseCase, image: Tensor, form: str) -> Call:
    """A call that predicts the class of every pixel."""
    from ..dense.inference import argmax_labels
    from ..dense.segmenter import upsample_logits

    model = _build(case, form).to(image.device)

    def run() -> Tensor:
        logits = model.coarse_logits(image)
        return argmax_labels(logits[0], lambda part: upsample_logits(part[None], (case.size, case.size))[0]).labels

    return torch.no_grad()(run)


def _make_written(case: DenseCase, image: Tensor) -> Call:
    """The same by SDPA's plain formula, which stores the attention weights."""
    call = _make(case, image, "softmax")

    def run() -> None:
        with sdpa_kernel(SDPBackend.MATH):
            call()

    return run


def _build(case: DenseCase, form: str) -> Any:
    from ..dense.pyramid import make_pyramid
    from ..dense.segmenter import Segmenter  # needs another package, which other benches do without

    pyramid = make_pyramid(case.model, {"img_size": case.size, **FORMS[form]})
    return Segmenter(pyramid, case.head, CLASSES, width=WIDTH).eval()


COLUMNS = ["model", "head", "size", "attention", "s", "spread", "MB", "time", "memory"]
LEGEND = (
    "Segmentation of one whole image into 150 classes: seconds of the best round (s), the median round over the best one "
    "(spread; a dash where a single call was timed) and peak memory (MB); and both over InLine's (time, memory). Attention: "
    "InLine; softmax over all tokens through SDPA, which does not store its weights; softmax over all tokens that stores its "
    "weights, where they fit into memory; and PVT's own softmax, whose keys are reduced 8, 4 and 2 times along a side."
)
LABELS = {
    "inline": "InLine",
    "softmax": "softmax, SDPA",
    "written": "softmax, weights stored",
    "reduced": "softmax, reduced keys",
}


def time(record: Record, form: str) -> float:
    """Seconds per image, of the best round or of a single call."""
    timed = seconds(record, "forward", form)
    return seconds(record, "once", form) if isnan(timed) else timed


def rows(records: Sequence[Record]) -> list[list[str]]:
    """The table: one row per case and form that ran."""
    return [
        [
            r["model"],
            r["head"],
            f"{r['size']}",
            label,
            number(time(r, form), 2),
            number(spread(r, "forward", form)),
            number(peak(r, form) / 1e6, 0),
            number(time(r, form) / time(r, "inline")),
            number(peak(r, form) / peak(r, "inline")),
        ]
        for r in records
        for form, label in LABELS.items()
        if not isnan(time(r, form))
    ]


def sentences(records: Sequence[Record]) -> list[str]:
    """InLine's share of the others' time and memory, and what failed."""
    out = []
    for r in records:
        for form, label in LABELS.items():
            if form == "inline" or isnan(time(r, form)):
                continue
            time_share, memory_share = time(r, "inline") / time(r, form), peak(r, "inline") / peak(r, form)
            what = f"{r['model']} with {r['head']} at {r['size']} x {r['size']}"
            out.append(f"{what}: {number(time_share)} of the time and {number(memory_share)} of the memory of {label}")
    return out + failures(records)


def draw(records: Sequence[Record]) -> Figure:
    """Time and peak memory per image against its side."""
    styles = {"inline": (INLINE, "-o"), "softmax": (SOFTMAX, "--s"), "written": (SOFTMAX, ":^"), "reduced": (TEXTBOOK, "-.d")}
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    sizes = sorted({r["size"] for r in records})
    by_size = sorted(records, key=lambda r: r["size"])
    for form, (colour, style) in styles.items():
        times = [time(r, form) for r in by_size]
        if all(map(isnan, times)):
            continue
        left.plot([r["size"] for r in by_size], times, style, color=colour, label=LABELS[form], markersize=5)
        right.plot([r["size"] for r in by_size], [peak(r, form) / 1e6 for r in by_size], style, color=colour, markersize=5)
    for axis, label in ((left, "time per image, s"), (right, "peak memory, MB")):
        logarithmic(axis, sizes)
        axis.set(xlabel="side of the image, pixels", ylabel=label)
    left.legend(fontsize=9)
    figure.suptitle(", ".join(dict.fromkeys(f"{r['model']} with {r['head']}" for r in records)), fontsize=11)
    return figure
