"""The images that a user names: files, folders, the standard input."""

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
"""File name endings of images, in lower case; training takes the same ones."""


def images_below(folder: Path) -> list[Path]:
    """All image files below a folder, sorted."""
    return sorted(file for file in folder.rglob("*") if file.is_file() and file.suffix.lower() in IMAGE_SUFFIXES)


def open_images(names: tuple[str, ...]) -> Iterator[tuple[str, IO[bytes]]]:
    """Every image that the names stand for, with its own name, opened. The reader closes it.

    Args:
        names: files, folders, or '-' for the standard input: an image, or a list of paths, one a line.
    """
    for name in names:
        if name == "-":
            data = sys.stdin.buffer.read()
            if not data.strip():
                raise ValueError("nothing came on the standard input")
            listed = _paths(data)
            if listed is None:
                yield "standard input", io.BytesIO(data)
            else:
                yield from open_images(tuple(listed))
        elif Path(name).is_dir():
            found = images_below(Path(name))
            if not found:
                raise ValueError(f"{name} holds no images")
            yield from ((str(file), file.open("rb")) for file in found)
        elif Path(name).is_file():
            yield name, Path(name).open("rb")  # noqa: SIM115  the reader closes it
        else:
            raise ValueError(f"there is no image {name}")


def _paths(data: bytes) -> list[str] | None:
    """The lines, if this is a list of paths and not an image."""
    try:
        lines = [line.strip() for line in data.decode().splitlines()]
    except UnicodeDecodeError:
        return None
    return [line for line in lines if line and line != "-"]
