"""Checkpoints that are complete or absent: written under a temporary name, synced to the disk, renamed.

A checkpoint is a folder `step-00000120` with `model.safetensors`, what is needed to resume, and `state.json`, which also
holds the size and the hash of every other file.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from ..lite.decode import first_line

KEPT = 2
"""Checkpoints that are kept: the last, and the one before it."""
STATE = "state.json"


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint."""

    path: Path
    state: dict[str, Any]

    @property
    def step(self) -> int:
        """Number of steps done."""
        return int(self.state["step"])

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Tensors of a file: 'model', 'ema' or 'optimizer'."""
        return load((self.path / f"{name}.safetensors").read_bytes())


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that it is either new or unchanged, even if the machine stops in between."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        _write(temporary, data)
        temporary.replace(path)
        _sync(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OSError(f"cannot write {path}: {error.strerror}; what was there before is untouched") from error


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """Sync a folder's entries to the disk, where the system can."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def to_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any] | None = None) -> bytes:
    """A safetensors file. All metadata is JSON in one entry, `inline`: safetensors writes several entries in any order."""
    entries = None if metadata is None else {"inline": json.dumps(metadata, sort_keys=True)}
    return save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, entries)


def save_checkpoint(folder: Path, state: dict[str, Any], parts: Mapping[str, bytes]) -> Path:
    """Write a checkpoint; only when it is on the disk, remove those before the last two.

    Args:
        folder: where checkpoints are.
        state: all that is not tensors; 'step' is the number of steps done.
        parts: the files' contents, by 'model', 'ema', 'optimizer'.
    """
    folder.mkdir(exist_ok=True)
    final = folder / f"step-{state['step']:08d}"
    temporary = folder / f".{final.name}.{os.getpid()}.tmp"
    try:
        temporary.mkdir()
        for name, data in parts.items():
            _write(temporary / f"{name}.safetensors", data)
        hashes = {f"{name}.safetensors": [len(data), _hash(data)] for name, data in parts.items()}
        _write(temporary / STATE, json.dumps({**state, "files": hashes}).encode())
        _sync(temporary)
        if final.exists():  # a broken one of the same step
            shutil.rmtree(final)
        temporary.rename(final)
        _sync(folder)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise OSError(f"cannot write {final}: {error.strerror}; the checkpoints before it are untouched") from error
    _prune(folder)
    return final


def _prune(folder: Path) -> None:
    for old in sorted(folder.glob("step-*"))[:-KEPT]:
        shutil.rmtree(old)
    for left in folder.glob(".step-*.tmp"):  # of a process that was killed while writing
        shutil.rmtree(left, ignore_errors=True)


def _hash(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()


def last_checkpoint(folder: Path, message: Callable[[str], None]) -> Checkpoint | None:
    """The newest complete checkpoint. Broken ones are renamed, with a message to `message`."""
    for path in sorted(folder.glob("step-*"), reverse=True):
        try:
            return _read(path)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            message(f"{path} is broken ({first_line(error)}); looking for the one before it")
            with suppress(OSError):  # else the next one of this step would replace it, and it could not be inspected
                path.rename(path.with_name(f"broken-{path.name}"))
    return None


def _read(path: Path) -> Checkpoint:
    state = json.loads((path / STATE).read_text())
    for name, (size, digest) in state["files"].items():
        data = (path / name).read_bytes()
        if len(data) != size:
            raise ValueError(f"{name} has {len(data)} bytes instead of {size}")
        if _hash(data) != digest:
            raise ValueError(f"{name} has other contents than were written")
    return Checkpoint(path, state)
