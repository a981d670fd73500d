"""Downloads a file whole or not at all: resumed where it broke off, checked, and with its sha256 kept beside it."""

import hashlib
import os
import time
import urllib.request
import warnings
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from zipfile import is_zipfile

from filelock import FileLock
from tqdm import tqdm

ATTEMPTS = 3
"""How often a download that breaks off is resumed."""
TIMEOUT = 30
"""Seconds without an answer of the server."""
CHUNK = 2**20
RANGE_REFUSED = 416
"""A server's answer to a request for bytes behind a file's end."""


def download_once(url: str, path: Path, label: str, check: Callable[[Path], None]) -> None:
    """Download a file, unless it is there. Processes that ask at once wait for one download.

    Args:
        url: its address.
        path: its name once it is complete and checked; warns if its content is not what was downloaded.
        label: of the progress bar.
        check: raises a ValueError if a file is not what it should be.
    """
    if not path.is_file():  # a cache that is only read needs no lock
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            if not path.is_file():
                _download(url, path, label, check)
    if message := changed(path):
        warnings.warn(message, stacklevel=3)


def changed(path: Path) -> str:
    """One line if a file is no longer the one that was downloaded; else nothing."""
    recorded, now = recorded_hash(path), _hash(path)
    same = recorded in (None, now)
    return "" if same else f"{path} has changed since it was downloaded: its sha256 was {recorded} and is {now}"


def recorded_hash(path: Path) -> str | None:
    """The sha256 of the file when it was downloaded; None if it was not."""
    try:
        return hash_path(path).read_text().split()[0]
    except (OSError, IndexError, UnicodeDecodeError):
        return None


def hash_path(path: Path) -> Path:
    """The file that keeps the sha256 of `path`, as `sha256sum` writes it."""
    return path.with_name(f"{path.name}.sha256")


def part_path(path: Path) -> Path:
    """The name of the file while it is being downloaded."""
    return path.with_name(f"{path.name}.part")


def _download(url: str, path: Path, label: str, check: Callable[[Path], None]) -> None:
    part = part_path(path)
    resumed = part.is_file()  # of a download that was killed
    try:
        _fill(url, part, label)
        check(part)
    except ValueError:
        part.unlink(missing_ok=True)
        if not resumed:
            raise
        _download(url, path, label, check)  # the two halves may be of two files: once more from the beginning
        return
    before, now = recorded_hash(path), _hash(part)
    if before not in (None, now):
        warnings.warn(f"{url} gives another file than before: its sha256 was {before} and is {now}", stacklevel=5)
    hash_path(path).write_text(f"{now}  {path.name}\n")
    part.replace(path)


def _fill(url: str, part: Path, label: str) -> None:
    """Download into `part`, from where it ends if the server can do that; a connection that breaks is tried again."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            if _request(url, part, label):
                return
        except HTTPError as error:
            error.close()
            if error.code == RANGE_REFUSED and part.is_file():  # it ends where the file does, or is of another file
                part.unlink()
                continue
            raise ConnectionError(str(error)) from None
        except (OSError, HTTPException) as error:
            if attempt == ATTEMPTS:
                raise ConnectionError(str(getattr(error, "reason", "") or error) or type(error).__name__) from error
        time.sleep(attempt)
    raise ConnectionError(f"the connection ended too early, {ATTEMPTS} times")


def _request(url: str, part: Path, label: str) -> bool:
    """One request. Whether the file is complete, as far as can be told."""
    have = part.stat().st_size if part.is_file() else 0
    headers = {"User-Agent": "inline-attention", **({"Range": f"bytes={have}-"} if have else {})}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT) as answer:
        resumed = answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        have = have if resumed else 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else None
        bar = tqdm(total=total, initial=have, desc=label, unit="B", unit_scale=True, unit_divisor=1024, leave=False)
        with bar, part.open("ab" if resumed else "wb") as file:
            while chunk := answer.read(CHUNK):
                file.write(chunk)
                bar.update(len(chunk))
            file.flush()
            os.fsync(file.fileno())
    if total is not None:
        return part.stat().st_size == total
    with part.open("rb") as file:  # an archive, as torch's files are, shows by its end whether it is whole
        return file.read(2) != b"PK" or is_zipfile(part)


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
