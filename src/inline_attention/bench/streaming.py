"""Pictures in bands, out of a file: what a pixel costs, compared with the plain forward pass of a picture that fits."""

from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
import torch
from timm.models import create_model
from torch import nn

from ..models.picture import picture_for
from ..models.streaming import Streamed, stream
from .memory import process_peak
from .race import forward, race
from .record import Record
from .timing import Timing


@dataclass(frozen=True)
class StreamCase:
    """A square picture in a memory-mapped file; and the plain forward pass of a smaller one beside it, in fp32."""

    model: str
    size: int
    plain: int = 1792
    """Pixels a side of the picture that the plain forward pass gets. If it is the same, outputs are compared."""


STREAM_CASES = [
    StreamCase("inline_deit_tiny", 1792),
    StreamCase("inline_deit_tiny", 4096),
    StreamCase("inline_deit_tiny", 16_384),
    StreamCase("inline_pvt_tiny", 1792),
    StreamCase("inline_pvt_tiny", 4096),
]
QUICK_STREAM_CASES = [StreamCase("inline_deit_tiny", 896, plain=896), StreamCase("inline_deit_tiny", 1792, plain=896)]


def measure_stream(case: StreamCase, seconds: float, device: torch.device) -> Record:
    """Times of the plain pass; and of one pass in bands its seconds, the whole process's memory, and how far it is off."""
    model = create_model(case.model).to(device).eval()
    fitting = torch.randn(1, 3, case.plain, case.plain, device=device)
    record = race({"plain": lambda: forward(model, fitting)}, "forward", seconds=seconds, dtype=fitting.dtype, device=device)
    with TemporaryDirectory(prefix="inline-bench-") as folder:
        path = _picture(Path(folder) / "picture.npy", case.size)
        results: list[Streamed] = []
        start = perf_counter()
        held = process_peak(lambda: results.append(stream(model, path)))
        taken = perf_counter() - start
        off = _difference(model, path, results[0]) if case.size == case.plain else None
    return {**record, "stream": {"bands": asdict(Timing(taken, taken, 1))}, "process": held, "difference": off}


def _picture(path: Path, size: int) -> Path:
    """Noise, row after row, so that not even the bench holds it all."""
    pixels = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(size, size, 3))
    generator = np.random.default_rng(0)
    for start in range(0, size, 256):
        rows = min(256, size - start)
        pixels[start : start + rows] = generator.integers(0, 256, (rows, size, 3), dtype=np.uint8)
    pixels.flush()
    return path


@torch.no_grad()
def _difference(model: nn.Module, path: Path, streamed: Streamed) -> float:
    """The greatest difference to the plain pass's features, as a share of the greatest of these."""
    picture = picture_for(model, path)
    parameter = next(model.parameters())
    plain = model.forward_features(picture.read(0, picture.height).to(parameter.device))  # type: ignore[operator]
    return float((streamed.features.to(plain.device) - plain).abs().max() / plain.abs().max())
