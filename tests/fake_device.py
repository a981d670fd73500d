"""A machine with an accelerator, as far as one can be had without: tensors with a device, a type and a shape, and no data.

What a kernel computes is not known, but everything around the kernels runs as it would: which tensor is made where and in
which type, and where the program would wait for the device to tell it a number.

"cuda" goes forward only: without a driver, autograd cannot go back on it. "card" goes back too; it is a device that torch
lets Python define, once and for the whole process, so what uses it runs in a process of its own (`test_accelerator.py`).
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Watch(TorchDispatchMode):
    """Collects what accelerators are slow at: numbers of 64 bit, and copies from the device to the host."""

    def __init__(self) -> None:
        super().__init__()
        self.slow: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        made = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        if any(t.dtype in (torch.float64, torch.complex128) and t.device.type != "cpu" for t in made):
            self.slow.append(f"{func} has a result of 64 bit")
        if any(t.device.type != "cpu" for t in given) and any(t.device.type == "cpu" for t in made):
            self.slow.append(f"{func} copies from the device")
        return out


@contextmanager
def fake_device(autocast: torch.dtype | None = None) -> Iterator[Watch]:
    """Within, a tensor can be made on any device. What would need its data, such as `item()`, raises."""
    with FakeTensorMode(allow_non_fake_inputs=True), cuda_autocast(autocast) if autocast else nullcontext(), Watch() as watch:
        yield watch


@contextmanager
def cuda_autocast(dtype: torch.dtype) -> Iterator[None]:
    """`torch.autocast("cuda", dtype)`, which switches itself off on a machine without one."""
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", dtype)
    try:
        yield
    finally:
        torch.clear_autocast_cache()
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])
