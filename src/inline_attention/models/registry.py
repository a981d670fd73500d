"""How the families enter timm's registry."""

from collections.abc import Sequence
from inspect import signature
from math import floor, log2
from typing import Any, TypeVar

import torch
from timm.layers import to_2tuple
from timm.models import build_model_with_cfg, generate_default_cfgs

from .backbone import SMALLEST, Backbone
from .blocks import AttentionOptions
from .official import filter_state_dict

TIMM = (
    "pretrained_cfg",
    "pretrained_cfg_overlay",
    "cache_dir",
    "features_only",
    "out_indices",
    "feature_cls",
    "device",
    "dtype",
)
"""Arguments that are not the model's own."""

Model = TypeVar("Model", bound=Backbone)


def _cfg(size: int, **more: Any) -> dict[str, Any]:
    """What timm's data pipeline and weight loading read. Pictures are squashed to a square, then cropped in the middle."""
    return {
        "url": "",
        "num_classes": 1000,
        "input_size": (3, size, size),
        "pool_size": None,
        "crop_pct": 0.875,
        "crop_mode": "squash",
        "interpolation": "bicubic",
        "fixed_input_size": False,
        "mean": (0.485, 0.456, 0.406),
        "std": (0.229, 0.224, 0.225),
        "first_conv": "stages.0.embed.proj",
        "classifier": "head",
        **more,
    }


def published_cfgs(family: str, **sizes: int) -> dict[str, Any]:
    """Configurations of published models, by name and input size."""
    configurations: dict[str, Any] = {f"{family}_{name}": _cfg(size) for name, size in sizes.items()}
    if "inline_swin_base_384" in configurations:
        configurations["inline_swin_base_384"]["crop_pct"] = 1.0  # the authors evaluate it without a crop
    made: dict[str, Any] = generate_default_cfgs(configurations)
    return made


def small_cfgs(family: str) -> dict[str, Any]:
    """The configuration of the small sibling."""
    made: dict[str, Any] = generate_default_cfgs({f"{family}_nano": _cfg(32, crop_pct=1.0)})
    return made


def create(
    family: type[Model],
    variant: str,
    pretrained: bool,
    given: dict[str, Any],
    *,
    out_indices: Sequence[int] = (0, 1, 2, 3),
    inline_depths: Sequence[int] | None = None,
    **published: Any,
) -> Model:
    """A model through timm's builder: the published configuration, changed by what was given.

    Args:
        family: the class.
        variant, pretrained: as timm has them.
        given: what the caller of `timm.create_model` asked for, device and dtype among it.
        out_indices: which maps `features_only=True` gives if nothing else is said.
        inline_depths: published; it says nothing of the softmax twin, and no more than the depths that were asked for.
        published: the other arguments of the class.
    """
    if inline_depths is not None and given.get("mixer") != "softmax":
        depths = given.get("depths") or inline_depths
        published["inline_depths"] = tuple(map(min, zip(inline_depths, depths, strict=False)))
    arguments = {**published, **given}
    known = {*signature(family).parameters, *AttentionOptions.__annotations__, *TIMM}
    if unknown := [name for name in arguments if name not in known]:
        raise TypeError(f"{variant} has no argument {unknown[0]!r}; it has: {', '.join(sorted(known - {*TIMM, 'attention'}))}")
    if "img_size" in arguments:  # what timm's data pipeline then reads
        overlay = dict(arguments.pop("pretrained_cfg_overlay", None) or {})
        size = (3, *to_2tuple(arguments["img_size"]))
        arguments["pretrained_cfg_overlay"] = {"input_size": size, **overlay}
    device, dtype = arguments.pop("device", None), arguments.pop("dtype", None)
    with torch.device(torch.get_default_device() if device is None else device):
        model: Model = build_model_with_cfg(
            family,
            variant,
            pretrained,
            feature_cfg={"out_indices": tuple(out_indices), "feature_cls": "getter"},
            pretrained_filter_fn=filter_state_dict,
            **arguments,
        )
    return model.to(dtype=dtype)


def fitting_patch(img_size: int | tuple[int, int], *, most: int) -> int:
    """The patch size, a power of two, that leaves 14 tokens or more on the shorter side: 1 up to 27 pixels, 2 up to 55, ..."""
    return min(most, 2 ** max(0, floor(log2(max(SMALLEST, min(to_2tuple(img_size))) / 14))))
