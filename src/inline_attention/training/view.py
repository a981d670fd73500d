"""What the model gets to see of a picture: varied in training, fixed in evaluation. Both are timm's transforms."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from PIL import Image
from timm.data import create_transform
from torch import Tensor

from .recipe import AugmentPart, DataPart

REDRAWS = 10
View = Callable[[Image.Image], Tensor]


def normalisation(data: DataPart) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each channel; of a grey picture, the mean of the three."""
    if data.channels == 1:
        return (sum(data.mean) / 3,), (sum(data.std) / 3,)
    return data.mean, data.std


def _shared(data: DataPart) -> dict[str, Any]:
    mean, std = normalisation(data)
    return {"input_size": (data.channels, *data.size), "interpolation": data.interpolation, "mean": mean, "std": std}


def _made(**arguments: Any) -> View:
    """timm's transform, or one line about what is wrong with the augmentation."""
    try:
        view: View = create_transform(**arguments)
    except (AssertionError, ValueError, KeyError, IndexError) as error:
        raise ValueError(f"augment.auto: timm knows no policy {arguments['auto_augment']!r}") from error
    return view


def training_view(data: DataPart, augment: AugmentPart) -> View:
    """Random crop, flips, RandAugment or colour jitter, erasing."""
    jitter: Any = augment.color_jitter or None
    view: View = _made(
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
    return Redrawn(view) if augment.auto else view


@dataclass(frozen=True)
class Redrawn:
    """Varies a picture anew where Pillow refuses what was drawn.

    At its strongest, timm's RandAugment posterizes to 0 bits (about one picture in a thousand with the paper's policy), which
    Pillow took for black until it began to refuse it.
    """

    view: View

    def __call__(self, picture: Image.Image) -> Tensor:
        """The picture, varied."""
        for _ in range(REDRAWS):
            try:
                return self.view(picture)
            except ValueError as error:
                refused = error
        raise refused


def evaluation_view(data: DataPart) -> View:
    """Resize and crop the middle. 'squash' resizes both sides to floor(side / crop), as the paper evaluates."""
    view: View = create_transform(**_shared(data), is_training=False, crop_pct=data.crop, crop_mode=data.view)
    return view


def whole_view(data: DataPart, size: int | None = None) -> View:
    """All of a picture, resized as it has to be: a point of it is the same point for every model."""
    side = data.size if size is None else (size, size)
    return evaluation_view(replace(data, view="squash", crop=1.0, size=side))
