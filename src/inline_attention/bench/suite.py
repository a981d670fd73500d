"""All benches (`BENCHES`), how to run one, and its page in Markdown.

Pages are made from records alone, so a test can make the stored pages again from the stored JSON.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from matplotlib.figure import Figure

from . import bags, dense, export, layer, mixers, models, resolution, stream, stream_segment, stream_train
from .bags import BAG_CASES, QUICK_BAG_CASES, BagCase, measure_bags
from .dense import DENSE_CASES, QUICK_DENSE_CASES, DenseCase, measure_dense
from .export import EXPORT_CASES, QUICK_EXPORT_CASES, ExportCase, measure_export
from .layer import LAYER_CASES, QUICK_LAYER_CASES, LayerCase, measure_layer
from .measure import settle_allocator
from .mixers import MIXER_CASES, QUICK_MIXER_CASES, MixerCase, measure_mixers
from .models import MODEL_CASES, QUICK_MODEL_CASES, ModelCase, measure_model
from .report import markdown_table
from .resolution import QUICK_RESOLUTION_CASES, RESOLUTION_CASES, ResolutionCase, measure_resolution
from .result import Record, Result
from .stream import QUICK_STREAM_CASES, STREAM_CASES, StreamCase, measure_stream
from .stream_segment import (
    QUICK_STREAM_SEGMENT_CASES,
    STREAM_SEGMENT_CASES,
    StreamSegmentCase,
    measure_stream_segment,
)
from .stream_train import QUICK_STREAM_TRAIN_CASES, STREAM_TRAIN_CASES, StreamTrainCase, measure_stream_train


class BenchReport(Protocol):
    """The part of a bench's module that turns records into a table, sentences and a figure."""

    COLUMNS: list[str]
    LEGEND: str

    def rows(self, records: Sequence[Record]) -> list[list[str]]:
        """The rows of the table."""

    def sentences(self, records: Sequence[Record]) -> list[str]:
        """What the records show, one line each."""

    def draw(self, records: Sequence[Record]) -> Figure:
        """The figure."""


@dataclass(frozen=True)
class Bench:
    """The cases of a bench, how one is measured, and how records are reported."""

    name: str
    case: type[Any]
    """A frozen dataclass; cases of two results are matched by its fields."""
    cases: Sequence[Any]
    quick: Sequence[Any]
    measure: Callable[[Any, float, torch.device], Record]
    """(case, seconds to time the candidates, device) -> the record, without the case's own fields."""
    yardstick: str
    """The candidate that consists of matrix products only: the unit of `inline bench compare`."""
    report: BenchReport

    def run(self, cases: Sequence[Any], *, seconds: float, device: torch.device, seed: int) -> Iterator[Record]:
        """Measure the cases one by one; one record each."""
        settle_allocator()
        for case in cases:
            gc.collect()  # frees the models of the case before
            torch.manual_seed(seed)
            yield {**asdict(case), **self.measure(case, seconds, device)}

    def page(self, result: Result) -> str:
        """The page of a result, in Markdown."""
        where = ", ".join(f"{key} {value}" for key, value in result.machine.items())
        incomplete = [] if result.complete else ["Stopped before all cases were measured.", ""]
        table = markdown_table(self.report.COLUMNS, self.report.rows(result.records))
        sentences = ["```text", *self.report.sentences(result.records), "```", ""]
        head = [f"# inline bench {self.name}", "", f"Measured on {where}.", "", *incomplete]
        return "\n".join([*head, self.report.LEGEND, "", table, "", *sentences])


BENCHES = {
    bench.name: bench
    for bench in (
        Bench("layer", LayerCase, LAYER_CASES, QUICK_LAYER_CASES, measure_layer, "four products", layer),
        Bench("mixers", MixerCase, MIXER_CASES, QUICK_MIXER_CASES, measure_mixers, "four products", mixers),
        Bench("models", ModelCase, MODEL_CASES, QUICK_MODEL_CASES, measure_model, "product", models),
        Bench(
            "resolution", ResolutionCase, RESOLUTION_CASES, QUICK_RESOLUTION_CASES, measure_resolution, "product",
            resolution,
        ),
        Bench("stream", StreamCase, STREAM_CASES, QUICK_STREAM_CASES, measure_stream, "product", stream),
        Bench(
            "stream_train", StreamTrainCase, STREAM_TRAIN_CASES, QUICK_STREAM_TRAIN_CASES, measure_stream_train, "plain",
            stream_train,
        ),
        Bench(
            "stream_segment", StreamSegmentCase, STREAM_SEGMENT_CASES, QUICK_STREAM_SEGMENT_CASES, measure_stream_segment,
            "npy", stream_segment,
        ),
        Bench("dense", DenseCase, DENSE_CASES, QUICK_DENSE_CASES, measure_dense, "product", dense),
        Bench("bags", BagCase, BAG_CASES, QUICK_BAG_CASES, measure_bags, "product", bags),
        Bench("export", ExportCase, EXPORT_CASES, QUICK_EXPORT_CASES, measure_export, "product", export),
    )
}  # fmt: skip
