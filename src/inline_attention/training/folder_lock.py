"""A lock on a folder: one process at a time writes into it. The system releases it when the process ends, however it ends."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

LOCK = ".lock"
"""Name of the file in the folder; it says who holds the lock."""
LOCKED_BYTE = 2**30
"""The locked byte on Windows, beyond the text, which others may read."""
_held: set[int] = set()
"""File descriptors of the locks of this process."""


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which is made if it is not there; a ValueError says who holds it already.

    Where the file system has no locks, as on some network drives, nothing is locked.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK
    handle = _take(path)
    try:
        yield
    finally:
        if handle is not None:
            if os.name == "posix":  # elsewhere an open file cannot be removed
                path.unlink(missing_ok=True)
            _close(handle)


def _take(path: Path) -> int | None:
    """An open file that holds the lock; None where there are no locks."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(handle)
        except (BlockingIOError, PermissionError) as error:
            os.close(handle)
            raise ValueError(f"{path.parent} is in use{_holder(path)}: wait for it, or choose another folder") from error
        except OSError:
            os.close(handle)
            path.unlink(missing_ok=True)
            return None
        if _is_at(handle, path):
            break
        os.close(handle)  # whoever held the lock removed the file between our opening and locking it
    _held.add(handle)
    text = {"pid": os.getpid(), "host": socket.gethostname(), "since": datetime.now().astimezone().isoformat(" ", "seconds")}
    os.ftruncate(handle, 0)
    os.write(handle, json.dumps(text).encode())
    return handle


def _lock(handle: int) -> None:
    """Lock an open file, or raise an OSError at once."""
    if os.name == "posix":
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    else:
        import msvcrt

        os.lseek(handle, LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        os.lseek(handle, 0, os.SEEK_SET)


def _is_at(handle: int, path: Path) -> bool:
    """Whether the open file is still the one of that name."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(handle), path.stat())
    return False


def _holder(path: Path) -> str:
    """Who holds the lock, by the text in its file."""
    try:
        found = json.loads(path.read_text())
        return f" by process {found['pid']} on {found['host']} since {found['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return " by another process"


def _close(handle: int) -> None:
    _held.discard(handle)
    os.close(handle)


def _close_in_child() -> None:
    """A forked process, such as one that reads images, must not keep the lock after its parent was killed."""
    for handle in list(_held):
        _close(handle)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
