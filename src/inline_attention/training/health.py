"""When numbers go bad: which layer was the first."""

from collections.abc import Callable, Sequence

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn


def bad(value: object) -> bool:
    """Whether a tensor holds NaN or infinity."""
    return isinstance(value, Tensor) and value.is_floating_point() and not bool(torch.isfinite(value).all())


def first_bad_layer(model: nn.Module, losses: Sequence[Callable[[nn.Module], Tensor]]) -> str:
    """Go through the same step again, watching what every layer gives, then what every weight is told.

    All processes do the same, whatever they find, and agree on what is said: the find of the first that found something.

    Args:
        model: the bare model, so that no process waits for another one's gradients.
        losses: the forward passes of the step, each from its batch to its loss, with the chance it was run with.
    """
    found = [f"the weight {name}" for name, parameter in model.named_parameters() if bad(parameter)][:1]

    def watch(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, inputs: tuple[object, ...], output: object) -> None:
            if not found and bad(output):
                whence = ", on an input that was bad already" if any(map(bad, inputs)) else ""
                found.append(f"the output of {name or type(model).__name__}{whence}")

        return hook

    hooks = [module.register_forward_hook(watch(name)) for name, module in model.named_modules()]
    model.zero_grad()  # gradients of the step itself were scaled, and are bad throughout
    try:
        for forward in losses:
            loss = forward(model)
            if not found and bad(loss):
                found.append("the loss itself")
            loss.backward()
            told = [name for name, parameter in model.named_parameters() if bad(parameter.grad)]
            if not found and told:
                found.append(f"the gradient of {told[-1]}")
    finally:
        for hook in hooks:
            hook.remove()
    everyone = gather_object(found)
    return str(everyone[0]) if everyone else "gone when tried again"
