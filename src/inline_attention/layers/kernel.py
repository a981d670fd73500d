"""Feature maps phi for layers: the functions in `KERNELS`, and the one that has parameters."""

import torch
from torch import Tensor, nn

from ..ops.checks import check_name
from ..ops.kernels import KERNELS, Kernel, relu_affine, resolve_kernel


class ReluAffine(nn.Module):
    """phi(x) = ReLU(A x + b), one map for each head, shared by queries and keys; starts as ReLU (A = I, b = 0)."""

    def __init__(
        self, num_heads: int, head_dim: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_heads, head_dim, head_dim, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(num_heads, head_dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start as ReLU."""
        with torch.no_grad():
            self.weight.copy_(torch.eye(self.weight.shape[1]))
            self.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """(B, heads, N, d) -> (B, heads, N, d), in x's precision."""
        return relu_affine(x, self.weight.to(x.dtype), self.bias.to(x.dtype))


def make_kernel(
    kernel: str | Kernel,
    num_heads: int,
    head_dim: int,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Kernel:
    """The feature map of this name, as a module if it has parameters; a callable is returned unchanged."""
    if isinstance(kernel, str):
        check_name("kernel", kernel, KERNELS)
    if kernel == "relu_affine":
        return ReluAffine(num_heads, head_dim, device=device, dtype=dtype)
    return resolve_kernel(kernel)
