"""Any timm model as a pyramid of four maps at strides 4, 8, 16 and 32, for detection and segmentation heads."""

from collections.abc import Callable
from math import ceil
from typing import Any, cast

import torch.nn.functional as F
from timm.models import create_model, group_parameters, is_model
from torch import Tensor, nn

from ..models.backbone import Backbone

STRIDES = (4, 8, 16, 32)
ANY_SIZE: tuple[dict[str, Any], ...] = ({"strict_img_size": False}, {"dynamic_img_size": True, "dynamic_img_pad": True}, {})
"""Arguments that make timm's models accept images of any size: of Swin-like models, of ViT-like models, of the others."""


class Pyramid(nn.Module):
    """A timm model as four maps.

    Maps of other strides than 4, 8, 16 and 32 are resized to these: those of a plain ViT, which all have one stride, or those
    of a small pyramid, which begins at stride 2. Images may have any height and width: for models of other packages they are
    padded with zeros, right and below, to multiples of 32.

    Args:
        body: from `create_model(..., features_only=True)`.
    """

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body
        information: Any = body.feature_info
        reductions: list[int] = list(information.reduction())
        if len(reductions) < len(STRIDES):
            raise ValueError(f"the backbone has {len(reductions)} maps, and 4 are needed: list more in out_indices")
        last = {reduction: number for number, reduction in enumerate(reductions)}
        fitting = all(stride in last for stride in STRIDES)
        count = len(reductions)
        self.chosen = tuple(last[stride] for stride in STRIDES) if fitting else tuple(range(count - 4, count))
        """Indices of the maps that are returned: those of the four strides, or else the last four."""
        self.reductions = tuple(reductions[number] for number in self.chosen)
        first, second, third, fourth = (int(information.channels()[number]) for number in self.chosen)
        self.channels: tuple[int, int, int, int] = (first, second, third, fourth)
        output_fmt = getattr(body, "output_fmt", "NCHW")
        self.channels_last = getattr(output_fmt, "value", output_fmt) == "NHWC"

    def forward(self, pixels: Tensor, mask: Tensor | None = None) -> list[Tensor]:
        """Images (B, C, H, W) -> four maps (B, channels[i], ceil(H / s), ceil(W / s)) for s = 4, 8, 16, 32.

        `mask`, (B, H, W), is True where a pixel is valid: for this package's models, see `Backbone.forward`.
        """
        height, width = pixels.shape[-2:]
        if not isinstance(self.bare(), Backbone):
            pixels = F.pad(pixels, (0, -width % STRIDES[-1], 0, -height % STRIDES[-1]))
        maps = self._unmasked(pixels) if mask is None else self._masked(pixels, mask)
        return [
            _fit(level, reduction, stride, (ceil(height / stride), ceil(width / stride)))
            for level, reduction, stride in zip(maps, self.reductions, STRIDES, strict=True)
        ]

    def _unmasked(self, pixels: Tensor) -> list[Tensor]:
        features = self.body(pixels)
        return [features[number].permute(0, 3, 1, 2) if self.channels_last else features[number] for number in self.chosen]

    def _masked(self, pixels: Tensor, mask: Tensor) -> list[Tensor]:
        """The same by the model inside the body, since a body takes no mask."""
        backbone, indices, norm = self.taps()
        maps: list[Tensor] = backbone.forward_intermediates(pixels, indices, norm=norm, intermediates_only=True, mask=mask)
        return maps

    def taps(self) -> tuple[Backbone, list[int], bool]:
        """A model of this package, and arguments of its `forward_intermediates` that give the chosen maps: indices, norm."""
        bare, body = self.bare(), cast("Any", self.body)
        if not isinstance(bare, Backbone):
            raise ValueError(f"one of this package's models is needed, such as inline_pvt_tiny, got {type(bare).__name__}")
        return bare, [body.out_indices[number] for number in self.chosen], body.norm

    def bare(self) -> nn.Module:
        """The model inside the body, with the parameter names of the classifier; the body itself where timm took it apart."""
        wrapped = getattr(self.body, "model", None)
        return wrapped if isinstance(wrapped, nn.Module) else self.body

    def _prefix(self) -> str:
        """The prefix of the bare model's parameter names."""
        return "body." if self.bare() is self.body else "body.model."

    def group_matcher(self, coarse: bool = False) -> Callable[[str], tuple[float, ...]]:
        """The depth of a parameter by its name, for layer-wise learning rates."""
        bare, prefix = self.bare(), self._prefix()
        matcher = getattr(bare, "group_matcher", None)
        own = _by_order(bare) if matcher is None else group_parameters(bare, matcher(coarse=coarse), reverse=True)
        depths = {prefix + name: depth for name, depth in own.items()}
        return lambda name: (float(depths.get(name, "inf")),)

    def no_weight_decay(self) -> set[str]:
        """Names of parameters without weight decay: those of the wrapped model."""
        bare, prefix = self.bare(), self._prefix()
        names: Callable[[], set[str]] = getattr(bare, "no_weight_decay", set)
        return {prefix + name for name in names()}


