"""A mixer in the place of attention that `swap` found on an example: called as the module was that it replaces.

Shapes: tokens (B, N, C), or a map (B, H, W, C).
"""

from typing import Any

from torch import Tensor, nn

from ..layers import Mixer
from .swap_grid import TokenGrid, mix
from .swap_mixer import SwapSkipped
from .swap_watch import Frame, argument_names


class FoundAttention(nn.Module):
    """Called as the module was that it replaces.

    Args:
        mixer: the mixer.
        token_grid: the grid of its tokens; None if it is unknown. A map brings its own, and so do arguments H and W.
        frame: how that module was called, and what it returned.
    """

    def __init__(self, mixer: Mixer, token_grid: TokenGrid | None, frame: Frame) -> None:
        super().__init__()
        self.mixer = mixer
        self.token_grid = token_grid
        self.names = argument_names(frame.module, len(frame.inputs))
        self.tokens = frame.tokens_name
        self.sides, self.width_first = sides_of(frame)
        self.known = {name: value for name, value in frame.rest.items() if name not in self.sides}
        self.takes_map = frame.x.ndim == 4 or bool(self.sides)
        """Whether the grid comes with each call."""
        self.returns = len(frame.returned) if isinstance(frame.returned, tuple) else 0

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Mix all tokens; the sides of their grid are those of this call, other arguments as they were in the example."""
        given = {**dict(zip(self.names, inputs, strict=False)), **options}
        x = given.pop(self.tokens)
        sides = [side for name in self.sides for side in _numbers(given.pop(name, ()))]
        for name, value in given.items():
            if value is not None and not (name in self.known and same(value, self.known[name])):
                raise ValueError(
                    f"swapped attention was found with {name}={_short(self.known.get(name))}, got {_short(value)}: "
                    "call the model as in the example of swap"
                )
        if x.ndim == 4:
            mixed = self.mixer(x.flatten(1, 2), tuple(x.shape[1:3])).unflatten(1, x.shape[1:3])
        elif self.sides:
            mixed = self.mixer(x, tuple(reversed(sides) if self.width_first else sides))
        else:
            mixed = mix(self.mixer, x, self.token_grid)
        return (mixed, *(None,) * (self.returns - 1)) if self.returns else mixed


def sides_of(frame: Frame) -> tuple[tuple[str, ...], bool]:
    """The names of the arguments that are the sides of the grid, and whether the width comes first.

    `SwapSkipped` if other whole numbers are among the arguments: they may depend on the image.
    """
    counts = {name: numbers for name, value in frame.rest.items() if (numbers := _numbers(value))}
    sides = [side for numbers in counts.values() for side in numbers]
    if not counts:
        return (), False
    x = frame.x
    height_first = tuple(sides) == tuple(x.shape[1:3]) if x.ndim == 4 else len(sides) == 2 and sides[0] * sides[1] == x.shape[1]
    if not height_first:
        said = ", ".join(f"{name}={_short(frame.rest[name])}" for name in counts)
        raise SwapSkipped(f"it is called with {said}, which are not the sides of its grid")
    if frame.taller is None or x.ndim == 4:
        return tuple(counts), False
    taller = [side for name in counts for side in _numbers(frame.taller.rest.get(name))]
    return tuple(counts), taller == [sides[0], 2 * sides[1]]


def _numbers(value: Any) -> tuple[Any, ...]:
    """Whole numbers, those of a graph being exported too: one, or several in a tuple or list; none if it is anything else."""
    several = tuple(value) if isinstance(value, tuple | list) else (value,)
    whole = all(hasattr(one, "__index__") and not isinstance(one, bool | Tensor) for one in several)
    return several if whole else ()


def same(value: Any, other: Any) -> bool:
    """Whether two arguments are the same: tensors only if they are one object."""
    return type(value) is type(other) and (value is other or (not isinstance(value, Tensor) and bool(value == other)))


def _short(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
