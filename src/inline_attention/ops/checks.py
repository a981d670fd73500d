"""Checks of arguments: a wrong value raises a ValueError of one sentence with the value in it."""

from collections.abc import Collection, Sequence
from math import prod
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

Grid = tuple[int, ...]
"""(L,), (H, W) or (D, H, W): always passed, never guessed from a token count."""


def check_name(kind: str, name: str, known: Collection[str]) -> None:
    """Raise unless `name` is one of the known names of this kind of thing."""
    if name not in known:
        raise ValueError(f"unknown {kind} {name!r}; known: {', '.join(known)}")


def available_devices() -> list[str]:
    """'cpu', and the name of this machine's accelerator if it has one."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return ["cpu", *([] if accelerator is None else [str(accelerator)])]


def check_device(name: str) -> None:
    """Raise unless `name` is 'auto' or one of the available devices."""
    if name not in ("auto", *available_devices()):
        raise ValueError(f"unknown device {name!r}; this machine has: {', '.join(available_devices())}")


def find_device(name: str) -> torch.device:
    """The device of that name, after a tensor was put on it; 'auto' is the accelerator, or the CPU if there is none."""
    try:
        device = torch.device(available_devices()[-1] if name == "auto" else name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError):
        check_device(name)
        raise
    return device


def check_size(size: Any, name: str) -> tuple[int, int]:
    """(height, width) of a size, one number for a square; raise unless they are positive whole numbers."""
    sides = size if isinstance(size, tuple | list | torch.Size) else (size, size)
    if len(sides) != 2 or not all(is_whole(side) and side > 0 for side in sides):
        raise ValueError(f"{name} must be one or two positive whole numbers, got {size!r}")
    return int(sides[0]), int(sides[1])


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number, Python's or numpy's, and not a boolean."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_tensor(name: str, x: Any) -> None:
    """Raise unless x is a dense tensor of real floating-point numbers."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor, got {x!r:.100}")
    if x.layout is not torch.strided:
        raise ValueError(f"{name} must be a dense tensor, got one of layout {x.layout}: call its to_dense()")
    if not x.is_floating_point():
        raise ValueError(f"{name} must hold floating-point numbers, got {x.dtype}")


def check_matches(name: str, x: Tensor, module: nn.Module) -> None:
    """Raise if a module cannot take x by its first weights: another dtype, outside of autocast, or no numbers (meta)."""
    like = None if torch.compiler.is_compiling() else next(module.parameters(), None)
    if like is None:
        return
    if x.is_meta != like.is_meta:
        raise ValueError(f"{name} is on {x.device}, and the weights are on {like.device}: move one of them")
    computes = like.is_floating_point() and like.element_size() > 1  # weights of 8 bits are converted by their layers
    if x.dtype != like.dtype and computes and not torch.is_autocast_enabled(x.device.type):
        raise ValueError(f"{name} is {x.dtype}, and the weights are {like.dtype}: convert one of them")


def check_heads(dim: int, num_heads: int) -> None:
    """Raise unless `num_heads` heads share `dim` channels evenly."""
    if num_heads < 1 or dim < 1 or dim % num_heads:
        raise ValueError(f"dim={dim} cannot be divided into num_heads={num_heads} heads of equal size")


def check_head_split(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise unless q is (B, heads, M, d), k (B, heads, N, d) and v (B, heads, N, e), with M and N at least 1."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, tensor)
        if tensor.ndim != 4:
            raise ValueError(f"{name} must be (batch, heads, tokens, head_dim), got {tuple(tensor.shape)}")
        if tensor.shape[2] == 0:
            raise ValueError(f"{name} has no tokens: {tuple(tensor.shape)}")
    if q.shape[:2] != k.shape[:2] or q.shape[3] != k.shape[3]:
        raise ValueError(f"q {tuple(q.shape)} and k {tuple(k.shape)} must agree in batch, heads and head_dim")
    if k.shape[:3] != v.shape[:3]:
        raise ValueError(f"k {tuple(k.shape)} and v {tuple(v.shape)} must agree in batch, heads and tokens")
    if len({tensor.dtype is torch.float64 for tensor in (q, k, v)}) > 1:  # the others are summed in fp32
        raise ValueError(f"q, k and v must agree in dtype, got {q.dtype}, {k.dtype} and {v.dtype}")
    if len({tensor.is_meta for tensor in (q, k, v)}) > 1:
        raise ValueError(f"q, k and v must be on one device, got {q.device}, {k.device} and {v.device}")


def check_tokens(name: str, x: Tensor, dim: int) -> None:
    """Raise unless x is (B, N, dim) with at least one token."""
    check_tensor(name, x)
    if x.ndim != 3:
        raise ValueError(f"{name} must be (batch, tokens, channels), got {tuple(x.shape)}")
    if x.shape[1] == 0:
        raise ValueError(f"{name} has no tokens: {tuple(x.shape)}")
    if x.shape[2] != dim:
        raise ValueError(f"{name} has {x.shape[2]} channels, the layer was built for {dim}")


def check_mask(mask: Tensor | None, batch: int, tokens: int) -> None:
    """Raise unless the mask is absent or boolean and (B, N)."""
    if mask is None:
        return
    if not isinstance(mask, Tensor) or mask.dtype is not torch.bool:
        raise ValueError(f"mask must be a boolean tensor, True where a token is valid, got {getattr(mask, 'dtype', mask)}")
    if mask.shape != (batch, tokens):
        raise ValueError(f"mask must be (batch, tokens) = ({batch}, {tokens}) over the keys, got {tuple(mask.shape)}")


def check_grid(grid: Grid, tokens: int, num_prefix_tokens: int = 0) -> None:
    """Raise unless prefix tokens and grid account for every token."""
    whole = isinstance(grid, tuple | list) and all(isinstance(side, int | torch.SymInt) for side in grid)
    if not whole or not 1 <= len(grid) <= 3:
        raise ValueError(f"grid must be a tuple of 1, 2 or 3 whole numbers, such as (H, W), got {grid!r}")
    if any(side < 1 for side in grid):
        raise ValueError(f"every side of the grid must be at least 1, got {tuple(grid)}")
    if num_prefix_tokens < 0:
        raise ValueError(f"num_prefix_tokens must not be negative, got {num_prefix_tokens}")
    if num_prefix_tokens + prod(grid) != tokens:
        raise ValueError(
            f"grid {tuple(grid)} has {prod(grid)} tokens, and with num_prefix_tokens={num_prefix_tokens} "
            f"that is not the {tokens} of the sequence"
        )


def check_queries(queries: Sequence[int] | Tensor, x: Tensor) -> Tensor:
    """Indices of tokens of x, (B, M, C), as a tensor; raise unless they are whole numbers from 0 to M - 1."""
    chosen = torch.as_tensor(queries, device=x.device)
    if chosen.ndim != 1 or chosen.numel() == 0 or chosen.is_floating_point() or chosen.dtype is torch.bool:
        raise ValueError(f"queries must be a list of token indices, got {queries!r}")
    if int(chosen.min()) < 0 or int(chosen.max()) >= x.shape[1]:
        raise ValueError(f"queries {chosen.tolist()} are not all within the {x.shape[1]} tokens of x")
    return chosen