def _fit(features: Tensor, reduction: int, stride: int, size: tuple[int, int]) -> Tensor:
    """Resize a map (B, C, h, w) of one stride to another, (B, C, *size): cells keep their place in the image."""
    if reduction != stride:
        missing, full = fitting_sizes((features.shape[2], features.shape[3]), reduction, stride, size)
        if any(missing):
            features = F.pad(features, (0, missing[1], 0, missing[0]), mode="replicate")
        features = F.interpolate(features, size=full, mode="bilinear", antialias=reduction < stride)
    return features[:, :, : size[0], : size[1]]


def fitting_sizes(
    size: tuple[int, int], reduction: int, stride: int, wanted: tuple[int, int]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """How a map of this size at one stride becomes one of at least the wanted size at another.

    Returns:
        The rows and columns to add below and to the right, copies of the last ones; and the size to which that is resized.
    """
    missing = [max(0, ceil(side * stride / reduction) - own) for side, own in zip(wanted, size, strict=True)]
    full = [ceil((own + more) * reduction / stride) for own, more in zip(size, missing, strict=True)]
    return (missing[0], missing[1]), (full[0], full[1])


def _by_order(body: nn.Module) -> dict[str, int]:
    """Depths of the parameters of a model that timm took apart: parts in their order, and their numbered blocks.

    All parts before the first one with numbered blocks are the stem, one layer.
    """
    parts = [name for name, _ in body.named_children()]
    begun = False
    places: dict[str, tuple[int, int]] = {}
    for name, _ in body.named_parameters():
        part, *rest = name.split(".")
        numbers = [int(word) for word in rest if word.isdigit()]
        begun = begun or bool(numbers)
        places[name] = (1 + parts.index(part) if begun and part in parts else 0, numbers[0] if numbers else 0)
    layers = {place: depth for depth, place in enumerate(sorted(set(places.values())))}
    return {name: layers[place] for name, place in places.items()}


def make_pyramid(name: str, arguments: dict[str, Any]) -> Pyramid:
    """Make a pyramid of a registered model, this package's or timm's.

    Args:
        name: as `create_model` takes it.
        arguments: of the model, besides `features_only`. If it returns fewer than four maps by default, four are spread
            over its depth; `out_indices` chooses others.
    """
    if not is_model(name.split(".")[0]):
        raise ValueError(f"there is no model {name!r}: `inline list` and timm.list_models() list all models")
    body = _body(name, arguments)
    if len(body.feature_info.reduction()) < len(STRIDES) <= len(body.feature_info) and "out_indices" not in arguments:
        count = len(body.feature_info)
        spread = tuple((number + 1) * count // len(STRIDES) - 1 for number in range(len(STRIDES)))
        body = _body(name, {**arguments, "out_indices": spread})
    try:
        return Pyramid(body)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _body(name: str, arguments: dict[str, Any]) -> Any:
    """With the whole model inside where it has `forward_intermediates`, so that weights keep their names."""
    body = _create(name, {"feature_cls": "getter", **arguments})
    wrapped = getattr(body, "model", None)
    whole = wrapped is None or hasattr(wrapped, "forward_intermediates")
    return body if whole or "feature_cls" in arguments else _create(name, arguments)


def _create(name: str, arguments: dict[str, Any]) -> Any:
    for defaults in ANY_SIZE:
        try:
            return create_model(name, features_only=True, **{**defaults, **arguments})
        except TypeError as error:
            if not any(argument in str(error) for argument in defaults if argument not in arguments):
                raise _refused(name, arguments, error) from error
        except (RuntimeError, ValueError, AssertionError, AttributeError) as error:
            raise _refused(name, arguments, error) from error
    raise AssertionError("the last defaults are none")


def _refused(name: str, arguments: dict[str, Any], error: Exception) -> ValueError:
    given = ", ".join(f"{key}={value!r}" for key, value in arguments.items() if key != "feature_cls") or "no arguments"
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return ValueError(f"{name} cannot be a pyramid of maps with {given}: {reason}")


def backbone_of(model: nn.Module) -> nn.Module:
    """The timm model inside a pyramid, a detector or a segmenter, into which classification weights are loaded."""
    found = [module for module in model.modules() if isinstance(module, Pyramid)]
    if len(found) != 1:
        raise ValueError(f"{type(model).__name__} has {len(found)} pyramids, expected one")
    return found[0].bare()
