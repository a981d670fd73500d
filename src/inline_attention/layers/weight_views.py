"""Views of weights, such as a projection cut by heads, that are made once while no gradient needs them.

A view costs a few microseconds, whatever its size: for one small image that adds up. A view shows its weight's numbers as they
are, also after a step of an optimizer or `load_state_dict`; a weight that is replaced gets new views.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

Views = TypeVar("Views")


class WeightViews(Generic[Views]):
    """Keeps the views that a function makes of some weights.

    Args:
        make: from the weights to their views; a bias may be None.
    """

    def __init__(self, make: Callable[..., Views]) -> None:
        self._make = make
        self._weights: tuple[Tensor | None, ...] = ()
        self._places: tuple[int, ...] = ()
        self._views: Views | None = None

    def __call__(self, *weights: Tensor | None) -> Views:
        """The views of these weights: the kept ones if they are the same tensors at the same places in memory."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or not all(map(_is_stored, weights)):
            return self._make(*weights)
        places = tuple(0 if weight is None else weight.data_ptr() for weight in weights)
        if (
            self._views is None
            or places != self._places
            or not all(new is old for new, old in zip(weights, self._weights, strict=True))
        ):
            self._weights, self._places, self._views = weights, places, self._make(*weights)
        return self._views

    def __deepcopy__(self, memo: object) -> "WeightViews[Views]":
        """A copy of a layer makes views of its own weights."""
        return type(self)(self._make)

    def __reduce__(self) -> tuple[type["WeightViews[Views]"], tuple[Callable[..., Views]]]:
        """Views are not written to files."""
        return type(self), (self._make,)


def _is_stored(weight: Tensor | None) -> bool:
    """Whether a weight is a layer's own parameter with numbers, and not one that a transform put in its place."""
    return weight is None or (type(weight) is nn.Parameter and weight.device.type != "meta")
