"""`inline bench stream --train`: a training step of one image in bands, beside the plain step and that of the softmax twin.

Each is done once: large images take minutes. The plain steps are done where they fit into a memory budget, which is known from
steps at smaller sizes: the memory of both grows with the number of pixels. What is too large is said, and not tried.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import nan
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import torch
from matplotlib.figure import Figure
from timm.models import create_model
from torch import nn

from ..large.gradients import stream_backward
from ..large.image_reader import image_for
from .measure import Timing, process_peak_memory
from .report import GREY, INLINE, SOFTMAX, TEXTBOOK, extremes, failures, logarithmic, number
from .result import Record, seconds
from .stream import write_noise

SAMPLES = (14, 28)
"""Sides in patches of the images whose steps tell how much memory larger ones need."""
COLOURS = {"bands": INLINE, "plain": TEXTBOOK, "softmax": SOFTMAX}
LABELS = {"bands": "InLine in bands", "plain": "InLine, plain", "softmax": "softmax twin"}


@dataclass(frozen=True)
class StreamTrainCase:
    """A square image in a memory-mapped file, in fp32."""

    model: str
    size: int
    budget: float = 8.0
    """Gigabytes that a plain step may take."""
    keep: int | None = None
    """How many inputs of blocks are kept; all if None."""


STREAM_TRAIN_CASES = [StreamTrainCase("inline_deit_tiny", size) for size in (896, 1792, 4096, 8192, 16_384)]
QUICK_STREAM_TRAIN_CASES = [StreamTrainCase("inline_deit_tiny", size) for size in (448, 896)]


def measure_stream_train(case: StreamTrainCase, seconds: float, device: torch.device) -> Record:
    """Seconds and the process's peak memory of one step of each."""
    steps: dict[str, Callable[[], object]] = {}
    errors: dict[str, str] = {}
    with TemporaryDirectory(prefix="inline-bench-") as folder:
        path = write_noise(Path(folder) / "image.npy", case.size)
        streamed = create_model(case.model).to(device)
        steps["bands"] = lambda: stream_backward(streamed, path, _loss, keep=case.keep)
        for name, mixer in (("plain", "inline"), ("softmax", "softmax")):
            model = create_model(case.model, mixer=mixer).to(device)
            needed = _predicted(model, case.size)
            if needed is not None and needed > 1e9 * case.budget:
                errors[name] = f"a step would take about {needed / 1e9:.0f} GB, the budget is {case.budget:g} GB"
            else:
                steps[name] = _plain_step(model, path)
        times, memory = {}, {}
        for name, step in steps.items():
            start = perf_counter()
            memory[name] = process_peak_memory(step)
            taken = perf_counter() - start
            times[name] = asdict(Timing(taken, taken, 1))
    return {"once": times, "memory": memory, "errors": errors}


def _loss(logits: torch.Tensor) -> torch.Tensor:
    return logits.logsumexp(1).sum()


def _plain_step(model: nn.Module, path: Path) -> Callable[[], object]:
    """Read the image, forward, backward."""

    def run() -> None:
        image = image_for(model, path)
        _loss(model(image.read(0, image.height).to(next(model.parameters()).device))).backward()

    return run


def _predicted(model: nn.Module, size: int) -> float | None:
    """Bytes of the process in a plain step at a size, from the growth between two smaller ones; None where not reported."""
    device, found = next(model.parameters()).device, []
    small, large = (side * int(model.patch_size) for side in SAMPLES)  # type: ignore[arg-type]
    for side in (small, large):
        images = torch.randn(1, 3, side, side, device=device)
        _loss(model(images)).backward()  # memory that is allocated only once
        peak = process_peak_memory(lambda images=images: _loss(model(images)).backward())  # type: ignore[misc]
        if peak is None:
            return None
        found.append(peak)
    growth = max(0, found[1] - found[0]) / (large**2 - small**2)
    return found[0] + growth * (size**2 - small**2)


COLUMNS = ["model", "size", "bands s", "plain s", "softmax s", "bands GB", "plain GB", "softmax GB", "pixel over plain"]
LEGEND = (
    "A training step of one square image in a memory-mapped file: forward, backward, gradients of all parameters. In bands, "
    "with the inputs of blocks in files (bands), as usual (plain), and of the same model with softmax attention (softmax): "
    "seconds, and peak memory of the whole process, torch included (GB). A dash: it does not fit into 8 GB. The last column is "
    "the time per pixel in bands over that of the plain step at the largest size where that fits."
)


def gigabytes(record: Record, name: str) -> float:
    """Peak memory of the process."""
    size: int | None = record["memory"].get(name)
    return size / 1e9 if size else nan


def over_plain(record: Record, records: Sequence[Record]) -> float:
    """Time per pixel in bands over that of the plain step at the largest size where that fits."""
    fitting = [r for r in records if r["model"] == record["model"] and "plain" in r["once"]]
    if not fitting:
        return nan
    largest = max(fitting, key=lambda r: int(r["size"]))
    return _per_pixel(record, "bands") / _per_pixel(largest, "plain")


def _per_pixel(record: Record, name: str) -> float:
    size: int = record["size"]
    return seconds(record, "once", name) / size**2


def rows(records: Sequence[Record]) -> list[list[str]]:
    """The table: one row per case."""
    return [
        [
            r["model"],
            f"{r['size']}",
            *(number(seconds(r, "once", name), 1) for name in LABELS),
            *(number(gigabytes(r, name)) for name in LABELS),
            number(over_plain(r, records)),
        ]
        for r in records
    ]


def sentences(records: Sequence[Record]) -> list[str]:
    """The greatest memory and cost of a pixel, and what does not fit."""
    return [
        f"Memory of the whole process in bands, GB: at most {extremes(records, lambda r: gigabytes(r, 'bands'), _describe)[1]}",
        "Time per pixel in bands over that of the plain step at the largest size that fits: at most "
        f"{extremes(records, lambda r: over_plain(r, records), _describe)[1]}",
        *failures(records),
    ]


def draw(records: Sequence[Record]) -> Figure:
    """What fits in 8 GB: memory and seconds against the side of the image."""
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, label in LABELS.items():
        mine = [r for r in records if name in r["once"]]
        sizes = [r["size"] for r in mine]
        left.plot(sizes, [gigabytes(r, name) for r in mine], "-o", color=COLOURS[name], label=label)
        right.plot(sizes, [seconds(r, "once", name) for r in mine], "-o", color=COLOURS[name], label=label)
    budget = max((r["budget"] for r in records), default=nan)
    left.axhline(budget, color=GREY, linestyle="--", label=f"{budget:g} GB")
    for axis, label in ((left, "memory of the process, GB"), (right, "time of a training step, s")):
        logarithmic(axis, sorted({r["size"] for r in records}))
        axis.set(xlabel="side of the image, pixels", ylabel=label)
    left.legend(fontsize=9)
    left.set_title(f"What fits in {budget:g} GB", fontsize=10)
    return figure


def _describe(record: Record) -> str:
    return f"{record['model']} at {record['size']}"
