"""ViT^3's test-time training: one step of gradient descent on the keys and values of an image, and the trained inner model.

The inner model has a gated linear unit for each head, q -> (q W1) * SiLU(q W2), and a 3 x 3 depthwise convolution with kernels
W3 on d channels. The loss is -(s/N) sum_j v_hat_j . v_j with v_hat what the inner model makes of the keys; the rate is 1, and
the gradient of each output channel is divided by 1 plus its length.

Gradients are sums over tokens, and are returned without the factor s / N: those of bands of an image add.

Shapes: k, v (B, heads, N, d) with zeros where masked; w1, w2 (heads, d, d), rows are inputs; w3 (d, *kernel_size).
"""

from collections.abc import Sequence
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from .checks import Grid


def unit_gradients(k: Tensor, v: Tensor, w1: Tensor, w2: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of - sum_j v_hat_j . v_j with respect to W1 and W2, (B, heads, d, d) each."""
    a, b = k @ w1, k @ w2
    sigmoid = torch.sigmoid(b)
    return -(k.mT @ (v * b * sigmoid)), -(k.mT @ (v * a * sigmoid * (1 + b * (1 - sigmoid))))


def kernel_gradient(k: Tensor, v: Tensor, kernel_size: Sequence[int], grid: Grid) -> Tensor:
    """The same with respect to W3, (B, d, *kernel_size), from k and v on a grid, (B, N, d)."""
    padding = [zeros for size in reversed(kernel_size) for zeros in (size // 2, size // 2)]
    keys, values = F.pad(k.unflatten(1, grid), (0, 0, *padding)), v.unflatten(1, grid)
    sums = []
    for tap in product(*map(range, kernel_size)):
        window = keys
        for axis, (start, length) in enumerate(zip(tap, grid, strict=True), start=1):
            window = window.narrow(axis, start, length)
        sums.append((window * values).flatten(1, -2).sum(1))  # (B, d)
    return -torch.stack(sums, -1).unflatten(-1, tuple(kernel_size))


def descend(weight: Tensor, gradient: Tensor, inputs: int) -> Tensor:
    """W - G / (1 + |G|), lengths over the inputs of each output channel, an axis."""
    return weight - gradient / (1 + torch.linalg.vector_norm(gradient, dim=inputs, keepdim=True))
