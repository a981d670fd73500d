"""Progress of long work: a bar with the time left on a terminal, plain lines in a log."""

from collections.abc import Iterable, Iterator
from time import perf_counter
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Item = TypeVar("Item")


def track(items: Iterable[Item], label: str, total: int, console: Console) -> Iterator[Item]:
    """The items as they come, telling how far the work is and how long it has to go."""
    if console.is_terminal:
        columns = (
            TextColumn(label),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, transient=True) as progress:
            yield from progress.track(items, total=total)
        return
    start = perf_counter()
    for done, item in enumerate(items, start=1):
        yield item
        spent = perf_counter() - start
        console.print(
            f"{label}: {done}/{total}, {spent:.0f} s, {done / spent:.2f}/s, {spent / done * (total - done):.0f} s left"
        )
