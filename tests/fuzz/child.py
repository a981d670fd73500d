"""Runs cases in this process, one after the other, and reports those that fail as lines of JSON."""

import faulthandler
import gc
import io
import json
import re
import resource
import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from inline_attention.cli.main import main

from .cases import Case, keep_case, make_case, order
from .checks import MOST_MEMORY, Outcome, peak_memory, problem
from .seeds import write_seeds
from .targets import TARGETS

MOST_SECONDS = 20
"""Of computing: a busy machine makes no case fail."""
MOST_SECONDS_OF_A_CALL = 300
"""After which the process is ended, even within a call of another library."""
FORBIDDEN = re.compile(
    r"subprocess\.Popen|os\.(system|exec|posix_spawn|spawn|fork|forkpty)|pty\.spawn|socket\.(connect|getaddrinfo)"
)


class TooLongError(BaseException):
    """A case takes longer than allowed. Not an Exception, so that no handler takes it for a broken file."""


class Watch:
    """An audit hook that refuses to start processes and connections while a case runs."""

    def __init__(self) -> None:
        self.started: list[str] | None = None
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.started is not None and FORBIDDEN.fullmatch(event):
            self.started.append(f"{event} {arguments[:2]}"[:200])
            raise PermissionError(f"a case must not start anything: {event}")


def limit_memory() -> None:
    """Let no allocation take this process more than MOST_MEMORY above what it has now: it fails instead."""
    used = next(
        int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData")
    )
    most = 1024 * used + MOST_MEMORY
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def run_case(case: Case, watch: Watch) -> Outcome:
    """Run a command or a piece of Python, with the standard streams as a terminal's user has them: UTF-8, and strict."""
    found = Outcome()
    before = sys.stdin, sys.stdout, sys.stderr, sys.argv
    data = case.stdin.read_bytes() if case.stdin is not None and case.stdin.is_file() else b""
    sys.stdin = io.TextIOWrapper(io.BytesIO(data))
    sys.stdout = io.TextIOWrapper(io.BytesIO(), "utf-8", "strict", write_through=True)
    sys.stderr = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace", write_through=True)
    watch.started = found.started
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    try:
        if case.target.python:
            sys.argv = ["-c", *case.words[1:]]
            exec(compile(case.words[0], "case", "exec"), {"__name__": "__main__"})
        else:
            main(list(case.words))
    except SystemExit as stop:
        found.code = stop.code or 0
    except BaseException as error:
        found.error = error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        watch.started = None
        found.out, found.err = (stream.buffer.getvalue().decode() for stream in (sys.stdout, sys.stderr))
        sys.stdin, sys.stdout, sys.stderr, sys.argv = before
    return found


def _too_long(number: int, frame: FrameType | None) -> None:
    raise TooLongError(f"longer than {MOST_SECONDS} s")


def run(seed: str, first: int, last: int, seconds: float, folder: Path) -> None:
    """Run the cases of these numbers while there is time. Each line printed is an object: a case begins, or has ended."""
    faulthandler.enable()
    torch.set_num_threads(1)
    until = time.monotonic() + seconds
    if not Path("seeds").exists():
        write_seeds(Path("seeds"))
    signal.signal(signal.SIGPROF, _too_long)
    watch = Watch()
    limit_memory()
    for number in range(first, last):
        if time.monotonic() > until:
            break
        if number < 0 and (not TARGETS[number].seed or TARGETS[number] not in order(seed)):
            continue
        case = make_case(seed, number)
        _print(number=number, command=case.command())
        began = time.monotonic()
        faulthandler.dump_traceback_later(MOST_SECONDS_OF_A_CALL, exit=True)
        found = run_case(case, watch)
        faulthandler.cancel_dump_traceback_later()
        text = problem(case, found)
        seconds = round(time.monotonic() - began, 3)
        _print(number=number, words=case.words, seconds=seconds, memory=peak_memory(), code=found.code, problem=text)
        if text is not None:
            raised = "" if found.error is None else "".join(traceback.format_exception(found.error))
            keep_case(seed, number, folder, "\n".join([text, "", found.out, found.err, raised]))
        if number % 20 == 0:
            gc.collect()


def _print(**line: Any) -> None:
    sys.__stdout__.write(json.dumps(line) + "\n")
    sys.__stdout__.flush()


if __name__ == "__main__":
    _, seed, first, last, seconds, folder = sys.argv
    run(seed, int(first), int(last), float(seconds), Path(folder))
