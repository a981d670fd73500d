"""Damage to text: JSON and TOML with values of the wrong type, count or size, and text that is none."""

import json
from random import Random
from typing import Any

ODD_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2, 0.5, -0.5, 10**9, 10**24, 1e308, 65_536, 2**63, float("nan"), float("inf"), "", "x", "7", "nan",
    "nowhere/..", "/dev/zero", "a\x00b", "a\nb\x1b[31mc", "\ud800", "x" * 5000, [], {}, [[]], [None], [0, 0], [-1, 5, 2],
    [1, 2, 3, 4, 5, 6, 7], ["a", "a", "a"], {"name": 1}, {"a": {"b": {}}},
)  # fmt: skip
"""Values of the wrong type, count or size, for JSON and metadata."""


def json_value(data: bytes, rng: Random) -> bytes:
    """One to three odd values in a JSON file, or one nested deeply."""
    tree = json.loads(data)
    for _ in range(rng.choice((1, 1, 1, 3))):
        tree = odd_tree(tree, rng)
    text = json.dumps(tree)
    if rng.random() < 0.04:
        text = text.replace("1", "[" * 5000 + "]" * 5000, 1)
    return text.encode("utf-8", "surrogatepass")


def odd_tree(tree: Any, rng: Random) -> Any:
    """A copy with one odd value, one entry less or more, or one key renamed, anywhere in it."""
    places = list(_places(tree))
    if not places or rng.random() < 0.03:
        return rng.choice(ODD_VALUES)
    holder, key = rng.choice(places)
    change = rng.random()
    if change < 0.6:
        holder[key] = rng.choice(ODD_VALUES)
    elif change < 0.75:
        del holder[key]
    elif isinstance(holder, list):
        holder.extend([holder[key]] * rng.choice((1, 90)))
    else:
        holder[rng.choice(("", "x", "a\nb", "\ud800", key.upper()))] = holder.pop(key)
    return tree


def _places(tree: Any) -> Any:
    """(container, key) of every value. Outer ones come as often as inner ones: of long lists only the first few count."""
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree[:4]) if isinstance(tree, list) else ()
    for key, value in list(entries):
        yield tree, key
        yield from _places(value)


TOML_VALUES = (
    "nan", "inf", "-inf", "-1", "0", "1", "3", "0.5", "1e300", "1000000000000000000000000", "65536", "9223372036854775808",
    "true", '""', '"x"', '"a\\u0000b"', '"a\\nb\\u001b[31m"', '"nowhere/.."', '"/dev/zero"', "[]", "{}", "[0, 0]", "[-1, 4]",
    "[1, 2, 3, 4, 5]", '["a", "a"]', "[nan]", "1979-05-27", "{a = 1}", "[" * 3000 + "]" * 3000, '"' + "x" * 5000 + '"',
    '"num_classes=3"', "'checkpoint_path=\"x\"'", '"rand-mX"', "'img_size=100000'", "'depth=0'", "'embed_dim=-3'",
    "'patch_size=0'", "'__import__(\"os\")'",
)  # fmt: skip
"""Values for any key of a recipe."""


def toml_value(data: bytes, rng: Random) -> bytes:
    """One to three odd values in a TOML file; a key twice, or unknown; a table that is none."""
    lines = data.decode().splitlines()
    for _ in range(rng.choice((1, 1, 1, 3))):
        places = [number for number, line in enumerate(lines) if "=" in line]
        place = rng.choice(places)
        key = lines[place].partition("=")[0].strip()
        change = rng.random()
        if change < 0.8:
            lines[place] = f"{key} = {rng.choice(TOML_VALUES)}"
        elif change < 0.87:
            lines[place] = f"{key}x = 1"
        elif change < 0.94:
            lines.insert(place, lines[place])
        else:
            lines.insert(rng.randrange(len(lines)), rng.choice(("[model]", "model = 3", "[[data]]", "\x07", "=", "[")))
    return "\n".join(lines).encode()


def encoding(data: bytes, rng: Random) -> bytes:
    """Text in another encoding, with a byte order mark, with NUL, or not in any."""
    text = data.decode("utf-8", "replace")
    kinds = (
        text.encode("utf-16"),
        b"\xef\xbb\xbf" + data,
        data[:9] + b"\x00" + data[9:],
        data + b"\xff\xfe\xe4",
        text.encode("utf-32"),
    )
    return rng.choice(kinds)


def lines(data: bytes, rng: Random) -> bytes:
    """Lines of a text twice, left out, or replaced."""
    found = data.split(b"\n")
    place = rng.randrange(len(found))
    found[place : place + 1] = rng.choice(
        ([], [found[place]] * 2, [b""], [b"\x1b[31m"], [b"x" * 5000], [b"\xff\xfe"], [b"a\x00b"])
    )
    return b"\n".join(found)
