"""Damage to files: each function takes the bytes of a valid file and a generator, and returns those of a malformed one."""

import re
import struct
from collections.abc import Callable
from random import Random

from . import mutate_headers as headers
from . import mutate_text as text

Mutator = Callable[[bytes, Random], bytes]

FOREIGN = (
    b"",
    b"\x00" * 4096,
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n20 20 scale showpage\n",
    b"\x89PNG\r\n\x1a\n",
    b"\x1f\x8b\x08\x00" + b"\xff" * 60,
    b"PK\x03\x04" + b"\xff" * 60,
    b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>",
    b"cos\nsystem\n(S'true'\ntR.",
    b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R.",
    "{}".encode("utf-16"),
    b"[" * 100_000,
    b"null",
    b'"\\ud800"',
)
"""Content of other kinds of files: of other formats, of other programs, of programs to run."""


def flip(data: bytes, rng: Random) -> bytes:
    """Other bytes in a few places, more of them near the start, where headers are."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 2, 8, 64))):
        if found:
            end = len(found) if rng.random() < 0.5 else min(64, len(found))
            found[rng.randrange(end)] = rng.randrange(256)
    return bytes(found)


def truncate(data: bytes, rng: Random) -> bytes:
    """The beginning only."""
    return data[: rng.randrange(len(data) + 1)]


def repeat(data: bytes, rng: Random) -> bytes:
    """A part twice, or many times."""
    start = rng.randrange(len(data) + 1)
    stop = min(len(data), start + rng.choice((1, 16, 500)))
    return data[:stop] + data[start:stop] * rng.choice((1, 50)) + data[stop:]


def cut_out(data: bytes, rng: Random) -> bytes:
    """Without a part in the middle."""
    start = rng.randrange(len(data) + 1)
    return data[:start] + data[start + rng.choice((1, 7, 300)) :]


def huge_field(data: bytes, rng: Random) -> bytes:
    """Another number in two, four or eight bytes of the first 128."""
    size, code = rng.choice(((2, "H"), (4, "I"), (8, "Q")))
    start = rng.randrange(max(1, min(128, len(data)) - size))
    number = rng.choice(headers.HUGE) % 2 ** (8 * size)
    return data[:start] + struct.pack(rng.choice("<>") + code, number) + data[start + size :]


def foreign(data: bytes, rng: Random) -> bytes:
    """The content of another kind of file."""
    return rng.choice(FOREIGN)


BYTES: tuple[Mutator, ...] = (flip, flip, truncate, truncate, repeat, cut_out, huge_field, huge_field, foreign)


BY_SUFFIX: dict[str, tuple[Mutator, ...]] = {
    ".png": (headers.png_header, headers.png_header),
    ".npy": (headers.npy_header,) * 5,
    **dict.fromkeys((".tif", ".tiff", ".svs"), (headers.tiff_header,) * 4),
    ".json": (text.json_value,) * 8 + (text.encoding,),
    **dict.fromkeys((".zarray", ".zattrs", ".zgroup"), (text.json_value,) * 8 + (text.encoding,)),
    ".jsonl": (text.lines, text.lines, text.encoding),
    ".txt": (text.lines, text.lines, text.encoding),
    ".toml": (text.toml_value,) * 12 + (text.encoding, text.encoding),
    ".safetensors": (headers.safetensors_metadata,) * 8
    + (headers.safetensors_header,) * 4
    + (headers.safetensors_numbers,) * 2,
    ".tar": (headers.tar_header,) * 5,
}


def mutate(data: bytes, suffix: str, rng: Random) -> tuple[str, bytes]:
    """Damage to a file of this kind: its name, and the new content. Binary damage happens to every kind."""
    own = BY_SUFFIX.get(suffix, ())
    if suffix == ".safetensors" and b'"inline"' not in data[:100_000]:
        own = tuple(one for one in own if one is not headers.safetensors_metadata)
    chosen = rng.choice(own) if own and rng.random() < 0.7 else rng.choice(BYTES)
    return re.sub("_", " ", chosen.__name__), chosen(data, rng)
