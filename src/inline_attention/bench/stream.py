"""`inline bench stream`: images streamed from a file in bands, against the plain forward pass of an image that fits."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import nan
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
import torch
from matplotlib.figure import Figure
from timm.models import create_model
from torch import nn

from ..large.image_reader import image_for
from ..large.stream import Streamed, stream
from .measure import Timing, forward, measure_candidates, process_peak_memory
from .report import INLINE, SOFTMAX, extremes, logarithmic, number
from .result import Record, seconds


@dataclass(frozen=True)
class StreamCase:
    """A square image in a memory-mapped file, and the plain forward pass of a smaller one, in fp32."""

    model: str
    size: int
    plain: int = 1792
    """Side in pixels of the image of the plain forward pass. If it equals `size`, outputs are compared too."""


STREAM_CASES = [
    StreamCase("inline_deit_tiny", 1792),
    StreamCase("inline_deit_tiny", 4096),
    StreamCase("inline_deit_tiny", 16_384),
    StreamCase("inline_pvt_tiny", 1792),
    StreamCase("inline_pvt_tiny", 4096),
]
QUICK_STREAM_CASES = [StreamCase("inline_deit_tiny", 896, plain=896), StreamCase("inline_deit_tiny", 1792, plain=896)]


def measure_stream(case: StreamCase, seconds: float, device: torch.device) -> Record:
    """Times of the plain pass; and of one streamed pass the seconds, the process's memory and the error of the features."""
    model = create_model(case.model).to(device).eval()
    fitting = torch.randn(1, 3, case.plain, case.plain, device=device)
    record = measure_candidates(
        {"plain": lambda: forward(model, fitting)}, "forward", seconds=seconds, dtype=fitting.dtype, device=device
    )
    with TemporaryDirectory(prefix="inline-bench-") as folder:
        path = write_noise(Path(folder) / "image.npy", case.size)
        results: list[Streamed] = []
        start = perf_counter()
        process_bytes = process_peak_memory(lambda: results.append(stream(model, path)))
        taken = perf_counter() - start
        difference = _difference(model, path, results[0]) if case.size == case.plain else None
    return {**record, "stream": {"bands": asdict(Timing(taken, taken, 1))}, "process": process_bytes, "difference": difference}


def write_noise(path: Path, size: int) -> Path:
    """Write noise 256 rows at a time, so that the bench itself never holds the whole image."""
    pixels = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(size, size, 3))
    generator = np.random.default_rng(0)
    for start in range(0, size, 256):
        rows = min(256, size - start)
        pixels[start : start + rows] = generator.integers(0, 256, (rows, size, 3), dtype=np.uint8)
    pixels.flush()
    return path


@torch.no_grad()
def _difference(model: nn.Module, path: Path, streamed: Streamed) -> float:
    """The greatest difference from the features of the plain pass, relative to the greatest of them."""
    image = image_for(model, path)
    parameter = next(model.parameters())
    plain = model.forward_features(image.read(0, image.height).to(parameter.device))  # type: ignore[operator]
    return float((streamed.features.to(plain.device) - plain).abs().max() / plain.abs().max())


COLUMNS = ["model", "size", "s", "ns/pixel", "over plain", "GB", "difference"]
LEGEND = (
    "A square image in a memory-mapped file, streamed through the model in bands: seconds of one pass (s); time per pixel, and "
    "that over the time per pixel of the plain forward pass at 1,792 x 1,792 (--quick: 896 x 896) (over plain); peak memory "
    "of the whole process, torch included (GB); and the greatest difference from the features of the plain forward pass, "
    "relative to the greatest of them, at the size where both ran."
)


def per_pixel(record: Record) -> float:
    """Seconds per pixel."""
    size: int = record["size"]
    return seconds(record, "stream", "bands") / size**2


def over_plain(record: Record) -> float:
    """The time per pixel over that of the plain pass."""
    plain: int = record["plain"]
    return per_pixel(record) / (seconds(record, "forward", "plain") / plain**2)


def process(record: Record) -> float:
    """Peak memory of the process in gigabytes."""
    size: int | None = record["process"]
    return size / 1e9 if size else nan


def rows(records: Sequence[Record]) -> list[list[str]]:
    """The table: one row per case."""
    return [
        [
            r["model"],
            f"{r['size']}",
            number(seconds(r, "stream", "bands"), 1),
            number(1e9 * per_pixel(r), 0),
            number(over_plain(r)),
            number(process(r)),
            "-" if r["difference"] is None else f"{r['difference']:.0e}",
        ]
        for r in records
    ]


def sentences(records: Sequence[Record]) -> list[str]:
    """The greatest time per pixel and the greatest memory."""
    return [
        f"Time per pixel in bands over that of the plain forward pass: at most {extremes(records, over_plain, _describe)[1]}",
        f"Memory of the whole process, GB: at most {extremes(records, process, _describe)[1]}",
    ]


def draw(records: Sequence[Record]) -> Figure:
    """Seconds and memory against the side of the image."""
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    for colour, marker, model in zip((INLINE, SOFTMAX), "os", dict.fromkeys(r["model"] for r in records), strict=False):
        mine = [r for r in records if r["model"] == model]
        sizes = [r["size"] for r in mine]
        left.plot(sizes, [seconds(r, "stream", "bands") for r in mine], f"-{marker}", color=colour, label=model)
        right.plot(sizes, [process(r) for r in mine], f"-{marker}", color=colour, label=model)
    for axis, label in ((left, "time per image, s"), (right, "memory of the process, GB")):
        logarithmic(axis, sorted({r["size"] for r in records}))
        axis.set(xlabel="side of the image, pixels", ylabel=label)
        axis.legend(fontsize=9)
    return figure


def _describe(record: Record) -> str:
    return f"{record['model']} at {record['size']}"
