"""The files of a batch: which images the arguments name, which of them this process has, and how their results are called."""

import os
import sys
from collections import Counter
from collections.abc import Sequence
from glob import glob, has_magic
from pathlib import Path
from typing import NamedTuple

from ..lite.decode import first_line
from ..lite.image_paths import IMAGE_SUFFIXES

LARGE_SUFFIXES = (
    ".bif", ".dcm", ".jp2", ".mrxs", ".ndpi", ".npy", ".scn", ".svs", ".svslide", ".szi", ".tf8", ".vms", ".vmu", ".zarr",
)  # fmt: skip
"""Endings of files in a folder that are taken for images, besides those of small images."""
EXPECTED = (ValueError, OSError, FloatingPointError)
"""Errors that say in their own words what is wrong; of others the kind is told too."""
LAUNCHERS = ("RANK", "WORLD_SIZE")
"""Variables in which `torchrun` and `accelerate launch` tell a process its number, and how many there are."""


class BatchFile(NamedTuple):
    """An image, and the name of its results: a path without an ending, below the folder of all results."""

    path: Path
    result: Path


class Shard(NamedTuple):
    """Every n-th file, from one on."""

    number: int
    shards: int


def list_files(names: Sequence[str], out: Path) -> list[BatchFile]:
    """The images that the arguments stand for, each once, in an order that is the same on all machines.

    Args:
        names: files, folders, patterns such as 'slides/*.svs', or '-' for a list of these on the standard input, one a line.
        out: where results go: what lies there is no image.
    """
    return _named_apart(find_files(names, out))


def find_files(names: Sequence[str], out: Path | None = None) -> list[BatchFile]:
    """`list_files`, for images that have no files of results if there is no folder for these."""
    found: dict[Path, BatchFile] = {}
    for name in _expanded(names):
        path = Path(name)
        if is_image_folder(path) or path.is_file():
            found.setdefault(path.resolve(), BatchFile(path, Path(path.name)))
        elif path.is_dir():
            inside = _images_below(path)
            if out is not None:
                _refuse_results_among_images(path, out)
                inside = [file for file in inside if out.resolve() not in file.resolve().parents]
            if not inside:
                raise ValueError(f"{path} holds no images")
            for file in inside:
                found.setdefault(file.resolve(), BatchFile(file, file.relative_to(path)))
        else:
            raise ValueError(f"there is no image {name}")
    return list(found.values())


def _expanded(names: Sequence[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        if name == "-":
            lines = [line.strip() for line in sys.stdin]
            found += _expanded([line for line in lines if line and line != "-"])
        elif has_magic(name) and not Path(name).exists():
            matches = sorted(glob(name, recursive=True))  # noqa: PTH207  the pattern may be absolute
            if not matches:
                raise ValueError(f"no file fits the pattern {name}")
            found += matches
        else:
            found.append(name)
    return found


def _refuse_results_among_images(folder: Path, out: Path) -> None:
    if out.resolve() == folder.resolve():
        raise ValueError(f"results in {out} would lie among the images, and be taken for images later: choose another --out")


def _images_below(folder: Path) -> list[Path]:
    """All images below a folder, sorted. A Zarr is a folder: it is an image, and what is in it is not."""
    found: list[Path] = []
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith("."):
            continue
        image = entry.suffix.lower() in (*IMAGE_SUFFIXES, *LARGE_SUFFIXES)
        if entry.is_dir():
            found += [entry] if is_image_folder(entry) else _images_below(entry)
        elif image:
            found.append(entry)
    return found


def is_image_folder(path: Path) -> bool:
    """Whether a folder is a Zarr."""
    return path.is_dir() and any((path / name).is_file() for name in ("zarr.json", ".zgroup", ".zarray"))


def _named_apart(files: list[BatchFile]) -> list[BatchFile]:
    """Results are named like the image without its ending; with it where two images would get one name."""
    short = [_without_ending(file.result) for file in files]
    taken = Counter(short)
    named = [BatchFile(file.path, name if taken[name] == 1 else file.result) for file, name in zip(files, short, strict=True)]
    by_result: dict[Path, Path] = {}
    for file in named:
        if file.result in by_result:
            raise ValueError(
                f"{by_result[file.result]} and {file.path} would have results of one name: give each its own --out"
            )
        by_result[file.result] = file.path
    return named


def _without_ending(path: Path) -> Path:
    """Without `.svs`, or `.ome.tif`."""
    short = path.with_suffix("")
    return short.with_suffix("") if short.suffix.lower() == ".ome" else short


def explain_failure(path: Path, error: Exception) -> str:
    """One line about an image that failed, with its name. A missing library is raised: it is not the image's fault."""
    if isinstance(error, ModuleNotFoundError):
        raise error
    kind, said = type(error).__name__, first_line(error)
    if isinstance(error, EXPECTED):
        said = str(error) or kind
    elif said != kind:
        said = f"{kind}: {said}"
    return said if str(path) in said else f"{path}: {said}"


def parse_shard(text: str | None) -> Shard:
    """Which files this process has, by `--shard i/n` and by the launcher: each file is in one shard.

    `i` may count from 0 or from 1, as the tasks of a SLURM array may.
    """
    shard = Shard(0, 1)
    if text is not None:
        index, slash, count = text.partition("/")
        if not (slash and index.isdecimal() and count.isdecimal()) or int(count) < 1 or int(index) > int(count):
            raise ValueError(f"--shard is a number and how many there are, such as 0/4 to 3/4 or 1/4 to 4/4, got {text!r}")
        shard = Shard(int(index) % int(count), int(count))
    rank, world = (os.environ.get(name, "") for name in LAUNCHERS)
    if rank.isdecimal() and world.isdecimal() and int(world) > 1:
        shard = Shard(shard.number * int(world) + int(rank), shard.shards * int(world))
    return shard


def of_shard(files: Sequence[BatchFile], shard: Shard) -> list[BatchFile]:
    """The files of one shard."""
    return list(files[shard.number :: shard.shards])
