"""Fair timing and peak memory on a machine that others use too.

Candidates are built, warmed up and timed in turn beside a matrix product; the best of many rounds counts. A candidate that
cannot be built, compiled or run is left out, and the record says why in one line.
"""

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from torch import Tensor, nn

from .result import Record

Call = Callable[[], object]

MIN_ROUNDS, MAX_ROUNDS = 5, 50
"""All candidates of a case have the same number of rounds."""
PRODUCT_SIDE = 1024
PRODUCT_FLOPS = 2 * PRODUCT_SIDE**3
"""Multiplications and additions of one 1024 x 1024 x 1024 matrix product, the unit that other times are compared with."""


@dataclass(frozen=True)
class Timing:
    """Seconds of one call."""

    best: float
    median: float
    rounds: int


def measure_candidates(
    makers: Mapping[str, Callable[[], Call]], kind: str, *, seconds: float, dtype: torch.dtype, device: torch.device
) -> Record:
    """Times under `kind`, "memory" and "errors"; a matrix product is timed as one more candidate, "product"."""
    calls: dict[str, Call] = {}
    errors: dict[str, str] = {}
    for name, make in makers.items():
        try:
            call = make()
            call()  # compiles, if anything does
        except Exception as error:
            errors[name] = _one_line(error)
        else:
            calls[name] = call
    timings = interleave({**calls, "product": matrix_product(dtype, device)}, seconds=seconds, device=device)
    return {
        kind: {name: asdict(timing) for name, timing in timings.items()},
        "memory": {name: peak_memory(call, device) for name, call in calls.items()},
        "errors": errors,
    }


def forward(model: Callable[[Tensor], object], images: Tensor) -> Call:
    """A forward pass without gradients."""
    return torch.no_grad()(lambda: model(images))


def step(model: nn.Module, images: Tensor) -> Call:
    """Forward and backward."""

    def run() -> None:
        model(images).sum().backward()
        model.zero_grad(set_to_none=True)

    return run


def matrix_product(dtype: torch.dtype, device: torch.device) -> Call:
    """One 1024 x 1024 x 1024 matrix product."""
    a, b = (torch.randn(PRODUCT_SIDE, PRODUCT_SIDE, device=device).to(dtype) for _ in range(2))
    return lambda: a @ b


def interleave(candidates: Mapping[str, Call], *, seconds: float, device: torch.device) -> dict[str, Timing]:
    """Time candidates in turn, round after round, for about `seconds` in all and at least MIN_ROUNDS rounds.

    All candidates are slowed alike by what else runs on the machine, and the best round is the least disturbed one.
    """
    for call in candidates.values():
        call()  # warm up
    # a round repeats a fast call until it takes about 10 ms, which the clock resolves well
    repeats = {name: max(1, int(0.01 / _time(call, 1, device))) for name, call in candidates.items()}
    times: dict[str, list[float]] = {name: [] for name in candidates}
    start = perf_counter()
    for done in range(MAX_ROUNDS):
        if done >= MIN_ROUNDS and perf_counter() - start > seconds:
            break
        for name, call in candidates.items():
            times[name].append(_time(call, repeats[name], device))
    return {name: Timing(min(taken), median(taken), len(taken)) for name, taken in times.items()}


def settle_allocator() -> None:
    """Free one large block: glibc then keeps blocks below 32 MB, as in any process that has handled images for a while."""
    block = torch.ones(31 * 2**18)
    del block


def peak_memory(call: Call, device: torch.device) -> int | None:
    """Bytes that a call needs at its peak beyond what was allocated before: the least of three calls after a warm-up.

    None where the system does not report it: a CPU without Linux's /proc.
    """
    call()
    if device.type == "cuda":
        return _allocated_peak(call, device)
    if device.type == "cpu" and CLEAR_REFS.exists():
        return min(_resident_peak(call) for _ in range(3))
    return None


def peak_memory_of_one_call(call: Call, device: torch.device) -> int | None:
    """The same, of a single call without a warm-up, for calls that take minutes."""
    if device.type == "cuda":
        return _allocated_peak(call, device)
    if device.type == "cpu" and CLEAR_REFS.exists():
        return _resident_peak(call)
    call()
    return None


def process_peak_memory(call: Call) -> int | None:
    """Bytes of the whole process at its peak during one call; None without Linux's /proc."""
    if not CLEAR_REFS.exists():
        call()
        return None
    CLEAR_REFS.write_text("5")
    call()
    return _process_status("VmHWM")


CLEAR_REFS = Path("/proc/self/clear_refs")
"""Writing 5 to it sets the process's high-water mark to the memory that is resident now."""


def _allocated_peak(call: Call, device: torch.device) -> int:
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def _resident_peak(call: Call) -> int:
    ctypes.CDLL(None).malloc_trim(0)  # return freed memory to the system, so that what the call allocates is visible
    CLEAR_REFS.write_text("5")
    before = _process_status("VmRSS")
    call()
    return max(0, _process_status("VmHWM") - before)


def _process_status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {key}")


def _time(call: Call, repeats: int, device: torch.device) -> float:
    _synchronize(device)
    start = perf_counter()
    for _ in range(repeats):
        call()
    _synchronize(device)
    return (perf_counter() - start) / repeats


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
