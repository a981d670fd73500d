"""Names of files and classes in messages: no control character of a name reaches a terminal."""

import re
from collections.abc import Iterable

CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Control characters, line breaks, and what stands for the bytes of a file name that are not UTF-8."""


def printable(text: object) -> str:
    """The text with control characters escaped: in one line, and without commands to a terminal."""
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


def check_names(names: Iterable[str], where: object) -> None:
    """Raise unless all names of classes can be printed, drawn and stored as UTF-8."""
    for name in names:
        if CONTROL.search(name):
            raise ValueError(
                f"{where}: the class name '{printable(name)}' has control characters or is not UTF-8: rename the class"
            )
