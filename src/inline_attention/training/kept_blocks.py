"""Which blocks of a linear copy keep their softmax attention: what may be asked for, and the choice by measured errors.

Blocks are counted from 1, in the model's order, over all attention that `swap` can replace. `kept_errors.py` measures.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .config import nearest

AUTO = "auto"
CURVE = 6
"""The error is measured with none to so many of the most sensitive blocks kept."""
AUTO_SHARE = 3
"""'auto' keeps at most one block of so many."""


@dataclass(frozen=True)
class Keep:
    """What is to be kept: so many of the most sensitive blocks, or the named ones; neither for 'auto'."""

    count: int | None = None
    names: tuple[str, ...] = ()


def parse_keep(text: str, names: Sequence[str], swapped: Collection[str]) -> Keep:
    """'auto'; '2', how many; '3,7' or '3,', which, counted from 1; or names, separated by commas.

    Args:
        text: what was given.
        names: of all attention that can be swapped, in the order in which blocks are counted.
        swapped: those that the other options choose, of which some are kept.
    """
    words = text.strip()
    if words == AUTO:
        return Keep()
    if re.fullmatch("[0-9]+", words):
        _leave_some(text, int(words), len(swapped))
        return Keep(count=int(words))
    parts = [part.strip() for part in words.removesuffix(",").split(",")]
    found = [_name_of(part, text, names, swapped) for part in parts]
    if twice := [name for place, name in enumerate(found) if name in found[:place]]:
        raise ValueError(f"keep {text!r}: {twice[0]} is given twice")
    _leave_some(text, len(found), len(swapped))
    return Keep(names=tuple(name for name in names if name in found))


def _name_of(part: str, text: str, names: Sequence[str], swapped: Collection[str]) -> str:
    """The name of a block that is given by its number or its name."""
    number = int(part) if re.fullmatch("[0-9]+", part) else None
    if number is not None and not 1 <= number <= len(names):
        raise ValueError(f"keep {text!r}: there is no block {part}, blocks are counted from 1 to {len(names)}")
    name = part if number is None else names[number - 1]
    if name not in names:
        raise ValueError(
            f"keep {text!r}: no attention is called {part!r}{nearest(part, names)}; give auto, how many (2), which (3,7 "
            f"or 3,) or names such as {names[0]}"
        )
    if name not in swapped:
        raise ValueError(f"keep {text!r}: {name} is not among those to swap, so it is kept already: leave it out")
    return name


def _leave_some(text: str, kept: int, blocks: int) -> None:
    if kept >= blocks:
        raise ValueError(f"keep {text!r}: {kept} of {blocks} blocks, which leaves none to be linear: keep fewer than {blocks}")


def only(names: Iterable[str]) -> str:
    """The option `only` of `swap` for attention of exactly these names."""
    return "|".join(map(re.escape, names))


def number_kept(curve: Sequence[float], blocks: int) -> int:
    """How many blocks 'auto' keeps: as few as halve the error of a model that is all linear, at most a third of the blocks.

    Args:
        curve: the error with 0, 1, 2, ... of the most sensitive blocks kept.
        blocks: how many there are.
    """
    most = min(CURVE, max(1, blocks // AUTO_SHARE), blocks - 1)
    return next((kept for kept in range(most) if curve[kept] <= curve[0] / 2), most)


def choose_kept(
    keep: Keep,
    names: Sequence[str],
    swapped: Sequence[str],
    errors: Callable[[Sequence[Collection[str]]], list[float]],
) -> dict[str, Any]:
    """Measure and choose.

    Args:
        keep: what is asked for.
        names: of all attention, in the order in which blocks are counted.
        swapped: those of which some are kept.
        errors: `output_errors` for sets of names.

    Returns:
        `kept`, their names; `error`, of the output with these kept; `blocks`, the error of each that is swapped, alone;
        `curve`, the error with 0, 1, 2, ... of the most sensitive kept.
    """
    alone = errors([set(swapped) - {name} for name in swapped])
    ranked = [name for _, name in sorted(zip(alone, swapped, strict=True), key=lambda pair: -pair[0])]
    longest = min(len(swapped), max(CURVE, keep.count or 0))
    curve = errors([set(ranked[:count]) for count in range(longest + 1)])
    count = number_kept(curve, len(swapped)) if keep.count is None else keep.count
    kept = set(keep.names or ranked[:count])
    return {
        "kept": [name for name in swapped if name in kept],
        "error": errors([kept])[0] if keep.names else curve[count],
        "blocks": [
            {"block": names.index(name) + 1, "name": name, "error": error, "kept": name in kept}
            for name, error in zip(swapped, alone, strict=True)
        ],
        "curve": curve,
    }


def block_numbers(record: Mapping[str, Any]) -> dict[str, int]:
    """Name -> number, of the blocks in a record of `choose_kept`."""
    return {row["name"]: row["block"] for row in record["blocks"]}
