"""The two passes of injective attention over the tokens as operators of torch, by kernels in Triton on CUDA and ROCm.

Without Triton, on other devices, in fp64, for heads outside of 16 to 128 channels, while exporting, or with INLINE_TRITON=0
in the environment, plain torch computes the same (`ops/injective.py`).

Shapes: k (B, heads, N, d), v (B, heads, N, e), x (B, heads, M, d), matrix (B, heads, d, e), base (B, heads, e), mask (B, N).
"""

import os
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

SWITCH = "INLINE_TRITON"
HEAD_SIZES = range(16, 129)
INSTALLED = find_spec("triton") is not None
TYPES = (torch.float32, torch.float16, torch.bfloat16)


def uses_triton(*tensors: Tensor) -> bool:
    """Whether sums and maps of these head-split tensors go through the kernels."""
    if not all(t.is_cuda and t.dtype in TYPES and t.shape[3] in HEAD_SIZES for t in tensors):
        return False
    return INSTALLED and os.environ.get(SWITCH) != "0" and not torch.compiler.is_exporting()


@torch.library.custom_op("inline_attention::token_sums", mutates_args=())
def token_sums(k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """sum_j k_j, (B, heads, d), sum_j v_j, (B, heads, e), and sum_j k_j v_j^T, (B, heads, d, e), over valid tokens, in fp32."""
    from .triton_kernels import launch_sums

    return launch_sums(k, v, mask)


@torch.library.custom_op("inline_attention::token_map", mutates_args=())
def token_map(x: Tensor, matrix: Tensor, base: Tensor, mask: Tensor | None) -> Tensor:
    """base + x_i M for each valid token, zeros for the others: (B, heads, M, e) in the type of x."""
    from .triton_kernels import launch_map

    return launch_map(x, matrix, base, mask)


@token_sums.register_fake
def _(k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    sums = (k.shape[3],), (v.shape[3],), (k.shape[3], v.shape[3])
    key_sum, value_sum, outer_sum = (k.new_empty(*k.shape[:2], *shape, dtype=torch.float32) for shape in sums)
    return key_sum, value_sum, outer_sum


@token_map.register_fake
def _(x: Tensor, matrix: Tensor, base: Tensor, mask: Tensor | None) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[2], x.shape[1], matrix.shape[3]).transpose(1, 2)


def _keep_sums(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs)


def _sums_backward(ctx: Any, keys: Tensor, values: Tensor, outer: Tensor) -> tuple[Tensor, Tensor, None]:
    k, v, mask = ctx.saved_tensors
    return token_map(v, outer.mT, keys, mask), token_map(k, outer, values, mask), None


def _keep_map(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, Tensor | None], output: Tensor) -> None:
    x, matrix, _, mask = inputs
    ctx.save_for_backward(x, matrix, mask)


def _map_backward(ctx: Any, out: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
    x, matrix, mask = ctx.saved_tensors
    _, base, products = token_sums(x, out, mask)
    zero = matrix.new_zeros(matrix.shape[:3])
    return token_map(out, matrix.mT, zero, mask), products, base, None


token_sums.register_autograd(_sums_backward, setup_context=_keep_sums)
token_map.register_autograd(_map_backward, setup_context=_keep_map)
