"""Gradients of parameters and of inputs, added up while a model is gone back over part by part."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..ops.sums import to_fp32
from .row_share import RowShare


class ParameterGradients:
    """The gradients of a model's parameters, in fp32 or better until they are asked for.

    Args:
        parameters: those that learn.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = parameters
        self._sums: dict[nn.Parameter, Tensor] = {}

    def go_back(
        self,
        module: nn.Module | None,
        outputs: Sequence[Tensor],
        gradients: Sequence[Tensor],
        inputs: Sequence[Tensor],
        *,
        counted: bool = True,
    ) -> list[Tensor]:
        """Go back from outputs of a module to the inputs, and add up the gradients of its parameters.

        Args:
            module: whose parameters were used; None for none.
            outputs: made with gradients from `inputs` and the parameters.
            gradients: of the outputs.
            inputs: whose gradients are returned, zero where an output does not depend on one.
            counted: whether to add the gradients of parameters: not if another process does.
        """
        learned = [] if module is None else [each for each in module.parameters() if each.requires_grad]
        for parameter in learned:
            if parameter not in self._sums:
                self._sums[parameter] = torch.zeros_like(to_fp32(parameter.detach()))
        own = learned if counted else []
        pairs = [(out, grad.to(out.dtype)) for out, grad in zip(outputs, gradients, strict=True) if out.requires_grad]
        wanted = [*inputs, *own]
        if not pairs or not wanted:
            return [torch.zeros_like(each) for each in inputs]
        found = torch.autograd.grad([out for out, _ in pairs], wanted, [grad for _, grad in pairs], allow_unused=True)
        for parameter, gradient in zip(own, found[len(inputs) :], strict=True):
            if gradient is not None:
                self._sums[parameter] += gradient
        return [
            torch.zeros_like(each) if gradient is None else gradient
            for each, gradient in zip(inputs, found[: len(inputs)], strict=True)
        ]

    def sum_over(self, share: RowShare) -> None:
        """Add the gradients that the other processes have of the same parameters."""
        used = [parameter for parameter in self.parameters if parameter in self._sums]
        if used:
            self._sums = dict(zip(used, share.sum([self._sums[parameter] for parameter in used]), strict=True))

    def of_all(self) -> list[Tensor | None]:
        """The gradient of each parameter in its precision, None for one whose layer was left out."""
        found = [self._sums.get(parameter) for parameter in self.parameters]
        return [
            None if gradient is None else gradient.to(parameter.dtype)
            for parameter, gradient in zip(self.parameters, found, strict=True)
        ]


def leaf(tensor: Tensor) -> Tensor:
    """The same numbers, from which gradients are computed."""
    return tensor.detach().requires_grad_()
