"""Sums over tokens: which tokens count, in which precision, and how a linear map is added to the residual stream.

Sums are kept in at least fp32, whatever the inputs are and whether or not autocast is on. A mask is (B, N), True where a key
is valid; masked tokens are left out of every sum.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from ..compat import has_hooks

# Precision


def to_fp32(tensor: Tensor) -> Tensor:
    """The tensor in fp32 if it is in a half-precision format, otherwise unchanged."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def autocast_is_on(device: torch.device) -> bool:
    """Whether matrix products on this device are being cast to half precision."""
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A context in which matrix products keep the precision of their arguments."""
    return torch.autocast(device.type, enabled=False) if autocast_is_on(device) else nullcontext()


# Batches


def is_one(batch: int) -> bool:
    """Whether there is one image, so that batch and heads change places without a copy. A symbol of a graph is not one."""
    return isinstance(batch, int) and batch == 1


# Masks


def zero_masked(tokens: Tensor, mask: Tensor | None) -> Tensor:
    """`tokens` with zeros where the mask is False.

    Args:
        tokens: (B, N, C) or (B, heads, N, d). Even NaN in a masked position does not survive.
        mask: (B, N), or None for all valid.
    """
    if mask is None:
        return tokens
    valid = mask.unsqueeze(-1) if tokens.ndim == 3 else mask[:, None, :, None]
    return tokens.masked_fill(~valid, 0)


def count_valid(tokens: Tensor, mask: Tensor | None) -> Tensor:
    """How many of the tokens (B, ..., N, d) of each image are valid: (B,), in their dtype if it can count, else in fp32."""
    dtype = torch.promote_types(tokens.dtype, torch.float32)
    if mask is None:
        return torch.full((tokens.shape[0],), tokens.shape[-2], dtype=dtype, device=tokens.device)
    return mask.sum(1).to(dtype)


def mean_valid(tokens: Tensor, mask: Tensor | None) -> Tensor:
    """The mean of the valid tokens: (B, N, C), zero where masked, -> (B, C) in fp32 or better; zero where none is valid."""
    dtype = torch.promote_types(tokens.dtype, torch.float32)
    if mask is None:
        return tokens.mean(1, dtype=dtype)
    return tokens.sum(1, dtype=dtype) / mask.sum(1, keepdim=True).clamp(min=1)


# The residual stream


def add_linear(residual: Tensor | None, x: Tensor, linear: nn.Module) -> Tensor:
    """residual + linear(x), (..., C) from x (..., features); linear(x) alone if there is no residual.

    A matrix product can add itself to its result. If that is the residual plus the bias, the bias need not be laid out first,
    nor the residual be added afterwards: two passes over the tokens less. Anything but a plain `nn.Linear` is called as usual.
    """
    if residual is None:
        alone: Tensor = linear(x)
        return alone
    if not isinstance(linear, nn.Linear) or not is_plain(linear) or not can_accumulate(residual, x):
        return residual + linear(x)
    return add_product(residual, x, linear.weight.t(), linear.bias)


def add_product(residual: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """residual + x weight + bias, for a weight that is transposed already, (features, C)."""
    rows = residual.flatten(0, -2)
    total = rows.clone() if bias is None else rows + bias
    return total.addmm_(x.flatten(0, -2), weight).view_as(residual)


def linear_rows(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x weight + bias, (B, N, C') from x (B, N, C), for a weight that is transposed already, (C, C')."""
    rows = x.flatten(0, 1)
    out = rows @ weight if bias is None else torch.addmm(bias, rows, weight)
    return out.view(*x.shape[:2], weight.shape[1])


def can_accumulate(residual: Tensor, x: Tensor) -> bool:
    """Whether a product of x may add itself to the residual.

    Not under autocast, which chooses the product's precision, and not in a traced graph, whose compiler does the fusing.
    """
    return not (torch.compiler.is_compiling() or autocast_is_on(x.device)) and x.dtype is residual.dtype


def is_plain(module: nn.Module) -> bool:
    """Whether a linear map only multiplies and adds: no adapter, no quantised or parametrised weight, no hooks."""
    usual = torch.compiler.is_compiling() or type(getattr(module, "weight", None)) in (nn.Parameter, Tensor)
    return type(module) is nn.Linear and usual and not has_hooks(module)
