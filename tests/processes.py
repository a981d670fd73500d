"""Run checks in several processes at once, joined by a gloo group: each check gets the process's rank and their number."""

import time
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

SECONDS = 120
"""After these a run is ended; a message without an answer is given up earlier."""


def run_in_processes(processes: int, path, *checks) -> None:
    """Run `check(rank, processes)` in each process. An error in one of them is raised here, and nothing waits for ever."""
    mp.get_context("forkserver").set_forkserver_preload(["inline_attention", "pytest"])  # imported only once
    arguments = (processes, str(path), checks)
    running = mp.start_processes(_run, arguments, nprocs=processes, join=False, start_method="forkserver")
    until = time.monotonic() + SECONDS
    try:
        while not running.join(timeout=1):
            assert time.monotonic() < until, f"{[check.__name__ for check in checks]} took longer than {SECONDS} s"
    finally:
        for process in running.processes:
            process.kill()


def _run(rank: int, processes: int, path: str, checks) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    dist.init_process_group(
        "gloo", init_method=f"file://{path}", rank=rank, world_size=processes, timeout=timedelta(seconds=SECONDS / 4)
    )
    for check in checks:
        check(rank, processes)
    dist.barrier()
    dist.destroy_process_group()
