"""Progress of work on bands."""

from collections.abc import Callable


class ProgressCounter:
    """Counts bands, and reports them."""

    def __init__(self, report: Callable[[int, int], None] | None, total: int) -> None:
        self.report, self.total, self.done = report, total, 0

    def add(self, count: int = 1) -> None:
        """More bands are done: one, or several that were left out."""
        self.done += count
        if self.report is not None and count:
            self.report(self.done, self.total)
