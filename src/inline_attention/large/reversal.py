"""Which block inputs are kept for the backward pass, and which are computed again: disk against time.

The backward pass needs the inputs of all steps, from the last to the first. If fewer can be kept, those in between are computed
again from the nearest one before them, and some of these are kept in the places that have become free. `best_split` places them
so that the fewest steps are computed again (Griewank & Walther, 2000).
"""

from collections.abc import Callable
from functools import lru_cache


@lru_cache(None)
def repeated(steps: int, places: int) -> int:
    """How many steps are computed again, at least, to go back over so many with so many inputs kept besides the first."""
    if steps <= 1:
        return 0
    if places == 0:
        return steps * (steps - 1) // 2
    return min(_cost(split, steps, places) for split in range(1, steps))


@lru_cache(None)
def best_split(steps: int, places: int) -> int:
    """After how many steps the next input is kept: the last one that can be, if there are no places."""
    if places == 0:
        return steps - 1
    return min(range(1, steps), key=lambda split: (_cost(split, steps, places), split))


def _cost(split: int, steps: int, places: int) -> int:
    return split + repeated(steps - split, places - 1) + repeated(split, places)


def kept_inputs(first: int, stop: int, places: int) -> list[int]:
    """The steps whose inputs the forward pass keeps, besides that of the first: all, if there are places."""
    kept: list[int] = []
    while places and stop - first > 1:
        first += best_split(stop - first, places)
        places -= 1
        kept.append(first)
    return kept


def go_back(
    first: int,
    stop: int,
    places: int,
    kept: set[int],
    *,
    advance: Callable[[int, int], None],
    drop: Callable[[int], None],
    backward: Callable[[int], None],
) -> None:
    """Go back over the steps from `stop` - 1 to `first`, whose input is there.

    Args:
        first, stop: the steps.
        places: how many inputs may be kept between them.
        kept: the steps whose inputs are there.
        advance: (from, to): compute the input of one step from that of an earlier one, and keep it.
        drop: the input of this step is not needed any more.
        backward: go back over this step, whose input is there.
    """
    if stop - first == 1:
        backward(first)
        return
    between = [step for step in kept if first < step < stop]
    middle = min(between) if between else first + best_split(stop - first, places)
    if not between:
        advance(first, middle)
        kept.add(middle)
    inside = max(0, places - 1)
    go_back(middle, stop, inside, kept, advance=advance, drop=drop, backward=backward)
    kept.discard(middle)
    drop(middle)
    go_back(first, middle, places, kept, advance=advance, drop=drop, backward=backward)
