"""Progress of long work: a bar with the time left on a terminal, plain lines in a log."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Item = TypeVar("Item")


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
def step_counter(label: str, console: Console) -> Iterator[Callable[[int, int], None]]:
    """The same for work that knows its own length: call it with (done, total)."""
    if console.is_terminal:
        columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TextColumn("left"), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task(label, total=None)
            yield lambda done, total: progress.update(task, completed=min(done, total), total=total)
        return
    yield _line_printer(label, console)


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
    """Progress of files that take long: a bar of the files and one of the file at hand on a terminal, lines in a log."""

    def __init__(self, total: int, console: Console) -> None:
        self.total, self.console, self.done = total, console, 0
        text = TextColumn("{task.description}")
        columns = (text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
        self._bars = Progress(*columns, console=console, transient=True) if console.is_terminal else None
        self._files = None if self._bars is None or total == 1 else self._bars.add_task("files", total=total)
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
            return _line_printer(label, self.console)
        bars, task = self._bars, self._bars.add_task(escape(label), total=None)
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


def _line_printer(label: str, console: Console) -> Callable[[int, int], None]:
    """Prints a line every ten seconds."""
    start = last_line = perf_counter()

    def print_line(done: int, total: int) -> None:
        nonlocal last_line
        now = perf_counter()
        if now - last_line >= 10:
            last_line = now
            rate = done / (now - start)
            console.print(f"{label}: {min(done, total)}/{total}, {rate:.0f}/s, {max(0, total - done) / rate:.0f} s left")

    return print_line
