"""`inline bench`: measure speed and memory against the alternatives; one class for each sub-command."""

import io
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .arguments import prepare_folder, usable_device
from .console import table_console
from .progress import track

if TYPE_CHECKING:
    from ..bench.result import Record, Result
    from ..bench.suite import Bench


@dataclass(frozen=True)
class BenchOptions:
    """The options of every bench."""

    out: Path = Path("bench")
    """Folder for the results: JSON, a table in Markdown, an image."""
    quick: bool = False
    """A few cases instead of all."""
    json: bool = False
    """Print the JSON instead of the table."""
    device: str = "cpu"
    """Where to measure: cpu, cuda, mps."""
    seconds: float = 2.0
    """How long to time the candidates of one case, forward and again forward + backward."""
    seed: int = 0
    """Seed of weights and inputs."""


@dataclass(frozen=True)
class BenchLayer(BenchOptions):
    """Time the attention layer against softmax, textbook InLine and plain matrix products."""

    def run(self) -> None:
        """Measure, write, print."""
        _run(self, "layer")


@dataclass(frozen=True)
class BenchMixers(BenchOptions):
    """Time all sixteen kinds of attention against the matrix products of their projections, and their memory."""

    def run(self) -> None:
        """Measure, write, print."""
        _run(self, "mixers")


@dataclass(frozen=True)
class BenchModels(BenchOptions):
    """Time whole models, forward and training, as they are and compiled, against timm's and against their softmax twins."""

    seconds: float = 15.0
    """How long to time the candidates of one case."""

    def run(self) -> None:
        """Measure, write, print."""
        _run(self, "models")


@dataclass(frozen=True)
class BenchResolution(BenchOptions):
    """Time and memory of one image against its size: InLine, softmax and textbook InLine, and where they cross."""

    seconds: float = 15.0
    """How long to time the candidates of one case."""

    def run(self) -> None:
        """Measure, write, print."""
        _run(self, "resolution")


@dataclass(frozen=True)
class BenchStream(BenchOptions):
    """Run models on images from files in bands, up to 16,384 x 16,384: time, memory, and how exact it is."""

    seconds: float = 15.0
    """How long to time the plain forward pass that streaming is compared with."""
    train: bool = False
    """Measure a training step instead, in bands, plain and with softmax: time, memory, and what fits in 8 GB."""
    segment: bool = False
    """Measure segmentation instead, from an image file to a map in a file, beside overlapping tiles through softmax."""
    sizes: str | None = None
    """With --train or --segment: sides of the images in pixels, such as 2048,8192; unset: up to 16,384."""

    def run(self) -> None:
        """Measure, write, print."""
        if self.train and self.segment:
            raise ValueError("--train and --segment are two benches: give one of them")
        if not (self.train or self.segment):
            if self.sizes is not None:
                raise ValueError(f"--sizes {self.sizes} is of --train and --segment: give one of them too")
            _run(self, "stream")
            return
        from ..bench.suite import BENCHES

        name = "stream_train" if self.train else "stream_segment"
        like = (BENCHES[name].quick if self.quick else BENCHES[name].cases)[0]
        _run(self, name, None if self.sizes is None else [replace(like, size=size) for size in _sizes(self.sizes)])


@dataclass(frozen=True)
class BenchDense(BenchOptions):
    """Segment one image as a whole, up to 2,048 x 2,048: time and memory of InLine and of softmax."""

    seconds: float = 15.0
    """How long to time the candidates of one case."""

    def run(self) -> None:
        """Measure, write, print."""
        _run(self, "dense")


@dataclass(frozen=True)
class BenchBags(BenchOptions):
    """Slides as bags of up to 100,000 tiles, made with a rule: accuracy, time and memory of InLine, softmax and pooling."""

    seconds: float = 15.0
    """How long to time a training step of the candidates of one case; training them takes a quarter of an hour each."""

    def run(self) -> None:
        """Measure, write, print."""
        _run(self, "bags")


