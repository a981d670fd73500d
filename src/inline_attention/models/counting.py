"""Parameters, FLOPs and activations of a model, by torch's own counter."""

from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, register_flop_formula

from ..layers import InLineAttention
from ..ops.kernels import Kernel


@dataclass(frozen=True)
class Count:
    """What one picture costs."""

    params: int
    """Parameters."""
    flops: int
    """Multiply-adds, as papers count FLOPs."""
    activations: int
    """Numbers that matrix products, convolutions and attention give out."""


def count(model: nn.Module, size: int | tuple[int, int] | None = None) -> Count:
    """Count a model, this package's or any other, for one picture; nothing is computed.

    InLine is counted as its equation is written, head by head, whichever form would run (the folded form has fewer products
    on the token axis and more of channels alone). So counts are the paper's, and grow in proportion to the tokens.

    Args:
        model: anything that takes pictures (B, in_chans, H, W).
        size: height and width, one number for a square; None for the size that the model is made for.
    """
    shape = picture_shape(model, size)
    with torch.no_grad():
        ghost = deepcopy(model).to("meta").eval()
    for module in ghost.modules():
        if isinstance(module, InLineAttention):
            module.form, module.attend = "heads", partial(_equation, module.kernel)  # type: ignore[method-assign]
    counter = _Counter()
    with counter, torch.no_grad():
        ghost(torch.empty(1, *shape, device="meta"))
    params = sum(parameter.numel() for parameter in model.parameters())
    return Count(params=params, flops=counter.flops // 2, activations=counter.activations)


def _equation(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """q (k^T v) + (1 - q.k_bar) v_bar: equation 5, keys and values first; the scale is not counted."""
    q, k = kernel(q), kernel(k)
    return q @ (k.mT @ v) + (1 - q @ k.mean(2, keepdim=True).mT) * v.mean(2, keepdim=True)


def picture_shape(model: nn.Module, size: int | tuple[int, int] | None = None) -> tuple[int, int, int]:
    """(C, H, W) of the pictures that a model is made for, or of those of another size."""
    configuration: dict[str, Any] = getattr(model, "pretrained_cfg", None) or {}
    made_for = configuration.get("input_size", (3, 224, 224))
    channels = getattr(model, "in_chans", made_for[0])
    if size is None:
        height, width = getattr(model, "img_size", made_for[1:])
    else:
        height, width = (size, size) if isinstance(size, int) else size
    return channels, height, width


def _flops(_: Any, left: Any, right: Any, *arguments: Any, **options: Any) -> int:
    """FLOPs of a product that adds itself to its result: torch's counter knows `addmm` and `baddbmm`, but not these."""
    batch = left[0] if len(left) == 3 else 1
    return int(2 * batch * left[-2] * left[-1] * right[-1])


for _product in (torch.ops.aten.addmm_, torch.ops.aten.baddbmm_):
    if _product not in flop_registry:
        register_flop_formula(_product)(_flops)


class _Counter(TorchDispatchMode):
    """Sums torch's own FLOP formulas, and the sizes of what the operations that have one give out."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = self.activations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func.overloadpacket)
        if formula is not None:
            self.flops += formula(*args, **(kwargs or {}), out_val=out)
            self.activations += (out[0] if isinstance(out, tuple) else out).numel()
        return out
