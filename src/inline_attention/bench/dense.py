"""Segmentation of one large picture, whole: an InLine pyramid against the same one with softmax for attention."""

from dataclasses import asdict, dataclass
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from .memory import single_peak
from .race import Call, race
from .record import Record
from .timing import Timing

CLASSES = 150
WIDTH = 256


@dataclass(frozen=True)
class DenseCase:
    """A square picture, in fp32."""

    model: str
    head: str
    size: int
    most: int
    """Pixels a side up to which softmax over all tokens is timed like the others; beyond, one call is."""
    written: int
    """Pixels a side up to which softmax that writes its weights out fits into memory."""


DENSE_CASES = [DenseCase("inline_pvt_tiny", "semantic_fpn", size, most=512, written=512) for size in (512, 1024, 2048)]
QUICK_DENSE_CASES = [DenseCase("inline_pvt_tiny", "semantic_fpn", size, most=256, written=256) for size in (128, 256)]

FORMS: dict[str, dict[str, Any]] = {
    "inline": {},
    "reduced": {"mixer": "softmax"},
    "softmax": {"mixer": "softmax", "sr_ratios": (1, 1, 1, 1)},
}
"""InLine; PVT's softmax over keys of a reduced map; softmax over all keys, through SDPA."""


def measure_dense(case: DenseCase, seconds: float, device: torch.device) -> Record:
    """Times and peak memory of "inline", "reduced", "softmax", and "written": softmax that holds its weights in memory."""
    picture = torch.randn(1, 3, case.size, case.size, device=device)
    raced = [form for form in FORMS if form != "softmax" or case.size <= case.most]
    makers = {form: partial(_make, case, picture, form) for form in raced}
    if case.size <= case.written:
        makers["written"] = partial(_make_written, case, picture)
    record = race(makers, "forward", seconds=seconds, dtype=picture.dtype, device=device)
    if case.size > case.most:
        call = _make(case, picture, "softmax")
        start = perf_counter()
        record["memory"]["softmax"] = single_peak(call, device)
        taken = perf_counter() - start
        record["once"] = {"softmax": asdict(Timing(taken, taken, 1))}
    return record


def _make(case: DenseCase, picture: Tensor, form: str) -> Call:
    """The class of every pixel."""
    from ..dense.read_out import read_out
    from ..dense.segmenter import grown

    model = _build(case, form).to(picture.device)

    def run() -> Tensor:
        logits = model.coarse(picture)
        return read_out(logits[0], lambda part: grown(part[None], (case.size, case.size))[0]).labels

    return torch.no_grad()(run)


def _make_written(case: DenseCase, picture: Tensor) -> Call:
    call = _make(case, picture, "softmax")

    def run() -> None:
        with sdpa_kernel(SDPBackend.MATH):
            call()

    return run


def _build(case: DenseCase, form: str) -> Any:
    from ..dense.pyramid import make_pyramid
    from ..dense.segmenter import Segmenter  # needs another package, which other benches do without

    pyramid = make_pyramid(case.model, {"img_size": case.size, **FORMS[form]})
    return Segmenter(pyramid, case.head, CLASSES, width=WIDTH).eval()
