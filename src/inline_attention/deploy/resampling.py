"""Resizing and pooling as two matrix products, for what ONNX or a runtime cannot do on every size: out = A_height x A_width^T.

Along a side of n pixels that becomes m, output i is the mean of the inputs j with the weights A[i, j], rows divided by their
sums. OpenVINO ignores the antialiasing of ONNX's Resize, so that for it this is written, with the filter f of the
interpolation, stretched to the step s = max(n / m, 1) between outputs:

    A[i, j] = f((j + 1/2 - (i + 1/2) n / m) / s)

ONNX has no adaptive average pooling, and torch.onnx writes the one of the size that it traced. So for every format of ONNX:

    A[i, j] = 1 if floor(i n / m) <= j < ceil((i + 1) n / m), else 0
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

CUBIC = -0.5
"""The parameter of pillow's bicubic filter, which torch takes where it antialiases."""
Weights = Callable[[int, int, torch.device], Tensor]
"""(n, m) -> A, (m, n), its rows not yet divided."""


def pooling_as_products(program: ExportedProgram) -> ExportedProgram:
    """The same program, with matrix products in place of adaptive average pooling."""
    return _replace(program, {torch.ops.aten.adaptive_avg_pool2d.default: _pool})


def antialiasing_as_products(program: ExportedProgram) -> ExportedProgram:
    """The same program, with matrix products in place of antialiased resizing."""
    linear, cubic = torch.ops.aten._upsample_bilinear2d_aa, torch.ops.aten._upsample_bicubic2d_aa
    resize_linear, resize_cubic = _resize(_triangle), _resize(_cubic)
    return _replace(
        program,
        {linear.vec: resize_linear, linear.default: resize_linear, cubic.vec: resize_cubic, cubic.default: resize_cubic},
    )


def _replace(program: ExportedProgram, table: dict[Any, Callable[..., Tensor]]) -> ExportedProgram:
    there = {node.target for node in program.graph.nodes if node.op == "call_function"}
    used = {operation: product for operation, product in table.items() if operation in there}
    return program.run_decompositions(used) if used else program


def _pool(x: Tensor, size: Sequence[int]) -> Tensor:
    return x.mean((-2, -1), keepdim=True) if tuple(size) == (1, 1) else _products(x, size, _bins)


def _bins(n: int, m: int, device: torch.device) -> Tensor:
    places, first = torch.arange(n, device=device), torch.arange(m, device=device)[:, None]
    return ((places >= first * n // m) & (places < ((first + 1) * n + m - 1) // m)).double()


def _resize(f: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """torch's antialiased resizing with a filter; all its signatures begin like this."""

    def weights(n: int, m: int, device: torch.device) -> Tensor:
        step = torch.ones((), dtype=torch.float64, device=device) * n / m
        centres = (torch.arange(m, dtype=torch.float64, device=device) + 0.5) * step
        places = torch.arange(n, dtype=torch.float64, device=device) + 0.5
        return f((places - centres[:, None]).abs() / step.clamp(min=1))

    def resize(x: Tensor, size: Sequence[int], align_corners: bool, *scales: object) -> Tensor:
        if align_corners or any(scales):
            raise ValueError("antialiased resizing by a factor, or with aligned corners, cannot be written")
        return _products(x, size, weights)

    return resize


def _triangle(distance: Tensor) -> Tensor:
    return (1 - distance).clamp(min=0)


def _cubic(distance: Tensor) -> Tensor:
    near = ((CUBIC + 2) * distance - (CUBIC + 3)) * distance * distance + 1
    far = CUBIC * (((distance - 5) * distance + 8) * distance - 4)
    return torch.where(distance < 1, near, torch.where(distance < 2, far, torch.zeros_like(far)))


def _products(x: Tensor, size: Sequence[int], weights: Weights) -> Tensor:
    """(..., n, k) -> (..., *size)."""
    rows, columns = (weights(n, m, x.device) for n, m in zip(x.shape[-2:], size, strict=True))
    rows, columns = ((a / a.sum(1, keepdim=True)).to(x.dtype) for a in (rows, columns))
    return rows @ x @ columns.T
