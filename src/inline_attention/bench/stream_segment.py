"""`inline bench stream --segment`: a large image file to a map in a file, beside tiles through the softmax twin.

InLine takes the image whole, by rows: from a JPEG-compressed pyramidal TIFF and, for what decoding costs, from a memory-mapped
array. The twin takes what people do today: overlapping tiles (`tiles.py`). Each is done once, since large images take minutes;
of many tiles some are timed.

Seams: pixels whose label depends on where the tiles begin. For InLine: on how many rows are in a band.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil, nan
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from ..large.image_reader import open_image
from ..large.large_image import LargeImage
from ..large.map_formats import write_map
from ..large.open_file import open_image_file
from ..large.segment import stream_segment
from ..large.segmented_map import Place, collect_map
from .measure import Timing, process_peak_memory
from .report import GREY, INLINE, SOFTMAX, number
from .result import Record, seconds
from .scene import write_scene, write_slide
from .tiles import tile_corners, tile_labels, tiled_labels

MOST_TILES = 16
"""Tiles of the twin that are timed; the time of all follows from their number."""
BANDS = (8192, 3000)
"""Tokens of a band, for the seams."""


@dataclass(frozen=True)
class StreamSegmentCase:
    """A square image, in fp32, random weights."""

    model: str
    head: str
    size: int
    tile: int = 1024
    """Side of the twin's tiles."""
    overlap: float = 0.25
    """Share of a tile's side that the next one overlaps."""
    seam_side: int = 2048
    """Side of the image on which seams are counted, at most `size`."""
    classes: int = 5
    width: int = 256
    """Channels of the decoder."""


STREAM_SEGMENT_CASES = [StreamSegmentCase("inline_pvt_tiny", "semantic_fpn", size) for size in (4096, 16_384)]
QUICK_STREAM_SEGMENT_CASES = [
    StreamSegmentCase("inline_pvt_nano", "semantic_fpn", size, tile=128, seam_side=384, width=32) for size in (384, 768)
]


