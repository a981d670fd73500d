"""Depthwise convolution of tokens on their grid, with kernels that may differ from image to image.

Two forms of one function. `grouped_convolution` hands the whole batch to one grouped convolution in channels-last layout,
which is the fastest form. Its group count is B * C, which an exported graph with a dynamic batch cannot express;
`shifted_convolution` is a sum of shifted products that exports everywhere.

Shapes: v (B, N, C) with N = prod(grid); kernels (B, C, *kernel_size) and bias (B, C), or both with a batch of 1 when
all images share them.
The convolution is a cross-correlation with zero padding that keeps the grid (an even kernel reaches one
position further after a token than before it, like torch's `padding="same"`).
"""

from itertools import product
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from .checks import Grid, check_grid
from .sums import is_one


def local_convolution(v: Tensor, kernels: Tensor, grid: Grid, *, bias: Tensor | None = None) -> Tensor:
    """out[b, i, c] = bias[b, c] + sum over taps t of kernels[b, c, t] v[b, i + t - centre, c]: (B, N, C).

    Shifted in an exported graph, and in half precision off the CPU, where grouped convolutions are reported to be slow (not
    measured). Grouped otherwise, in compiled graphs too: on a CPU the compiler made the shifted form several times slower. So
    `torch.compile` makes a graph for each batch size.
    """
    check_grid(grid, v.shape[1])
    if kernels.ndim != 2 + len(grid) or kernels.shape[0] not in (1, v.shape[0]) or kernels.shape[1] != v.shape[2]:
        raise ValueError(
            f"kernels {tuple(kernels.shape)} do not fit tokens {tuple(v.shape)} on grid {tuple(grid)}; "
            f"they must be (batch or 1, channels, one size for each of {len(grid)} sides)"
        )
    if bias is not None and bias.shape != kernels.shape[:2]:
        raise ValueError(
            f"bias {tuple(bias.shape)} does not fit kernels {tuple(kernels.shape)}; it must be (batch or 1, channels)"
        )
    half = v.dtype in (torch.float16, torch.bfloat16)
    if torch.compiler.is_exporting() or (half and not v.is_cpu) or v.shape[0] == 0:
        return shifted_convolution(v, kernels, grid, bias=bias)
    return grouped_convolution(v, kernels, grid, bias=bias)


def tokens_first(v: Tensor) -> Tensor:
    """The same (B, N, C) tokens laid out in memory as (N, B, C), which `grouped_convolution` uses without a copy."""
    return v if is_one(v.shape[0]) else v.transpose(0, 1).contiguous().transpose(0, 1)


def grouped_convolution(v: Tensor, kernels: Tensor, grid: Grid, *, bias: Tensor | None = None) -> Tensor:
    """One convolution for the whole batch, folded into the channels: in channels-last layout tokens need no transposition.

    The result may be a strided view, with batch and tokens swapped in memory.
    """
    batch, tokens, channels = v.shape
    bias = None if bias is None else bias.flatten()
    if len(grid) == 1:  # there is no channels-last layout for one side: take it as an image one pixel high
        grid, kernels = (1, *grid), kernels.unsqueeze(2)
    if kernels.shape[0] == 1:
        image = v.reshape(batch, *grid, channels).movedim(-1, 1)
        out = _depthwise(image, kernels.transpose(0, 1), bias)
        return out.movedim(1, -1).reshape(batch, tokens, channels)
    image = v.transpose(0, 1).reshape(1, *grid, batch * channels).movedim(-1, 1)
    out = _depthwise(image, kernels.flatten(0, 1).unsqueeze(1), bias)
    return out.movedim(1, -1).reshape(tokens, batch, channels).transpose(0, 1)


def _depthwise(image: Tensor, kernels: Tensor, bias: Tensor | None) -> Tensor:
    """torch's own depthwise convolution, of images (B, C, *grid) with kernels (C, 1, *kernel_size), keeping the grid."""
    kernel_size = kernels.shape[2:]
    convolution = F.conv2d if len(kernel_size) == 2 else F.conv3d
    padding = [size // 2 for size in kernel_size]
    if any(size % 2 == 0 for size in kernel_size):
        image, padding = F.pad(image, _padding(kernel_size)), [0] * len(kernel_size)
    return convolution(image, kernels, bias, padding=padding, groups=image.shape[1])


def _padding(kernel_size: tuple[int, ...]) -> list[int]:
    """Zeros before and after each side, last side first, as `F.pad` takes them."""
    return [zeros for size in reversed(kernel_size) for zeros in ((size - 1) // 2, size // 2)]


def shifted_convolution(v: Tensor, kernels: Tensor, grid: Grid, *, bias: Tensor | None = None) -> Tensor:
    """One multiply-add a tap on a zero-padded map."""
    kernel_size = kernels.shape[2:]
    image = F.pad(v.unflatten(1, grid), (0, 0, *_padding(kernel_size)))
    taps = kernels.flatten(2).mT.unflatten(1, (-1, *(1,) * len(grid)))  # (B or 1, taps, 1 for each side, C)
    out = (torch.zeros_like(v) if bias is None else bias.unsqueeze(1).expand_as(v)).unflatten(1, grid)
    for number, tap in enumerate(product(*map(range, kernel_size))):
        window = image
        for axis, (start, length) in enumerate(zip(tap, grid, strict=True), start=1):
            window = window.narrow(axis, start, length)
        out = out + window * taps[:, number]
    return out.reshape(v.shape[0], prod(grid), v.shape[2])
