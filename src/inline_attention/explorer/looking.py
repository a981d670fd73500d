"""What the page shows of one model for one point of one picture. Nothing is kept from one look to the next."""

from dataclasses import dataclass, replace
from threading import Lock
from time import perf_counter
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from ..analysis.capture import Attention, Captured, seen_by
from ..analysis.locality import Near, locality_at
from ..analysis.maps import QueryMap, one_grid, query_map, rollout
from ..analysis.rays import Ray, ray
from ..training.trained import Trained
from ..training.view import whole_view
from .shelf import device_of

ONE_PASS = Lock()
"""A pass is watched through hooks on the model, which all visitors share: one at a time."""
MOST_FOLLOWED = 1500
"""Tokens up to which attention is followed through all layers, which costs their square in every layer."""


@dataclass(frozen=True)
class Look:
    """One model's answer."""

    label: str
    picture: Image.Image
    layer: Attention
    number: int
    """The layer's, from 1."""
    layers: int
    map: QueryMap
    followed: Tensor | None
    """Rollout, (h, w), if it was asked for."""
    kernel: Tensor | None
    """The local residual's, mean over channels, (h, w)."""
    ray: Ray | None
    """None for a layer with windows."""
    near: list[Near]
    trained: bool


def pixels_for(trained: Trained, picture: Image.Image, size: int | None) -> Tensor:
    """(1, C, H, W) as the model takes it."""
    pixels: Tensor = whole_view(trained.data, size)(picture.convert("RGB" if trained.data.channels == 3 else "L"))
    return pixels[None].to(device_of(trained.model))


def look(
    label: str,
    trained: Trained,
    picture: Image.Image,
    point: tuple[float, float],
    *,
    layer: int,
    size: int | None = None,
    follow: bool = False,
) -> Look:
    """Run the model and look at one of its layers, counted from 1; a model with fewer layers shows its last.

    Args:
        point: (y, x) as shares of the picture.
        size: pixels a side; the model's own if None.
        follow: follow attention back through all layers too.
    """
    seen = _seen(label, trained.model, pixels_for(trained, picture, size))
    number = min(max(layer, 1), len(seen))
    chosen = seen[number - 1]
    place = chosen.place(point)
    kernels = chosen.local_kernels()
    followed = None
    if follow:
        stage = one_grid(seen.layers)
        if stage[0].tokens > MOST_FOLLOWED:
            raise ValueError(f"{label} has {stage[0].tokens:,} tokens: too many to follow attention through all layers here")
        followed = rollout(stage, stage[-1].place(point))[0]
    return Look(
        label,
        picture,
        chosen,
        number,
        len(seen),
        query_map(chosen, place),
        followed,
        None if kernels is None else kernels[0].mean(0),
        None if chosen.windowed else replace(ray(chosen, chosen.index(place)), title=label),
        locality_at(seen, point),
        trained.trained,
    )


def heads_and_layers(label: str, trained: Trained, picture: Image.Image) -> tuple[int, int]:
    """The most heads of a layer, and how many layers."""
    seen = _seen(label, trained.model, pixels_for(trained, picture, None))
    return max(layer.rows([0]).mixed.shape[1] for layer in seen), len(seen)


def attention_seconds(label: str, trained: Trained, picture: Image.Image, size: int, rounds: int = 2) -> tuple[float, int]:
    """How long all attention layers of a pass took, the best of some rounds, and how many tokens the first one had."""
    pixels = pixels_for(trained, picture, size)
    seen = _seen(label, trained.model, pixels)  # warms up, too
    modules = [trained.model.get_submodule(layer.name) for layer in seen]
    with ONE_PASS:
        return min(_timed(trained.model, modules, pixels) for _ in range(rounds)), seen[0].tokens


@torch.no_grad()
def _timed(model: nn.Module, modules: list[nn.Module], pixels: Tensor) -> float:
    total, began = 0.0, 0.0

    def begin(*_: Any) -> None:
        nonlocal began
        began = perf_counter()

    def end(*_: Any) -> None:
        nonlocal total
        total += perf_counter() - began

    hooks = [
        hook for module in modules for hook in (module.register_forward_pre_hook(begin), module.register_forward_hook(end))
    ]
    try:
        model(pixels)
    finally:
        for hook in hooks:
            hook.remove()
    return total


def _seen(label: str, model: nn.Module, pixels: Tensor) -> Captured:
    try:
        with ONE_PASS:
            return seen_by(model, pixels)
    except (AssertionError, RuntimeError) as error:  # a model of others that takes one size only
        side = pixels.shape[-1]
        raise ValueError(f"{label} does not take pictures of {side} x {side}: {str(error).splitlines()[0]}") from error
