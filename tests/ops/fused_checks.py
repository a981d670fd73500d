"""What `test_fused.py` runs in a process of its own, on the CPU, by Triton's interpreter: prints {case: error or None}."""

import json
import os
import sys
import traceback
from collections.abc import Callable
from functools import partial

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

import torch
from torch.library import opcheck

from inline_attention import InjectiveState, injective_linear_attention
from inline_attention.ops import fused, injective

SIZES = {
    "several splits": (1, 2, 300, 600, 32, 32),
    "odd, of two widths": (2, 1, 65, 129, 40, 24),
    "one token": (1, 1, 1, 1, 16, 16),
    "widest": (1, 1, 33, 70, 128, 128),
}
"""(B, heads, M, N, d, e)."""
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3}
"""Relative to the largest value."""


def with_kernels(function: Callable, *inputs, **options):
    """As on CUDA."""
    plain, injective.uses_triton = injective.uses_triton, lambda *tensors: all(t.dtype is not torch.float64 for t in tensors)
    try:
        return function(*inputs, **options)
    finally:
        injective.uses_triton = plain


def inputs(size: tuple[int, ...], dtype: torch.dtype, masked: bool) -> tuple[list[torch.Tensor], torch.Tensor | None]:
    """q, k, v as projections give them: tokens first, heads cut from the channels."""
    batch, heads, queries, keys, d, e = size
    shapes = ((queries, d), (keys, d), (keys, e))
    found = [torch.randn(batch, n, heads, c).to(dtype).transpose(1, 2).requires_grad_() for n, c in shapes]
    mask = torch.rand(batch, keys) > 0.3 if masked else None
    if mask is not None:
        mask[-1] = batch == 1  # an image without a valid token
    return found, mask


def same(ours: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """Within the tolerance, relative to the largest value; what cancels to nothing is compared with 0.1."""
    assert ours.shape == expected.shape
    assert (ours.double() - expected).abs().max() <= tolerance * expected.abs().max().clamp(min=0.1)


def op(size, dtype, masked) -> None:
    """Outputs and gradients against plain torch in fp64."""
    given, mask = inputs(size, dtype, masked)
    exact = [t.detach().double().requires_grad_() for t in given]
    out = with_kernels(injective_linear_attention, *given, mask=mask)
    expected = injective_linear_attention(*exact, mask=mask)
    assert out.dtype is dtype
    same(out, expected, TOLERANCE[dtype])
    weights = torch.randn_like(expected)
    ours = with_kernels(torch.autograd.grad, (out * weights).sum(), given)
    for mine, exactly in zip(ours, torch.autograd.grad((expected * weights).sum(), exact), strict=True):
        same(mine, exactly, TOLERANCE[dtype])


def state() -> None:
    """States of parts add up to that of the whole; gradients of what is spread to all tokens."""
    (q, k, v), mask = inputs((2, 2, 40, 100, 32, 16), torch.float32, masked=True)
    exact = [t.detach().double().requires_grad_() for t in (q, k, v)]

    def attend(q, k, v):
        parts = [slice(0, 37), slice(37, 100)]
        total = sum(InjectiveState.from_tokens(k[:, :, part], v[:, :, part], mask[:, part]) for part in parts)
        return total.attend(q).sum()

    ours, expected = with_kernels(attend, q, k, v), attend(*exact)
    for mine, exactly in zip(torch.autograd.grad(ours, (q, k, v)), torch.autograd.grad(expected, exact), strict=True):
        same(mine, exactly, 2e-6)


def operators() -> None:
    """torch's own checks: schema, shapes without data, gradients, tracing."""
    (q, k, v), mask = inputs((2, 2, 20, 40, 16, 32), torch.float32, masked=True)
    opcheck(fused.token_sums, (k, v, mask))
    opcheck(fused.token_map, (q, torch.randn(2, 2, 16, 32), torch.randn(2, 2, 32), None))


def cases() -> dict[str, Callable[[], None]]:
    """By name."""
    found = {
        f"{name}, {str(dtype).removeprefix('torch.')}{', masked' if masked else ''}": partial(op, size, dtype, masked)
        for name, size in SIZES.items()
        for dtype in TOLERANCE
        for masked in (False, True)
    }
    return found | {"states": state, "operators": operators}


def main() -> None:
    """Run all cases."""
    results = {}
    for name, case in cases().items():
        torch.manual_seed(0)
        try:
            case()
            results[name] = None
        except Exception:
            results[name] = traceback.format_exc()
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
