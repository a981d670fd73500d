"""The yardstick of a case: one 1024 x 1024 x 1024 matrix product, whose rate a model's is held against."""

from collections.abc import Callable

import torch

SIDE = 1024
FLOPS = 2 * SIDE**3
"""Multiplications and additions of one product."""


def product(dtype: torch.dtype, device: torch.device) -> Callable[[], object]:
    """The product as a contender."""
    a, b = (torch.randn(SIDE, SIDE, device=device).to(dtype) for _ in range(2))
    return lambda: a @ b
