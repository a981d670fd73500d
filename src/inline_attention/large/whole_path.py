"""Files and folders that are whole or not there: written under another name, and renamed when they are complete."""

import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ABANDONED_SECONDS = 3600
"""After so long without a change, what another machine was writing is taken to be abandoned."""


@contextmanager
def whole_path(path: Path) -> Iterator[Path]:
    """A path beside `path`, for a file or folder that replaces it when it is complete. After an error nothing of it is left."""
    with temporary_path(path) as temporary:
        try:
            yield temporary
            _replace(temporary, path)
        except OSError as error:
            raise OSError(f"cannot write {path}: {error.strerror or error}; what was there before is untouched") from error


@contextmanager
def temporary_path(path: Path) -> Iterator[Path]:
    """A path beside `path`, and what is there removed in the end. What a killed process left of the same is removed, too."""
    _remove_abandoned(path)
    temporary = path.with_name(f".{path.name}.{_host()}.{os.getpid()}.tmp")
    try:
        yield temporary
    finally:
        for left in _with_prefix(temporary):  # libraries name their own temporary files after the one that they write
            _remove(left)


def _replace(temporary: Path, path: Path) -> None:
    """Rename. A folder cannot take the place of one that is not empty: that one is moved aside first."""
    if path.is_dir() and not path.is_symlink():
        path.rename(temporary.with_name(f"{temporary.name}.old"))
    temporary.replace(path)


def _remove_abandoned(path: Path) -> None:
    prefix = path.with_name(f".{path.name}.")
    for left in _with_prefix(prefix):
        host, _, process = left.name.removeprefix(prefix.name).partition(".tmp")[0].rpartition(".")
        if ".tmp" not in left.name or not process.isdecimal():
            continue
        old = time.time() - left.stat().st_mtime > ABANDONED_SECONDS
        if not _runs(int(process)) if host == _host() else old:
            _remove(left)


def _with_prefix(path: Path) -> list[Path]:
    """What lies in the folder of a path and has a name that begins like it."""
    return [other for other in path.parent.iterdir() if other.name.startswith(path.name)] if path.parent.is_dir() else []


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _runs(process: int) -> bool:
    """Whether a process of this machine runs."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it runs as another user
        return True
    return True


def _host() -> str:
    return socket.gethostname().replace("/", "-")
