"""Lines about the progress of long work, in a log."""

import io
from itertools import count

import pytest
from rich.console import Console

from inline_attention.cli import progress
from inline_attention.cli.progress import progress_line, step_counter


@pytest.mark.parametrize(
    ("done", "total", "spent", "unit", "said"),
    [
        (2, 67, 12, "band", "a.tif: band 2 of 67, 10/min, 6 min left"),
        (60, 67, 20, "band", "a.tif: band 60 of 67, 3/s, 2 s left"),
        (1, 2, 118, "band", "a.tif: band 1 of 2, 0.51/min, 118 s left"),
        (0, 67, 12, "band", "a.tif: band 0 of 67"),
        (1500, 3000, 10, "", "a.tif: 1,500 of 3,000, 150/s, 10 s left"),
    ],
)
def test_a_line_tells_what_is_counted_how_fast_and_how_long(done, total, spent, unit, said):
    assert progress_line("a.tif", done, total, spent, unit) == said


@pytest.mark.parametrize("terminal", [False, True])
def test_a_name_is_printed_as_it_is(terminal, monkeypatch):
    """Brackets and braces in the name of a file are neither markup nor a format."""
    seconds = count(step=10)
    monkeypatch.setattr(progress, "perf_counter", lambda: next(seconds))
    output = io.StringIO()
    with step_counter("a[b]{c}.tif", Console(file=output, force_terminal=terminal, width=120), "band") as update:
        update(1, 2)
    assert "a[b]{c}.tif" in output.getvalue()
    assert "band" in output.getvalue()
