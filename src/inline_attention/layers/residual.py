"""The sum of a residual stream and a linear map, made by the matrix product itself.

A product can add itself to what is already in its result. If that is the residual with the bias on top, the bias need not be
laid out first, nor the residual be added afterwards: two passes over the tokens less.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import register_flop_formula

from ..ops.precision import autocast_is_on


def add_linear(residual: Tensor | None, x: Tensor, linear: nn.Module) -> Tensor:
    """residual + linear(x), (..., C) from x (..., features); linear(x) alone if there is no residual.

    What is more than a plain `nn.Linear` is called as it is. So is everything under autocast, which decides about the product's
    precision, and in a traced graph, where the compiler fuses sums by itself.
    """
    if residual is None:
        alone: Tensor = linear(x)
        return alone
    hindered = torch.compiler.is_compiling() or autocast_is_on(x.device) or x.dtype is not residual.dtype
    if hindered or not isinstance(linear, nn.Linear) or not is_plain(linear):
        return residual + linear(x)
    rows = residual.flatten(0, -2)
    total = rows.clone() if linear.bias is None else rows + linear.bias
    return total.addmm_(x.flatten(0, -2), linear.weight.t()).view_as(residual)


def is_plain(module: nn.Module) -> bool:
    """Whether a linear map does nothing but multiply and add, and no one is watching."""
    return type(module) is nn.Linear and not is_watched(module)


def is_watched(module: nn.Module) -> bool:
    """Whether someone has hooked on to what goes in or comes out."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


@register_flop_formula([torch.ops.aten.addmm_, torch.ops.aten.baddbmm_])
def _flops(_: Any, left: Any, right: Any, *arguments: Any, **options: Any) -> int:
    """FLOPs of a product that adds itself to its result: torch's counter knows `addmm` and `baddbmm`, but not these."""
    batch = left[0] if len(left) == 3 else 1
    return int(2 * batch * left[-2] * left[-1] * right[-1])
