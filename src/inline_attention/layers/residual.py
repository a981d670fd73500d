"""The sum of a residual stream and a linear map, made by the matrix product itself.

A product can add itself to what is already in its result. If that is the residual with the bias on top, the bias need not be
laid out first, nor the residual be added afterwards: two passes over the tokens less.
"""

import torch
from torch import Tensor, nn

from ..ops.precision import autocast_is_on


def add_linear(residual: Tensor | None, x: Tensor, linear: nn.Module) -> Tensor:
    """residual + linear(x), (..., C) from x (..., features); linear(x) alone if there is no residual.

    What is more than a plain `nn.Linear` is called as it is.
    """
    if residual is None:
        alone: Tensor = linear(x)
        return alone
    if not isinstance(linear, nn.Linear) or not is_plain(linear) or not can_accumulate(residual, x):
        return residual + linear(x)
    rows = residual.flatten(0, -2)
    total = rows.clone() if linear.bias is None else rows + linear.bias
    return total.addmm_(x.flatten(0, -2), linear.weight.t()).view_as(residual)


def can_accumulate(residual: Tensor, x: Tensor) -> bool:
    """Whether a product of x may add itself to the residual.

    Not under autocast, which decides about the product's precision, and not in a traced graph, whose compiler fuses by itself.
    """
    return not (torch.compiler.is_compiling() or autocast_is_on(x.device)) and x.dtype is residual.dtype


def is_plain(module: nn.Module) -> bool:
    """Whether a linear map does nothing but multiply and add, and no one is watching."""
    usual = torch.compiler.is_compiling() or type(getattr(module, "weight", None)) in (nn.Parameter, Tensor)
    return type(module) is nn.Linear and usual and not is_watched(module)


def is_watched(module: nn.Module) -> bool:
    """Whether someone has hooked on to what goes in or comes out, forward or backward."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks)
