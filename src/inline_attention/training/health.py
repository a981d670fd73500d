"""When numbers go bad: which layer was the first."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


def bad(value: object) -> bool:
    """Whether a tensor holds NaN or infinity."""
    return isinstance(value, Tensor) and value.is_floating_point() and not bool(torch.isfinite(value).all())


def first_bad_layer(model: nn.Module, losses: Sequence[Callable[[], Tensor]]) -> str:
    """Go through the same step again, watching what every layer gives, then what every weight is told.

    Args:
        model: the bare model.
        losses: the forward passes of the step, each from its batch to its loss, with the chance it was run with.
    """
    weights = [name for name, parameter in model.named_parameters() if bad(parameter)]
    if weights:
        return f"the weight {weights[0]}"
    found: list[str] = []

    def watch(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, inputs: tuple[object, ...], output: object) -> None:
            if not found and bad(output):
                whence = ", on an input that was bad already" if any(map(bad, inputs)) else ""
                found.append(f"the output of {name or type(model).__name__}{whence}")

        return hook

    hooks = [module.register_forward_hook(watch(name)) for name, module in model.named_modules()]
    try:
        for forward in losses:
            model.zero_grad()  # gradients of the step itself were scaled, and are bad throughout
            loss = forward()
            if found or bad(loss):
                return found[0] if found else "the loss itself"
            loss.backward()
            told = [name for name, parameter in model.named_parameters() if bad(parameter.grad)]
            if told:
                return f"the gradient of {told[-1]}"
    finally:
        for hook in hooks:
            hook.remove()
    return "in another process, or gone when tried again"
