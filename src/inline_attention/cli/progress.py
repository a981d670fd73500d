"""Progress of long work: a bar with the time left on a terminal, plain lines in a log."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Item = TypeVar("Item")
LINE_SECONDS = 10
"""Between two lines of a log."""
MINUTES_FROM = 120
"""Seconds from which the time left is told in minutes."""


def track(items: Iterable[Item], label: str, total: int, console: Console) -> Iterator[Item]:
    """The items as they come, printing how many are done and how long the rest will take."""
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


@contextmanager
def counter(label: str, total: int, console: Console) -> Iterator[Callable[[int], None]]:
    """A function to call with how much is done: a bar on a terminal, a line every ten seconds in a log."""
    with step_counter(label, console) as update:
        yield lambda done: update(done, total)


@contextmanager
def step_counter(label: str, console: Console, unit: str = "") -> Iterator[Callable[[int, int], None]]:
    """The same for work that knows its own length: call it with (done, total), of what the unit names, such as a band."""
    if console.is_terminal:
        count = (TextColumn(unit), MofNCompleteColumn()) if unit else (MofNCompleteColumn(),)
        columns = (TextColumn("{task.description}"), BarColumn(), *count, TextColumn("left"), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task(escape(label), total=None)
            yield lambda done, total: progress.update(task, completed=min(done, total), total=total)
        return
    yield _line_printer(label, console, unit)


@contextmanager
def stages(console: Console) -> Iterator[Callable[[str], None]]:
    """A function to call with what is being done: one line that changes on a terminal, a line each in a log."""
    if console.is_terminal:
        with console.status("beginning") as status:
            yield lambda text: status.update(escape(text))
        return
    start = perf_counter()

    def print_line(text: str) -> None:
        console.print(f"{perf_counter() - start:.0f} s: {text}", highlight=False, markup=False, soft_wrap=True)

    yield print_line


class BatchProgress:
    """Progress of files that take long: a bar of the files and one of the file at hand on a terminal, lines in a log.

    Args:
        total: how many files.
        unit: what the parts of a file are, such as "band".
    """

    def __init__(self, total: int, console: Console, unit: str) -> None:
        self.total, self.console, self.unit, self.done = total, console, unit, 0
        text, count = TextColumn("{task.description}"), TextColumn("{task.fields[unit]}")
        time = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
        columns = (text, BarColumn(), count, MofNCompleteColumn(), *time)
        self._bars = Progress(*columns, console=console, transient=True) if console.is_terminal else None
        self._files = None if self._bars is None or total == 1 else self._bars.add_task("files", total=total, unit="file")
        self._file: TaskID | None = None

    def __enter__(self) -> "BatchProgress":
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def begin(self, name: str) -> Callable[[int, int], None]:
        """The next file; a function to call with (done, total) of its parts."""
        label = name if self.total == 1 else f"{self.done + 1}/{self.total} {name}"
        if self._bars is None:
            return _line_printer(label, self.console, self.unit)
        bars, task = self._bars, self._bars.add_task(escape(label), total=None, unit=self.unit)
        self._file = task
        return lambda done, total: bars.update(task, completed=min(done, total), total=total)

    def end(self) -> None:
        """The file is done, or has failed."""
        if self._bars is not None and self._file is not None:
            self._bars.remove_task(self._file)
        self.skip()

    def skip(self) -> None:
        """A file needs no work."""
        self.done += 1
        if self._bars is not None and self._files is not None:
            self._bars.advance(self._files)


def _line_printer(label: str, console: Console, unit: str) -> Callable[[int, int], None]:
    """Prints a line every ten seconds."""
    start = last_line = perf_counter()

    def print_line(done: int, total: int) -> None:
        nonlocal last_line
        now = perf_counter()
        if now - last_line >= LINE_SECONDS:
            last_line = now
            console.print(
                progress_line(label, min(done, total), total, now - start, unit), highlight=False, markup=False, soft_wrap=True
            )

    return print_line


def progress_line(label: str, done: int, total: int, spent: float, unit: str) -> str:
    """How much is done after so many seconds, in words: "a.tif: band 2 of 67, 12/min, 5 min left"."""
    text = f"{label}: {unit} {done:,} of {total:,}" if unit else f"{label}: {done:,} of {total:,}"
    if not done or spent <= 0:
        return text
    rate = done / spent
    pace = f"{rate:.0f}/s" if rate >= 1 else f"{60 * rate:.2g}/min"
    left = (total - done) / rate
    return f"{text}, {pace}, {f'{left:.0f} s' if left < MINUTES_FROM else f'{left / 60:.0f} min'} left"
