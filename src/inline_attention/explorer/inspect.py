"""Attention of one model at one point of one image, for the page. Nothing is kept from one call to the next."""

from dataclasses import dataclass, replace
from threading import Lock
from time import perf_counter
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from ..analysis.attention import Attention
from ..analysis.capture import Captured, capture_pass
from ..analysis.locality import LayerLocality, locality_at
from ..analysis.maps import QueryMap, one_grid, query_map, rollout
from ..analysis.rays import Ray, ray
from ..data.transforms import full_image_transform
from ..training.load_trained import Trained
from .model_cache import device_of

ONE_PASS = Lock()
"""A forward pass is captured by hooks on the model, which all visitors share: one at a time."""
LARGEST_ROLLOUT = 1500
"""Tokens up to which rollout is computed: it takes a matrix of their square in every layer."""


@dataclass(frozen=True)
class Inspection:
    """The attention of one model."""

    label: str
    image: Image.Image
    layer: Attention
    number: int
    """Number of the layer, from 1."""
    layers: int
    map: QueryMap
    rollout: Tensor | None
    """Attention through all layers, (h, w), if it was asked for."""
    kernel: Tensor | None
    """The local residual's kernel, mean over channels, (h, w)."""
    ray: Ray | None
    """None for a layer with windows."""
    locality: list[LayerLocality]
    trained: bool


def pixels_for(trained: Trained, image: Image.Image, size: int | None) -> Tensor:
    """(1, C, H, W): the model's input."""
    pixels: Tensor = full_image_transform(trained.data, size)(image.convert("RGB" if trained.data.channels == 3 else "L"))
    return pixels[None].to(device_of(trained.model))


def inspect_point(
    label: str,
    trained: Trained,
    image: Image.Image,
    point: tuple[float, float],
    *,
    layer: int,
    size: int | None = None,
    with_rollout: bool = False,
) -> Inspection:
    """Run the model and inspect one of its layers, counted from 1; of a model with fewer layers, the last.

    Args:
        point: (y, x) as shares of the image.
        size: pixels a side; the model's own if None.
        with_rollout: compute attention through all layers too.
    """
    captured = _capture(label, trained.model, pixels_for(trained, image, size))
    number = min(max(layer, 1), len(captured))
    chosen = captured[number - 1]
    place = chosen.place(point)
    kernels = chosen.local_kernels()
    through_layers = None
    if with_rollout:
        stage = one_grid(captured.layers)
        if stage[0].tokens > LARGEST_ROLLOUT:
            raise ValueError(f"{label} has {stage[0].tokens:,} tokens: too many to follow attention through all layers here")
        through_layers = rollout(stage, stage[-1].place(point))[0]
    return Inspection(
        label,
        image,
        chosen,
        number,
        len(captured),
        query_map(chosen, place),
        through_layers,
        None if kernels is None else kernels[0].mean(0),
        None if chosen.windowed else replace(ray(chosen, chosen.index(place)), title=label),
        locality_at(captured, point),
        trained.trained,
    )


def heads_and_layers(label: str, trained: Trained, image: Image.Image) -> tuple[int, int]:
    """The largest number of heads of a layer, and the number of layers."""
    captured = _capture(label, trained.model, pixels_for(trained, image, None))
    return max(layer.rows([0]).mixed.shape[1] for layer in captured), len(captured)


def attention_seconds(label: str, trained: Trained, image: Image.Image, size: int, rounds: int = 2) -> tuple[float, int]:
    """Seconds of all attention layers in a forward pass, the best of some rounds, and the tokens of the first layer."""
    pixels = pixels_for(trained, image, size)
    captured = _capture(label, trained.model, pixels)  # also the warm-up
    modules = [trained.model.get_submodule(layer.name) for layer in captured]
    with ONE_PASS:
        return min(_timed(trained.model, modules, pixels) for _ in range(rounds)), captured[0].tokens


@torch.no_grad()
def _timed(model: nn.Module, modules: list[nn.Module], pixels: Tensor) -> float:
    total, started = 0.0, 0.0

    def begin(*_: Any) -> None:
        nonlocal started
        started = perf_counter()

    def end(*_: Any) -> None:
        nonlocal total
        total += perf_counter() - started

    hooks = [
        hook for module in modules for hook in (module.register_forward_pre_hook(begin), module.register_forward_hook(end))
    ]
    try:
        model(pixels)
    finally:
        for hook in hooks:
            hook.remove()
    return total


def _capture(label: str, model: nn.Module, pixels: Tensor) -> Captured:
    try:
        with ONE_PASS:
            return capture_pass(model, pixels)
    except FloatingPointError as error:
        raise ValueError(f"{label}: {error}") from error
    except (AssertionError, RuntimeError) as error:  # a timm model that takes one size only
        side = pixels.shape[-1]
        raise ValueError(f"{label} does not take images of {side} x {side}: {str(error).splitlines()[0]}") from error
