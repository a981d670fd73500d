"""All benches, and how to run one."""

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from matplotlib.figure import Figure

from . import dense_report, export_report, layer_report, models_report, resolution_report, streaming_report
from .dense import DENSE_CASES, QUICK_DENSE_CASES, DenseCase, measure_dense
from .export import EXPORT_CASES, QUICK_EXPORT_CASES, ExportCase, measure_export
from .layer import LAYER_CASES, QUICK_LAYER_CASES, LayerCase, measure_layer
from .models import MODEL_CASES, QUICK_MODEL_CASES, ModelCase, measure_model
from .record import Record
from .resolution import QUICK_RESOLUTION_CASES, RESOLUTION_CASES, ResolutionCase, measure_resolution
from .result import Result
from .streaming import QUICK_STREAM_CASES, STREAM_CASES, StreamCase, measure_stream
from .timing import settle_allocator
from .wording import markdown


class Report(Protocol):
    """A module that says what records amount to."""

    COLUMNS: list[str]
    LEGEND: str

    def rows(self, records: Sequence[Record]) -> list[list[str]]:
        """The table."""

    def sentences(self, records: Sequence[Record]) -> list[str]:
        """What the figures amount to."""

    def draw(self, records: Sequence[Record]) -> Figure:
        """The picture."""


@dataclass(frozen=True)
class Bench:
    """Cases, how to measure one, and what to say of them."""

    name: str
    case: type[Any]
    """A frozen dataclass: equal cases of two results are the same case."""
    cases: Sequence[Any]
    quick: Sequence[Any]
    measure: Callable[[Any, float, torch.device], Record]
    """A record of a case, without the case's own fields; contenders are timed for so many seconds."""
    yardstick: str
    """The contender that is nothing but matrix products."""
    report: Report

    def run(self, cases: Sequence[Any], *, seconds: float, device: torch.device, seed: int) -> Iterator[Record]:
        """One record a case."""
        settle_allocator()
        for case in cases:
            gc.collect()  # the models of the case before
            torch.manual_seed(seed)
            yield {**asdict(case), **self.measure(case, seconds, device)}

    def page(self, result: Result) -> str:
        """The result in Markdown."""
        where = ", ".join(f"{key} {value}" for key, value in result.machine.items())
        whole = [] if result.complete else ["Stopped before all cases were measured.", ""]
        table = markdown(self.report.COLUMNS, self.report.rows(result.records))
        said = ["```text", *self.report.sentences(result.records), "```", ""]
        head = [f"# inline bench {self.name}", "", f"Measured on {where}.", "", *whole]
        return "\n".join([*head, self.report.LEGEND, "", table, "", *said])


BENCHES = {
    bench.name: bench
    for bench in (
        Bench("layer", LayerCase, LAYER_CASES, QUICK_LAYER_CASES, measure_layer, "four products", layer_report),
        Bench("models", ModelCase, MODEL_CASES, QUICK_MODEL_CASES, measure_model, "product", models_report),
        Bench(
            "resolution", ResolutionCase, RESOLUTION_CASES, QUICK_RESOLUTION_CASES, measure_resolution, "product",
            resolution_report,
        ),
        Bench("stream", StreamCase, STREAM_CASES, QUICK_STREAM_CASES, measure_stream, "product", streaming_report),
        Bench("dense", DenseCase, DENSE_CASES, QUICK_DENSE_CASES, measure_dense, "product", dense_report),
        Bench("export", ExportCase, EXPORT_CASES, QUICK_EXPORT_CASES, measure_export, "product", export_report),
    )
}  # fmt: skip
