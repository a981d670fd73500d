"""Checkpoints that are whole or not there: written under another name, brought to the disk, renamed.

A checkpoint is a folder `step-00000120` with `model.safetensors`, what is needed to go on, and `state.json`, which also holds
the size and the hash of every other file.
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

from ..plain.wording import first_line

KEPT = 2
"""Checkpoints to go on from: the last, and the one before it."""
STATE = "state.json"


@dataclass(frozen=True)
class Checkpoint:
    """One that was found whole."""

    path: Path
    state: dict[str, Any]

    @property
    def step(self) -> int:
        """Steps that were done."""
        return int(self.state["step"])

    def tensors(self, name: str) -> dict[str, Tensor]:
        """What a file holds: 'model', 'ema' or 'optimizer'."""
        return load((self.path / f"{name}.safetensors").read_bytes())


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole or as it was, even if the machine stops in between."""
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
    """Bring a folder's entries to the disk, where the system can."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def to_bytes(tensors: Mapping[str, Tensor], facts: Mapping[str, Any] | None = None) -> bytes:
    """A safetensors file. What it says of itself is one entry, `inline`, in JSON: several come in any order."""
    metadata = None if facts is None else {"inline": json.dumps(facts, sort_keys=True)}
    return save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, metadata)


def save_checkpoint(folder: Path, state: dict[str, Any], parts: Mapping[str, bytes]) -> Path:
    """Write a checkpoint; only when it is safe, take away those that it makes superfluous.

    Args:
        folder: where checkpoints are.
        state: what is not tensors; 'step' is the number of steps done.
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


def last_checkpoint(folder: Path, say: Callable[[str], None]) -> Checkpoint | None:
    """The newest that is whole. Broken ones are told of."""
    for path in sorted(folder.glob("step-*"), reverse=True):
        try:
            return _read(path)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            say(f"{path} is broken ({first_line(error)}); looking for the one before it")
            with suppress(OSError):  # out of the way of those that are good
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
