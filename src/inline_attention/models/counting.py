"""Parameters, FLOPs and activations of a model, by torch's own counter."""

from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..compat import dispatch_mode, flop_formulas
from ..layers import InLineAttention
from ..layers.rope import Rotation
from ..lite.limits import MAX_STREAMED_PIXELS, excess, max_pixels
from ..ops.checks import check_size
from ..ops.kernels import Kernel


@dataclass(frozen=True)
class Count:
    """The cost of one image."""

    params: int
    """Parameters."""
    flops: int
    """Multiply-adds, as papers count FLOPs."""
    activations: int
    """Numbers in the outputs of matrix products, convolutions and attention."""


def count(model: nn.Module, size: int | tuple[int, int] | None = None) -> Count:
    """Count the parameters, FLOPs and activations of a model, this package's or any other, for one image; nothing is computed.

    InLine is counted by its equation, head by head, whichever form would run (the folded form has fewer products over tokens
    and more over channels). So counts are the paper's, and grow in proportion to the tokens.

    Args:
        model: anything that takes images (B, in_chans, H, W).
        size: height and width, one number for a square; None for the size that the model was made for.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {model!r}")
    shape = image_shape(model, size)
    if found := excess(shape[2], shape[1], max_pixels(MAX_STREAMED_PIXELS)):
        raise ValueError(f"size {shape[1]}, {shape[2]}: {found}")
    with torch.no_grad():
        copy = deepcopy(model).to("meta").eval()
    for module in copy.modules():
        if isinstance(module, InLineAttention):
            module.form, module.attend = "heads", partial(_equation, module.kernel)  # type: ignore[method-assign]
    counter = _Counter()
    with counter, torch.no_grad():
        copy(torch.empty(1, *shape, device="meta"))
    params = sum(parameter.numel() for parameter in model.parameters())
    return Count(params=params, flops=counter.flops // 2, activations=counter.activations)


def _equation(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, rotation: Rotation | None = None) -> Tensor:
    """q (k^T v) + (1 - q.k_bar) v_bar: equation 5, keys and values first; the scale is not counted."""
    q, k = kernel(q), kernel(k)
    q, k = (q, k) if rotation is None else rotation(q, k)
    return q @ (k.mT @ v) + (1 - q @ k.mean(2, keepdim=True).mT) * v.mean(2, keepdim=True)


def image_shape(model: nn.Module, size: int | tuple[int, int] | None = None) -> tuple[int, int, int]:
    """(C, H, W) of a model's input images: of its default size, or of another."""
    configuration: dict[str, Any] = getattr(model, "pretrained_cfg", None) or {}
    default = configuration.get("input_size", (3, 224, 224))
    channels = getattr(model, "in_chans", default[0])
    if size is None:
        height, width = getattr(model, "img_size", default[1:])
    else:
        height, width = check_size(size, "size")
    return channels, height, width


class _Counter(dispatch_mode()):  # type: ignore[misc]
    """Sums torch's own FLOP formulas, and the output sizes of the operations that have one."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = self.activations = 0
        self.formulas = flop_formulas()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        formula = self.formulas.get(func.overloadpacket)
        if formula is not None:
            self.flops += formula(*args, **(kwargs or {}), out_val=out)
            self.activations += (out[0] if isinstance(out, tuple) else out).numel()
        return out