@dataclass(frozen=True)
class BenchExport(BenchOptions):
    """Run exported files in onnxruntime and OpenVINO, 8 bits included, against torch, compiled or not, and softmax."""

    seconds: float = 15.0
    """How long to time the candidates of one case."""

    def run(self) -> None:
        """Measure, write, print."""
        _run(self, "export")


@dataclass(frozen=True)
class BenchCompare:
    """Print what got slower between two results of one bench.

    Times are compared in units of the matrix products timed in the same case, so that a slower machine does not look like
    slower code. The exit code is 1 if something is slower beyond the tolerance, else 0.
    """

    before: Annotated[Path, tyro.conf.Positional]
    """A result, such as benchmarks/results/models.json."""
    after: Annotated[Path, tyro.conf.Positional]
    """Another of the same bench."""
    tolerance: float = 0.1
    """How much slower or faster counts: 0.1 is 10 %."""
    json: bool = False
    """Print JSON instead of the table."""

    def run(self) -> None:
        """Read, compare, print."""
        from ..bench import compare

        if not 0 <= self.tolerance < float("inf"):
            raise ValueError(f"--tolerance must not be negative, got {self.tolerance}")
        found = compare.compare(compare.read(self.before), compare.read(self.after), self.tolerance)
        if self.json:
            print(json.dumps(asdict(found), indent=1))
        else:
            _print(compare.COLUMNS, compare.rows(found), compare.LEGEND, compare.sentences(found))
        if found.slower:
            sys.exit(1)


def _sizes(text: str) -> list[int]:
    try:
        sizes = [int(size) for size in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 32:
        raise ValueError(f"--sizes is sides in pixels from 32 on, with commas between, such as 2048,8192, got {text!r}")
    return sizes


def _run(options: BenchOptions, name: str, chosen: Sequence[Any] | None = None) -> None:
    from ..bench.result import Result, machine
    from ..bench.suite import BENCHES

    if not 0 < options.seconds < float("inf"):
        raise ValueError(f"--seconds must be positive, got {options.seconds}")
    device = usable_device(options.device)
    prepare_folder(options.out)
    bench = BENCHES[name]
    cases = chosen or (bench.quick if options.quick else bench.cases)
    measured = bench.run(cases, seconds=options.seconds, device=device, seed=options.seed)
    records: list[Record] = []
    try:
        for record in track(measured, "cases", len(cases), Console(stderr=True)):
            records.append(record)
    except KeyboardInterrupt:
        if not records:
            raise
    result = Result(name, machine(device), options.seconds, options.seed, len(records) == len(cases), records)
    _write(bench, result, options.out)
    if not result.complete:
        print(
            f"inline: stopped after {len(records)} of {len(cases)} cases, which are in {options.out}/{name}.json",
            file=sys.stderr,
        )
        sys.exit(130)
    if options.json:
        print(result.to_json())
        return
    _print(bench.report.COLUMNS, bench.report.rows(records), bench.report.LEGEND, bench.report.sentences(records))
    Console().print(f"Written: {options.out}/{name}.json, {name}.md, {name}.png", highlight=False, soft_wrap=True)


def _write(bench: "Bench", result: "Result", out: Path) -> None:
    from ..training.checkpoint import write_atomically

    image = io.BytesIO()
    write_atomically(out / f"{bench.name}.json", f"{result.to_json()}\n".encode())
    write_atomically(out / f"{bench.name}.md", bench.page(result).encode())
    bench.report.draw(result.records).savefig(image, dpi=130)
    write_atomically(out / f"{bench.name}.png", image.getvalue())


def _print(columns: Sequence[str], rows: Sequence[Sequence[str]], legend: str, sentences: Sequence[str]) -> None:
    console = table_console()
    table = Table(caption=legend, caption_justify="left", box=SIMPLE_HEAD, padding=0)
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*row)
    if rows:
        console.print(table)
    for sentence in sentences:
        console.print(sentence, highlight=False, soft_wrap=True, markup=False)
