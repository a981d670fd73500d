"""From an image to the model's input, by timm's transforms: random in training, fixed in evaluation."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from PIL import Image
from timm.data import create_transform
from torch import Tensor

from ..lite.decode import check_resize, per_channel
from ..lite.transform import resized_size
from .config import AugmentConfig, DataConfig, data_faults

RETRIES = 10
ImageTransform = Callable[[Image.Image], Tensor]
"""An image -> (C, H, W)."""


def normalisation(data: DataConfig) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel; grey images have the mean of the three."""
    return per_channel(data.mean, data.channels), per_channel(data.std, data.channels)


def _shared(data: DataConfig) -> dict[str, Any]:
    mean, std = normalisation(data)
    if faults := data_faults(data):
        raise ValueError(faults[0])
    return {"input_size": (data.channels, *data.size), "interpolation": data.interpolation, "mean": mean, "std": std}


POLICIES = {
    "rand": "m9-n2-mstd0.5-mmax10-p0.5-inc1-tweights",
    "augmix": "m3-w3-d1-a1-b1-mstd0.5",
    **dict.fromkeys(("original", "originalr", "v0", "v0r", "3a", "3aug"), "mstd0.5"),
}
"""Policies of timm's auto-augment, with an example of each of their parts."""


def _check_policy(policy: str) -> None:
    """Raise for a part of a policy that timm would ignore, such as -mX in place of -m9."""
    name, *parts = policy.split("-")
    like = POLICIES.get(name, "").split("-")
    keys = [re.sub(r"[\d.]+$", "", part) for part in like]
    for part in parts:
        key, number = re.fullmatch(r"([a-z]*)(.*)", part, re.DOTALL).groups()  # type: ignore[union-attr]
        numeric = key in keys and re.fullmatch(r"\d+(\.\d+)?", number)
        if name in POLICIES and not numeric and not (name == "rand" and key.startswith("t")):
            raise ValueError(
                f"augment.auto: {part!r} of {policy!r} means nothing; {name} takes parts such as {', '.join(like)}"
            )


def _create(**arguments: Any) -> ImageTransform:
    """timm's transform, or an error of one line for a wrong augmentation."""
    _check_policy(arguments.get("auto_augment") or "")
    try:
        transform: ImageTransform = create_transform(**arguments)
    except (AssertionError, ValueError, KeyError, IndexError) as error:
        raise ValueError(f"augment.auto: timm has no policy {arguments['auto_augment']!r}") from error
    return transform


def training_transform(data: DataConfig, augment: AugmentConfig) -> ImageTransform:
    """Random crop, flips, RandAugment or colour jitter, erasing."""
    jitter: Any = augment.color_jitter or None
    transform: ImageTransform = _create(
        **_shared(data),
        is_training=True,
        scale=augment.scale,
        ratio=augment.ratio,
        hflip=augment.hflip,
        vflip=augment.vflip,
        color_jitter=jitter,
        auto_augment=augment.auto or None,
        re_prob=augment.erase,
        re_mode="pixel",
    )
    return RetryTransform(transform) if augment.auto else transform


@dataclass(frozen=True)
class RetryTransform:
    """Draws a random augmentation again where Pillow refuses it.

    At its strongest, timm's RandAugment posterizes to 0 bits (about one image in a thousand with the paper's policy), which
    Pillow took for black until it began to refuse it.
    """

    transform: ImageTransform

    def __call__(self, image: Image.Image) -> Tensor:
        """The augmented image."""
        for _ in range(RETRIES):
            try:
                return self.transform(image)
            except ValueError as error:
                refused = error
        raise refused


def evaluation_transform(data: DataConfig) -> ImageTransform:
    """Resize and crop the centre. 'squash' resizes both sides to floor(side / crop), as the paper evaluates."""
    return EvaluationTransform(
        data, create_transform(**_shared(data), is_training=False, crop_pct=data.crop, crop_mode=data.crop_mode)
    )


@dataclass(frozen=True)
class EvaluationTransform:
    """timm's evaluation transform; an image that it would resize beyond the limit of pixels is refused."""

    data: DataConfig
    transform: ImageTransform

    def __call__(self, image: Image.Image) -> Tensor:
        """The resized image."""
        check_resize(image, *resized_size(image, self.data.size, self.data.crop, self.data.crop_mode))
        return self.transform(image)


def full_image_transform(data: DataConfig, size: int | None = None) -> ImageTransform:
    """The whole image, without a crop: a relative position is the same point of the image for every model."""
    side = data.size if size is None else (size, size)
    return evaluation_transform(replace(data, crop_mode="squash", crop=1.0, size=side))
