"""Messages on the error output: one line each, in which control characters are escaped."""

import sys

from ..lite.text import printable


def warn(text: object) -> None:
    """Print a line about something that went wrong."""
    # The newline is part of the text: several processes may write at once, and print would write it separately.
    print(f"inline: {printable(text)}\n", end="", file=sys.stderr)


def accept_any_character() -> None:
    """Let both outputs escape characters that their encoding does not have, such as that of `LANG=C`, instead of raising."""
    for output in (sys.stdout, sys.stderr):
        if hasattr(output, "reconfigure"):
            output.reconfigure(errors="backslashreplace")
