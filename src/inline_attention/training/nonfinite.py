"""When a loss or gradient is NaN or infinite: which layer was the first."""

from collections.abc import Callable, Sequence

from accelerate.utils import gather_object
from torch import Tensor, nn

from ..models.finite import nonfinite


def first_nonfinite_layer(model: nn.Module, forwards: Sequence[Callable[[nn.Module], Tensor]]) -> str:
    """Repeat the step, checking the output of every layer, then the gradient of every weight.

    All processes do the same, whatever they find, and report the find of the first process that found something.

    Args:
        model: the bare model, so that no process waits for another one's gradients.
        forwards: the forward passes of the step, each from its batch to its loss, with the randomness it ran with.
    """
    found = [f"the weight {name}" for name, parameter in model.named_parameters() if nonfinite(parameter)][:1]

    def watch(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, inputs: tuple[object, ...], output: object) -> None:
            if not found and nonfinite(output):
                cause = ", on an input that was bad already" if any(map(nonfinite, inputs)) else ""
                found.append(f"the output of {name or type(model).__name__}{cause}")

        return hook

    hooks = [module.register_forward_hook(watch(name)) for name, module in model.named_modules()]
    model.zero_grad()  # gradients of the step itself were scaled, and are bad throughout
    try:
        for forward in forwards:
            loss = forward(model)
            if not found and nonfinite(loss):
                found.append("the loss itself")
            loss.backward()
            bad = [name for name, parameter in model.named_parameters() if nonfinite(parameter.grad)]
            if not found and bad:  # gradients flow from the last layer to the first
                found.append(f"the gradient of {bad[-1]}")
    finally:
        for hook in hooks:
            hook.remove()
    everyone = gather_object(found)
    return str(everyone[0]) if everyone else "not reproduced when the step was repeated"
