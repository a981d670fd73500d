"""Runs trials in parallel, each in a process with its share of the cores, or one after the other in this process."""

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import asdict
from multiprocessing import active_children, get_context
from pathlib import Path
from threading import Event, Thread, main_thread
from time import sleep

import torch

from ..training.config import Recipe
from .run_trial import StoppedError, run_trial
from .trial import Record, Trial

CUDA_VISIBLE = "CUDA_VISIBLE_DEVICES"


def cores() -> int:
    """Cores that this process may use, where the system reports it; all cores otherwise."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_sequential(
    trials: Sequence[Trial],
    folder: Path,
    *,
    device: str,
    stop: Callable[[], bool],
    timed_recipes: Mapping[str, Recipe] | None = None,
) -> Iterator[Record]:
    """One after the other, in this process."""
    for trial in trials:
        if stop():
            raise StoppedError
        yield run_trial(trial, folder, device=device, stop=stop, timed_recipes=timed_recipes)


def run_parallel(trials: Sequence[Trial], folder: Path, *, device: str, jobs: int) -> Iterator[Record]:
    """Yield records as trials finish. If a process dies, its trial is recorded as failed and a new process takes its place.

    On Ctrl-C every process saves a checkpoint, and `StoppedError` is raised.
    """
    waiting = list(reversed(trials))
    threads = max(1, cores() // jobs)
    slots = [_slot(threads, number) for number in range(min(jobs, len(trials)))]
    running: dict[Future[Record], tuple[int, Trial]] = {}
    try:
        for number in range(len(slots)):
            _give(running, slots, number, waiting, folder, device)
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                number, trial = running.pop(future)
                try:
                    record = future.result()
                except BrokenProcessPool:
                    slots[number].shutdown(cancel_futures=True)
                    slots[number] = _slot(threads, number)
                    record = _record_of_dead_process(trial)
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
    """Make every process save a checkpoint. A terminal sends Ctrl-C to all processes, but `kill` only to this one."""
    if running:
        for process in active_children():
            if process.pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGINT)
    wait(running)


def _slot(threads: int, number: int) -> ProcessPoolExecutor:
    arguments = (threads, gpu_of(number, torch.cuda.device_count(), os.environ.get(CUDA_VISIBLE, "")))
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_start_worker, initargs=arguments)


def gpu_of(number: int, count: int, visible: str) -> str:
    """The GPU of a slot, in turn of those that this process sees; empty if there are fewer than two."""
    names = visible.split(",") if visible else [str(place) for place in range(count)]
    return names[number % count] if count > 1 else ""


def _give(
    running: dict[Future[Record], tuple[int, Trial]],
    slots: Sequence[ProcessPoolExecutor],
    number: int,
    waiting: list[Trial],
    folder: Path,
    device: str,
) -> None:
    if waiting:
        trial = waiting.pop()
        running[slots[number].submit(_work, trial, folder, device)] = (number, trial)


def _record_of_dead_process(trial: Trial) -> Record:
    candidate = None if trial.candidate is None else asdict(trial.candidate)
    error = "its process died: perhaps there was not enough memory"
    return Record(
        trial.kind, candidate, trial.seed, "failed", {}, 0.0, trial.key, trial.recipe_hash, trial.code, {}, error
    )  # fmt: skip


# State of a worker process
_stop_requests: list[int] = []  # a list, since a signal handler must not take the lock of an Event
_busy, _orphaned = Event(), Event()


def _start_worker(threads: int, gpu: str) -> None:
    """Initialise a worker: its threads, its GPU, and the signals and the death of the parent, on which it stops."""
    torch.set_num_threads(threads)
    if gpu:  # must be set before CUDA is initialised
        os.environ[CUDA_VISIBLE] = gpu
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _request_stop)
    Thread(target=_watch_parent, args=(os.getppid(),), daemon=True).start()


def _request_stop(number: int, _: object) -> None:
    _stop_requests.append(number)
    if _orphaned.is_set():
        raise SystemExit(1)


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        sleep(0.5)
    _stop_requests.append(0)
    while _busy.is_set():  # the trial saves a checkpoint
        sleep(0.5)
    _orphaned.set()
    # the main thread waits for work that never comes: a signal interrupts it, and its handler ends the process
    signal.pthread_kill(main_thread().ident or 0, signal.SIGTERM)


def _work(trial: Trial, folder: Path, device: str) -> Record:
    if _stop_requests:
        raise StoppedError
    _busy.set()
    try:
        return run_trial(trial, folder, device=device, stop=lambda: bool(_stop_requests))
    finally:
        _busy.clear()
