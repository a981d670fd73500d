"""What a case must not do: raise, start a process, take too much memory, or say something that helps nobody."""

import re
import resource
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .cases import Case

GIGABYTE = 2**30
MOST_MEMORY = 2 * GIGABYTE
MOST_CHARACTERS = 20_000
"""Of a message."""
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
"""Control characters, but the tab and the newline."""


@dataclass
class Outcome:
    """What a case did."""

    code: Any = 0
    error: BaseException | None = None
    out: str = ""
    err: str = ""
    started: list[str] = field(default_factory=list)
    """Processes and connections that it tried to start."""


def problem(case: Case, found: Outcome) -> str | None:
    """What is wrong with an outcome, in one line; None if nothing is."""
    memory = peak_memory()
    if found.started:
        return f"started: {found.started[0]}"
    if memory > MOST_MEMORY:
        return f"memory: {memory / GIGABYTE:.1f} GB"
    if case.number >= 0 and case.target.python and isinstance(found.error, ValueError | OSError | TypeError):
        return _message(case, f"inline: {found.error}")
    if found.error is not None:
        return _raised(found.error)
    if control := CONTROL.search(found.out + found.err):
        return f"control character {control[0]!r} in the output"
    if "Traceback" in found.err:
        return "traceback in the output"
    if case.number < 0 and found.code:
        return f"a valid input ends with {found.code}: {found.err}"
    return _message(case, found.err) if found.code == 2 else _answer(case, found)


def _answer(case: Case, found: Outcome) -> str | None:
    if found.code not in case.target.codes:
        return f"exit code {found.code}"
    nan = re.search(r"\bnan\b", found.out, re.IGNORECASE)
    return "answers with nan" if nan and case.words[0] == "predict" else None


def _raised(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "inline_attention" in frame.filename] or list(frames)
    text = (str(error).splitlines() or [""])[0][:120]
    return f"raised {type(error).__name__} at {Path(ours[-1].filename).name}: {ours[-1].name}: {text}"


def _message(case: Case, text: str) -> str | None:
    lines = text.strip().splitlines()
    if not lines or not lines[-1].startswith("inline: "):
        return f"not one line: {lines[-3:]}"[:300]
    if not any(name in lines[-1] for name in case.names):
        return f"names none of {case.names}: {lines[-1][:300]}"
    if control := CONTROL.search(lines[-1]):
        return f"control character {control[0]!r} in the message"
    return f"a message of {len(lines[-1])} characters" if len(lines[-1]) > MOST_CHARACTERS else None


def peak_memory() -> int:
    """The most bytes that this process has had in memory."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
