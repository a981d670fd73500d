"""Fair timing on a machine that others use too: contenders take turns, and the best of many rounds counts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch

LEAST, MOST = 5, 50
"""Rounds. All contenders of a case have the same number."""


@dataclass(frozen=True)
class Timing:
    """Seconds of one call."""

    best: float
    median: float
    rounds: int


def interleave(contenders: Mapping[str, Callable[[], object]], *, seconds: float, device: torch.device) -> dict[str, Timing]:
    """Time contenders in turn, round after round, for about so many seconds in all, LEAST rounds at least."""
    for call in contenders.values():
        call()  # warm up
    calls = {name: max(1, int(0.01 / _time(call, 1, device))) for name, call in contenders.items()}
    times: dict[str, list[float]] = {name: [] for name in contenders}
    start = perf_counter()
    for done in range(MOST):
        if done >= LEAST and perf_counter() - start > seconds:
            break
        for name, call in contenders.items():
            times[name].append(_time(call, calls[name], device))
    return {name: Timing(min(taken), median(taken), len(taken)) for name, taken in times.items()}


def settle_allocator() -> None:
    """Free one large block: glibc then keeps blocks below 32 MB, as in any process that has handled pictures for a while."""
    block = torch.ones(31 * 2**18)
    del block


def _time(call: Callable[[], object], calls: int, device: torch.device) -> float:
    _synchronize(device)
    start = perf_counter()
    for _ in range(calls):
        call()
    _synchronize(device)
    return (perf_counter() - start) / calls


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
