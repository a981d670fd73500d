"""Peak memory of a call: what the process holds at its height, beyond what it held before."""

import ctypes
from collections.abc import Callable
from pathlib import Path

import torch


def peak_memory(call: Callable[[], object], device: torch.device) -> int | None:
    """Bytes, the least of three tries; None where the system cannot tell (a CPU without Linux's /proc)."""
    call()
    if device.type == "cuda":
        return _allocated_peak(call, device)
    if device.type == "cpu" and Path("/proc/self/clear_refs").exists():
        return min(_resident_peak(call) for _ in range(3))
    return None


def single_peak(call: Callable[[], object], device: torch.device) -> int | None:
    """Bytes, of one call and no more, for calls that take minutes; None where the system cannot tell."""
    if device.type == "cuda":
        return _allocated_peak(call, device)
    if device.type == "cpu" and Path("/proc/self/clear_refs").exists():
        return _resident_peak(call)
    call()
    return None


def _allocated_peak(call: Callable[[], object], device: torch.device) -> int:
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def process_peak(call: Callable[[], object]) -> int | None:
    """Bytes that the whole process holds at its height while the call runs, once; None without Linux's /proc."""
    if not Path("/proc/self/clear_refs").exists():
        call()
        return None
    Path("/proc/self/clear_refs").write_text("5")
    call()
    return _status("VmHWM")


def _resident_peak(call: Callable[[], object]) -> int:
    ctypes.CDLL(None).malloc_trim(0)  # give freed memory back, so that what the call takes shows
    Path("/proc/self/clear_refs").write_text("5")  # sets the high-water mark to what is held now
    before = _status("VmRSS")
    call()
    return max(0, _status("VmHWM") - before)


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {key}")
