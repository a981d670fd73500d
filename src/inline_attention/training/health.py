"""When numbers go bad: which layer was the first."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


def bad(value: object) -> bool:
    """Whether a tensor holds NaN or infinity."""
    return isinstance(value, Tensor) and value.is_floating_point() and not bool(torch.isfinite(value).all())


def first_bad_layer(model: nn.Module, forward: Callable[[], Tensor]) -> str:
    """Go through the same batch again, watching what every layer gives, then what every weight was told.

    Args:
        forward: the step's forward pass, from the batch to the loss, with the chance it was run with.
    """
    found: list[str] = []
    names = dict(model.named_modules())

    def watch(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, inputs: tuple[object, ...], output: object) -> None:
            if not found and bad(output):
                whence = ", on an input that was bad already" if any(map(bad, inputs)) else ""
                found.append(f"the output of {name or type(model).__name__}{whence}")

        return hook

    weights = [name for name, parameter in model.named_parameters() if bad(parameter)]
    gradients = [name for name, parameter in model.named_parameters() if bad(parameter.grad)]
    hooks = [module.register_forward_hook(watch(name)) for name, module in names.items()]
    try:
        with torch.no_grad():
            loss = forward()
    finally:
        for hook in hooks:
            hook.remove()
    if weights:
        return f"the weight {weights[0]}"
    if found:
        return found[0]
    if bad(loss):
        return "the loss itself"
    return f"the gradient of {gradients[-1]}" if gradients else "the gradient, in another process"
