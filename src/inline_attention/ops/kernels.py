"""Feature maps phi, as the paper names them: (B, heads, N, d) -> the same shape."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from .checks import check_name

Kernel = Callable[[Tensor], Tensor]


class Rotation(Protocol):
    """Rotates queries and keys, after the feature map, by their positions: to the same shapes. `layers/rope.py` makes it."""

    @property
    def in_divisor(self) -> bool:
        """Whether the divisor is made of rotated queries and keys too."""
        ...

    def __call__(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Both, rotated."""
        ...


def rotate(q: Tensor, k: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries and keys for the numerator, and those for the divisor, after the feature map."""
    if rotation is None:
        return q, k, q, k
    rotated_q, rotated_k = rotation(q, k)
    return (rotated_q, rotated_k, rotated_q, rotated_k) if rotation.in_divisor else (rotated_q, rotated_k, q, k)


def identity(x: Tensor) -> Tensor:
    """phi(x) = x: the paper's default, and its best. Only injective attention is stable with it."""
    return x


def relu(x: Tensor) -> Tensor:
    """phi(x) = max(x, 0). Not injective: all negative numbers become 0."""
    return torch.relu(x)


def relu_affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """phi(x) = max(A x + b, 0) with one learned map per head, shared by queries and keys.

    Args:
        x: (B, heads, N, d).
        weight: A, (heads, d, d): row i of A makes coordinate i.
        bias: b, (heads, d).
    """
    return torch.relu(x @ weight.mT + bias.unsqueeze(1))


def leaky_relu(x: Tensor) -> Tensor:
    """phi(x) = x where positive, 0.01 x elsewhere."""
    return torch.nn.functional.leaky_relu(x, 0.01)


def exp(x: Tensor) -> Tensor:
    """phi(x) = exp(0.2 x)."""
    return torch.exp(0.2 * x)


KERNELS: dict[str, Callable[..., Tensor]] = {
    "identity": identity,
    "relu": relu,
    "relu_affine": relu_affine,
    "leaky_relu": leaky_relu,
    "exp": exp,
}


def resolve_kernel(kernel: str | Kernel) -> Kernel:
    """The kernel of this name; a callable is returned unchanged."""
    if callable(kernel):
        return kernel
    if not isinstance(kernel, str):
        raise ValueError(f"kernel must be a name ({', '.join(KERNELS)}) or a function, got {kernel!r}")
    check_name("kernel", kernel, KERNELS)
    if kernel == "relu_affine":
        raise ValueError(
            "kernel 'relu_affine' has learned parameters: pass functools.partial(relu_affine, weight=..., bias=...), "
            "or use a layer, which owns them"
        )
    return KERNELS[kernel]