def measure_stream_segment(case: StreamSegmentCase, seconds: float, device: torch.device) -> Record:
    """Seconds and the process's peak memory of one pass of each, the share of waiting, and seams."""
    ours, twin = _segmenter(case, "inline").to(device), _segmenter(case, "softmax").to(device)
    record: Record = {"once": {}, "memory": {}, "waiting": {}}

    def passed(name: str, call: Any) -> Any:
        results: list[Any] = []
        start = perf_counter()
        record["memory"][name] = process_peak_memory(lambda: results.append(call()))
        taken = perf_counter() - start
        record["once"][name] = asdict(Timing(taken, taken, 1))
        return results[0]

    with TemporaryDirectory(prefix="inline-bench-") as temporary:
        folder = Path(temporary)
        array = write_scene(folder / "image.npy", case.size)
        slide = write_slide(folder / "image.tif", array)
        for name, path in (("tiff", slide), ("npy", folder / "image.npy")):
            waited = passed(name, lambda path=path: _to_file(ours, path, folder))
            record["waiting"][name] = waited / record["once"][name]["best"]
        corners = list(tile_corners(case.size, case.tile, case.overlap))
        chosen = corners[:: ceil(len(corners) / MOST_TILES)]
        passed("tiles", lambda array=array: [tile_labels(twin, array, corner, case.tile) for corner in chosen])
        taken = record["once"]["tiles"]["best"] * len(corners) / len(chosen)
        record["once"]["tiles"] = asdict(Timing(taken, taken, 1))
        record |= {"tiles": len(corners), "tiles_timed": len(chosen)}
        part = np.ascontiguousarray(array[: case.seam_side, : case.seam_side])
        bands = [_labels(ours, part, tokens) for tokens in BANDS]
        tilings = [tiled_labels(twin, part, case.tile, case.overlap, shift) for shift in (0, case.tile // 3)]
        record["seams"] = {"bands": _changed(*bands), "tiles": _changed(*tilings)}
        del array
    return record


def _segmenter(case: StreamSegmentCase, mixer: str) -> Any:
    from ..dense.pyramid import make_pyramid
    from ..dense.segmenter import Segmenter  # needs another package, which other benches do without

    pyramid = make_pyramid(case.model, {"img_size": case.tile, "mixer": mixer})
    return Segmenter(pyramid, case.head, case.classes, width=case.width).eval()


class _TimedImage(LargeImage):
    """Measures how long whoever computes waits for pixels."""

    waited = 0.0

    def read(self, start: int, stop: int, valid: Tensor | None = None) -> Tensor:
        before = perf_counter()
        try:
            return super().read(start, stop, valid)
        finally:
            self.waited += perf_counter() - before


def _to_file(segmenter: Any, path: Path, folder: Path) -> float:
    """Segment a file to a COG; the seconds of waiting for pixels."""
    image = _TimedImage(open_image_file(path))
    found = stream_segment(segmenter, open_image(image), folder=folder)
    result = collect_map(found, [str(number) for number in range(found.classes)], Place.of(image))
    write_map(folder / f"{path.stem}-labels.tif", result, "cog")
    image.close()
    return image.waited


def _labels(segmenter: Any, pixels: NDArray[np.uint8], tokens: int) -> NDArray[Any]:
    return np.concatenate([rows.labels for rows in stream_segment(segmenter, pixels, tokens=tokens).labels()])


def _changed(one: NDArray[Any], other: NDArray[Any]) -> int:
    return int((one != other).sum())


COLUMNS = ["model", "size", "way", "s", "GB", "waiting %", "seams", "of pixels"]
LEGEND = (
    "One square image to a map of labels: seconds (s) and peak memory of the whole process, torch included (GB). InLine takes "
    "it whole, in bands: from a JPEG-compressed pyramidal TIFF to a COG, and from a memory-mapped array; waiting: the share of "
    "the time that it waits for pixels. Tiles: the softmax twin, whose keys are reduced, on overlapping tiles, unwritten; of "
    "many tiles some are timed. Seams: pixels whose label changes with the height of the bands, or with where the tiles begin, "
    "of the pixels of a smaller image. Random weights."
)
WAYS = {"tiff": "InLine, TIFF to COG", "npy": "InLine, array to COG", "tiles": "softmax, tiles"}


def rows(records: Sequence[Record]) -> list[list[str]]:
    """The table: one row per way."""
    return [
        [
            record["model"],
            f"{record['size']}",
            title,
            number(seconds(record, "once", way), 1),
            number((record["memory"][way] or nan) / 1e9),
            number(100 * record["waiting"].get(way, nan), 1),
            "-" if way == "npy" else f"{record['seams']['tiles' if way == 'tiles' else 'bands']:,}",
            "-" if way == "npy" else f"{min(record['seam_side'], record['size']) ** 2:,}",
        ]
        for record in records
        for way, title in WAYS.items()
    ]


def sentences(records: Sequence[Record]) -> list[str]:
    """What decoding costs, and what tiles cost."""
    return [
        f"{record['model']} at {record['size']}: from the TIFF {over(record, 'npy'):.2f} times the time from the array; "
        f"{over(record, 'tiles'):.2f} times that of tiles"
        for record in records
    ]


def over(record: Record, way: str) -> float:
    """The time from the TIFF over that of another way."""
    return seconds(record, "once", "tiff") / seconds(record, "once", way)


def draw(records: Sequence[Record]) -> Figure:
    """Seconds and memory of each way, by size."""
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    sizes = [record["size"] for record in records]
    for place, (way, colour) in enumerate(zip(WAYS, (INLINE, GREY, SOFTMAX), strict=True)):
        at = [number + 0.27 * (place - 1) for number in range(len(records))]
        left.bar(at, [seconds(record, "once", way) for record in records], 0.25, color=colour, label=WAYS[way])
        right.bar(at, [(record["memory"][way] or nan) / 1e9 for record in records], 0.25, color=colour)
    for axis, label in ((left, "time per image, s"), (right, "memory of the process, GB")):
        axis.set_xticks(range(len(records)), [f"{size:,}" for size in sizes])
        axis.set(xlabel="side of the image, pixels", ylabel=label)
    left.legend(fontsize=9)
    return figure
