"""Runs cells side by side, each in a process with a share of the cores, and one after the other what must be alone."""

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import asdict
from multiprocessing import active_children, get_context
from pathlib import Path
from threading import Event, Thread
from time import sleep

import torch

from ..training.recipe import Recipe
from .cell import Cell, Record
from .run_cell import StoppedError, run_cell

VISIBLE = "CUDA_VISIBLE_DEVICES"


def cores() -> int:
    """That this process may use, where the system tells; all otherwise."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_in_turn(
    cells: Sequence[Cell],
    folder: Path,
    *,
    device: str,
    stop: Callable[[], bool],
    racers: Mapping[str, Recipe] | None = None,
) -> Iterator[Record]:
    """One after the other, in this process."""
    for cell in cells:
        if stop():
            raise StoppedError
        yield run_cell(cell, folder, device=device, stop=stop, racers=racers)


def run_side_by_side(cells: Sequence[Cell], folder: Path, *, device: str, jobs: int) -> Iterator[Record]:
    """Records as cells end. A process that dies takes one cell with it, which is told as failed.

    On Ctrl-C every process saves what it is at, and `StoppedError` is raised.
    """
    waiting = list(reversed(cells))
    threads = max(1, cores() // jobs)
    slots = [_slot(threads, number) for number in range(min(jobs, len(cells)))]
    running: dict[Future[Record], tuple[int, Cell]] = {}
    try:
        for number in range(len(slots)):
            _give(running, slots, number, waiting, folder, device)
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                number, cell = running.pop(future)
                try:
                    record = future.result()
                except BrokenProcessPool:
                    slots[number].shutdown(cancel_futures=True)
                    slots[number] = _slot(threads, number)
                    record = _lost(cell)
                    record.write(folder)
                _give(running, slots, number, waiting, folder, device)
                yield record
    except (KeyboardInterrupt, StoppedError) as stopped:
        raise StoppedError from stopped
    finally:
        _stop(running)
        for slot in slots:
            slot.shutdown(cancel_futures=True)


def _stop(running: Mapping[Future[Record], object]) -> None:
    """Let every process save what it is at. A terminal told them too, `kill` did not."""
    if running:
        for process in active_children():
            if process.pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGINT)
    wait(running)


def _slot(threads: int, number: int) -> ProcessPoolExecutor:
    begin = (threads, gpu_of(number, torch.cuda.device_count(), os.environ.get(VISIBLE, "")))
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_begin, initargs=begin)


def gpu_of(number: int, count: int, visible: str) -> str:
    """Which GPU, of those that this process sees, is that of a slot: in turn. Empty where there is none to choose."""
    names = visible.split(",") if visible else [str(place) for place in range(count)]
    return names[number % count] if count > 1 else ""


def _give(
    running: dict[Future[Record], tuple[int, Cell]],
    slots: Sequence[ProcessPoolExecutor],
    number: int,
    waiting: list[Cell],
    folder: Path,
    device: str,
) -> None:
    if waiting:
        cell = waiting.pop()
        running[slots[number].submit(_work, cell, folder, device)] = (number, cell)


def _lost(cell: Cell) -> Record:
    contender = None if cell.contender is None else asdict(cell.contender)
    said = "its process died: perhaps there was not enough memory"
    return Record(
        cell.kind, contender, cell.seed, "failed", {}, 0.0, cell.key, cell.recipe_hash, cell.code, {}, said
    )  # fmt: skip


_wishes: list[int] = []
_busy = Event()


def _begin(threads: int, gpu: str) -> None:
    """In a new process: its share of the machine; signals are wishes to stop, and so is the end of the one that waits."""
    torch.set_num_threads(threads)
    if gpu:  # before CUDA is first asked for anything
        os.environ[VISIBLE] = gpu
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda got, _: _wishes.append(got))
    Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        sleep(0.5)
    _wishes.append(0)
    while _busy.is_set():  # the cell saves what it has done
        sleep(0.5)
    os._exit(1)


def _work(cell: Cell, folder: Path, device: str) -> Record:
    if _wishes:
        raise StoppedError
    _busy.set()
    try:
        return run_cell(cell, folder, device=device, stop=lambda: bool(_wishes))
    finally:
        _busy.clear()
