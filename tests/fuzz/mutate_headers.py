"""Damage to binary headers that keeps their checksums and lengths: images, arrays, safetensors, tars."""

import json
import struct
import zlib
from random import Random
from typing import Any

from .mutate_text import json_value, odd_tree

HUGE = (0, 1, 255, 60_000, 65_535, 2**24, 2**31 - 1, 2**31, 2**32 - 1)
"""Numbers for the fields of binary headers."""


def png_header(data: bytes, rng: Random) -> bytes:
    """Another size or kind in the header of a PNG, with the checksum that fits."""
    fields = list(struct.unpack(">IIBBBBB", data[16:29]))
    place = rng.choice((0, 0, 1, 1, 2, 3, 4, 5, 6))
    fields[place] = rng.choice(HUGE) if place < 2 else rng.randrange(256)
    if rng.random() < 0.5:
        fields[:2] = rng.choice(((60_000, 60_000), (30_000, 30_000), (1, 2**31 - 1), (10**5, 10**4)))
    header = b"IHDR" + struct.pack(">IIBBBBB", *(value % 2**32 if at < 2 else value for at, value in enumerate(fields)))
    return data[:12] + header + struct.pack(">I", zlib.crc32(header)) + data[33:]


def tiff_header(data: bytes, rng: Random) -> bytes:
    """Another tag, type, count or value in an entry of the first directory of a TIFF."""
    order = "<" if data[:2] == b"II" else ">"
    start = struct.unpack(order + "I", data[4:8])[0]
    count = struct.unpack(order + "H", data[start : start + 2])[0] if start + 2 <= len(data) else 0
    if not count or start + 2 + 12 * count > len(data):
        return data[:4]
    at = start + 2 + 12 * rng.randrange(count)
    place, code = rng.choice(((0, "H"), (2, "H"), (4, "I"), (8, "I"), (8, "I"), (8, "H")))
    number = rng.choice((*HUGE, rng.randrange(40), rng.randrange(256, 350))) % 2 ** (8 * struct.calcsize(code))
    return data[: at + place] + struct.pack(order + code, number) + data[at + place + struct.calcsize(code) :]


def npy_header(data: bytes, rng: Random) -> bytes:
    """Another shape, type or order in the header of an array."""
    length = struct.unpack("<H", data[8:10])[0]
    shapes = (
        "()",
        "(0, 0, 3)",
        "(20, 28, 4)",
        "(-1, 28, 3)",
        "(10**6, 10**6, 3)",
        "(99999999, 99999999, 3)",
        "(20.5, 28, 3)",
        "'a'",
    )
    kinds = ("|O", "<f8", "<c16", "|S7", "<M8[s]", "nonsense", ">u2", "[('a', '<f4')]")
    order, shape, kind = rng.choice(("True", "None", "False")), rng.choice(shapes), rng.choice(kinds)
    header = f"{{'descr': '{kind}', 'fortran_order': {order}, 'shape': {shape}, }}".encode().ljust(length)
    return data[:8] + struct.pack("<H", len(header)) + header + data[10 + length :]


def safetensors_header(data: bytes, rng: Random) -> bytes:
    """Another value in the header of a safetensors file: types, shapes, offsets."""
    header, rest = _header(data)
    header = odd_tree(header, rng)
    return _safetensors(json.dumps(header).encode("utf-8", "surrogatepass"), rest)


def safetensors_metadata(data: bytes, rng: Random) -> bytes:
    """Another value in what this package writes into the header: model, arguments, classes, data, task."""
    header, rest = _header(data)
    meta = header["__metadata__"]
    changed = json_value(meta["inline"].encode(), rng) if rng.random() < 0.9 else b"null"
    meta["inline"] = changed.decode("utf-8", "replace")
    return _safetensors(json.dumps(header).encode(), rest)


def safetensors_numbers(data: bytes, rng: Random) -> bytes:
    """NaN, infinity or huge numbers among the weights."""
    header, rest = _header(data)
    found = bytearray(rest)
    number = struct.pack("<f", rng.choice((float("nan"), float("inf"), -float("inf"), 1e38)))
    for _ in range(rng.choice((1, 100, len(found) // 4))):
        place = 4 * rng.randrange(max(1, len(found) // 4))
        found[place : place + 4] = number
    return _safetensors(json.dumps(header).encode(), bytes(found))


def _header(data: bytes) -> tuple[Any, bytes]:
    end = 8 + struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:end]), data[end:]


def _safetensors(header: bytes, rest: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + rest


def tar_header(data: bytes, rng: Random) -> bytes:
    """Another size, type or name in a header of a tar, with the checksum that fits."""
    headers = [place for place in range(0, len(data), 512) if data[place + 257 : place + 262] == b"ustar"]
    start = rng.choice(headers)
    header = bytearray(data[start : start + 512])
    change = rng.randrange(3)
    if change == 0:
        header[124:136] = rng.choice(
            (b"77777777777\0", b"00000000000\0", b"-0000000001\0", b"\x80" + b"\xff" * 11, b"nonsense\0\0\0\0")
        )
    elif change == 1:
        header[156:157] = rng.choice(b"0123456LKxgS").to_bytes(1, "big")
    else:
        header[:100] = rng.choice(
            (b"../../up.png", b"/tmp/up.png", b"a\nb\x1b[31m/0.png", b"\xff\xfe/0.png", b"x" * 99, b"")
        ).ljust(100, b"\0")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return data[:start] + bytes(header) + data[start + 512 :]
