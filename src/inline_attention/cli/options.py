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
    name = word.partition("=")[0].replace("_", "-")
    known = [f"--{option}" for option in _options(command)]
    close = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"unknown option {word}" + (f"; did you mean {close[0]}?" if close else "")


def _options(part: Any, prefix: str = "") -> Iterator[str]:
    for entry in fields(part):
        value = getattr(part, entry.name)
        own = "" if entry.name == "settings" else f"{entry.name}.".replace("_", "-")
        if is_dataclass(value):
            yield from _options(value, prefix + own)
        else:
            yield prefix + entry.name.replace("_", "-")
