"""`inline predict --task segment --stream`: many large images to maps, each once, going on where a run was stopped."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ..lite.text import printable
from .arguments import prepare_folder
from .file_batch import BatchFile, Shard, explain_failure, list_files, of_shard, parse_shard
from .main import warn
from .map_records import MAP_ENDINGS, VERSION, MapPaths, file_hash, file_state, finished
from .map_report import print_summary, write_summary
from .progress import BatchProgress
from .segment_file import MapMaker

if TYPE_CHECKING:
    import torch

    from .predict import Predict

Jobs = list[tuple[BatchFile, MapPaths]]


def predict_maps(options: "Predict", weights: str, device: "torch.device") -> None:
    """Segment the images of this process into maps, and print what was found. Images that failed raise at the end."""
    shard, out = parse_shard(options.maps.shard), options.out or Path("predictions")
    files = list_files(options.images, out)
    single = len(files) == 1 and _is_map(out)
    _check(options, out, len(files), single=single)
    mine = [(file, _paths(file, options, out, single=single)) for file in of_shard(files, shard)]
    _refuse_overwriting(mine, {file.path.resolve() for file in files})
    maker = _make_maker(options, weights, device)
    prepare_folder(out.parent if single else out)
    with _stopped_like_ctrl_c(), _told_how_to_go_on(single=len(mine) == 1):
        facts, failed = _make_all(maker, mine, as_json=options.json, named=len(mine) > 1 or options.skip_bad)
    summary = None if single else _summary_path(out, shard)
    if summary is not None:
        write_summary(summary, facts, failed)
    if not options.json:
        print_summary(facts, failed, summary)
    if failed and not options.skip_bad:
        last = failed[-1]["error"]
        raise ValueError(last if len(mine) == 1 else f"{len(failed)} of {len(mine)} images failed, named above")


def _check(options: "Predict", out: Path, count: int, *, single: bool) -> None:
    """Raise for options that do not fit together."""
    for name in ("threshold", "inference", "side"):
        if getattr(options, name) is not None:
            raise ValueError(f"--{name} is not for --stream, which takes images whole and at their own size: leave it out")
    if options.ema:
        raise ValueError("--ema is for models that classify: leave it out")
    if not single and _is_map(out) and not out.is_dir():
        raise ValueError(f"--out {out} is one file, and there are {count} images: give a folder")
    zarr = options.maps.out_format == "ome-zarr" or (
        options.maps.out_format is None and single and out.suffix.lower() == ".zarr"
    )
    if options.maps.probabilities == "float16" and not zarr:
        raise ValueError("--probabilities float16 is for Zarr alone: add --out-format ome-zarr, or take uint8 or float32")
    polygons = options.maps.polygons
    if polygons is not None and not single and polygons.suffix:
        raise ValueError(f"--polygons {polygons} is one file, and --out is a folder: give a folder")


def _is_map(path: Path) -> bool:
    return path.name.lower().endswith(MAP_ENDINGS)


def _paths(file: BatchFile, options: "Predict", out: Path, *, single: bool) -> MapPaths:
    """Where the results of an image go."""
    polygons = options.maps.polygons
    if not single:
        name = file.result.with_name(f"{file.result.name}.geojson")
        return MapPaths(out / file.result, None, None if polygons is None else polygons / name)
    ending = next(ending for ending in MAP_ENDINGS if out.name.lower().endswith(ending))
    return MapPaths(out.with_name(out.name[: -len(ending)]), out, polygons)


def _refuse_overwriting(jobs: Jobs, images: set[Path]) -> None:
    for file, paths in jobs:
        for path in paths.possible():
            if path.resolve() in images:
                raise ValueError(f"{path} would be written over an image: choose another --out than for {file.path}")


def _summary_path(out: Path, shard: Shard) -> Path:
    return out / ("summary.json" if shard.shards == 1 else f"summary-{shard.number}-of-{shard.shards}.json")


def _make_maker(options: "Predict", weights: str, device: "torch.device") -> MapMaker:
    """Load the model. One that cannot be streamed is refused before any image is opened."""
    from ..dense.segmenter import Segmenter
    from ..large.stages import ways_through
    from ..training.dense_task import load_dense
    from ..training.model_factory import weights_path

    settings = {
        "version": VERSION,
        "model": file_hash(weights_path(weights)),
        **asdict(options.large),
        "mask_file": file_state(Path(mask)) if (mask := options.large.mask) and Path(mask).exists() else None,
        "format": options.maps.out_format,
        "probabilities": options.maps.probabilities,
    }
    dense = load_dense(weights)
    segmenter = dense.model
    assert isinstance(segmenter, Segmenter)
    ways_through(segmenter.backbone.bare(), "--stream")
    segmenter.to(_own_gpu(device))
    return MapMaker(segmenter, dense, options.large, options.maps, options.folder, settings)


def _own_gpu(device: "torch.device") -> "torch.device":
    """Of several GPUs, the one that the launcher gave to this process."""
    import torch

    local = os.environ.get("LOCAL_RANK", "")
    return torch.device("cuda", int(local)) if str(device) == "cuda" and local.isdecimal() else device


def _make_all(maker: MapMaker, jobs: Jobs, *, as_json: bool, named: bool) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """The records of all images that are done, now or before; and those that failed, with their errors, `named` at once."""
    facts: list[dict[str, Any]] = []
    failed: list[dict[str, str]] = []
    with BatchProgress(len(jobs), Console(stderr=True), "band") as progress:
        for file, paths in jobs:
            known = finished(paths, file.path, maker.settings)
            if known is not None:
                known["done_before"] = True
                progress.skip()
            else:
                try:
                    known = maker.make(file.path, paths, progress.begin(printable(file.path.name)))
                except Exception as error:  # the other images are made all the same
                    said = explain_failure(file.path, error)
                    failed.append({"image": str(file.path), "error": said})
                    progress.end()
                    if as_json:
                        print(json.dumps(failed[-1]), flush=True)
                    if named:
                        warn(said)
                    continue
                progress.end()
            facts.append(known)
            if as_json:
                print(json.dumps(known), flush=True)
    return facts, failed


@contextmanager
def _told_how_to_go_on(*, single: bool) -> Iterator[None]:
    """What a user who stops the work can do next. Images that are done are kept; the one at hand begins anew."""
    try:
        yield
    except KeyboardInterrupt:
        begins = "the same command begins this image again"
        raise KeyboardInterrupt(begins if single else "the same command goes on after the images that are done") from None


@contextmanager
def _stopped_like_ctrl_c() -> Iterator[None]:
    """SIGTERM, which batch systems send at the end of the time, removes what is half written, as Ctrl-C does."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # only there can signals be handled
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
