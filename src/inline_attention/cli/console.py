"""Where the tables of results are printed: as wide as the terminal, and unbroken where they are piped."""

import os

from rich.console import Console

PIPED_WIDTH = 1000
"""Columns of an output that is no terminal: a name or a number is not broken in two there."""


def table_console() -> Console:
    """The standard output: as wide as the terminal, or as COLUMNS says; else as wide as a table needs."""
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPED_WIDTH
    return console
