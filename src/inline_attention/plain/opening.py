"""Which pictures are meant by the words of a command: files, folders, the standard input."""

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
"""Of the files that are taken out of a folder: those that training takes, too."""


def opened_pictures(pictures: tuple[str, ...]) -> Iterator[tuple[str, IO[bytes]]]:
    """Every picture that the words stand for, opened."""
    for word in pictures:
        if word == "-":
            data = sys.stdin.buffer.read()
            if not data.strip():
                raise ValueError("nothing came on the standard input")
            listed = _paths(data)
            if listed is None:
                yield "standard input", io.BytesIO(data)
            else:
                yield from opened_pictures(tuple(listed))
        elif Path(word).is_dir():
            found = sorted(file for file in Path(word).rglob("*") if file.is_file() and file.suffix.lower() in ENDINGS)
            if not found:
                raise ValueError(f"{word} holds no pictures")
            yield from ((str(file), file.open("rb")) for file in found)
        elif Path(word).is_file():
            yield word, Path(word).open("rb")  # noqa: SIM115  closed by who reads it
        else:
            raise ValueError(f"there is no picture {word}")


def _paths(data: bytes) -> list[str] | None:
    """The lines, if this is a list of paths and not a picture."""
    try:
        lines = [line.strip() for line in data.decode().splitlines()]
    except UnicodeDecodeError:
        return None
    return [line for line in lines if line and line != "-"]
