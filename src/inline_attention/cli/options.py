"""Options that no command has: which one may have been meant."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from typing import Any


def explain_unknown(unknown: list[str], command: Any) -> str:
    """One line about the first thing on the command line that was not understood."""
    word = unknown[0]
    if not word.startswith("-"):
        return f"{word!r} is one argument too many"
    name = word.partition("=")[0].lstrip("-").replace("_", "-")
    known = list(_options(command))
    leaves = {option.rpartition(".")[2]: option for option in reversed(known)}
    pools = (known, list(leaves)) if "." in name else (list(leaves), known)
    close = [found for pool in pools for found in get_close_matches(name, pool, n=1, cutoff=0.5)]
    return f"unknown option {word}" + (f" (did you mean --{leaves.get(close[0], close[0])}?)" if close else "")


def _options(part: Any, prefix: str = "") -> Iterator[str]:
    for entry in fields(part):
        value = getattr(part, entry.name)
        own = "" if entry.name == "settings" else f"{entry.name}.".replace("_", "-")
        if is_dataclass(value):
            yield from _options(value, prefix + own)
        else:
            yield prefix + entry.name.replace("_", "-")


def in_one_line(box: str) -> str:
    """What the parser says in a box, without the box: the part above its first rule."""
    said: list[str] = []
    for line in box.splitlines()[1:]:
        text = line.strip("│|╰╯+ ")
        if set(text) <= {"─", "-"}:
            if said:
                break
        else:
            said.append(text)
    return " ".join(said)
