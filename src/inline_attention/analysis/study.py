"""All that is looked at in one model, over the same pictures as in others."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from .capture import Captured, MixerAttention, seen_by
from .confusion import STATED, TOLERANCES, Confusion, confusion, pictures_of
from .locality import SIZES, Near, locality, mean_over
from .masking import Masked
from .rays import Ray, ray
from .spectrum import Spectrum, mean_spectrum, spectrum


@dataclass(frozen=True)
class Subject:
    """A model to look at."""

    label: str
    """What figures call it."""
    model: nn.Module
    prepare: Callable[[Any], Tensor]
    """From a picture to (C, H, W) as the model takes it."""


def kind_of(seen: Captured) -> str:
    """Which attention the model has, for people: that of most of its layers, and whether it has the local residual."""
    kinds = [layer.kind for layer in seen]
    most = max(dict.fromkeys(kinds), key=kinds.count)
    local = any(isinstance(layer, MixerAttention) and layer.mixer.local is not None for layer in seen if layer.kind == most)
    if most == "inline":
        return "InLine" if local else "InLine without local residual"
    return f"{most} with local residual" if local else most


def batches_of(subject: Subject, pictures: Sequence[Any], size: int = 8) -> Iterator[Captured]:
    """What the model does with the pictures, a few at a time."""
    device = next(subject.model.parameters()).device
    for start in range(0, len(pictures), size):
        pixels = torch.stack([subject.prepare(picture) for picture in pictures[start : start + size]])
        yield seen_by(subject.model, pixels.to(device))


def confusion_of(batches: Iterable[Captured], tolerances: Sequence[float] = TOLERANCES) -> Confusion:
    """Counted over all batches."""
    return pictures_of([confusion(seen, tolerances) for seen in batches])


def locality_of(batches: Iterable[Captured], sizes: Sequence[int] = SIZES) -> list[Near]:
    """The mean over all batches."""
    return mean_over([locality(seen, sizes) for seen in batches])


def spectrum_of(batches: Iterable[Captured]) -> list[Spectrum]:
    """The mean over all batches."""
    return mean_spectrum([spectrum(seen) for seen in batches])


def ray_of(seen: Captured, point: tuple[float, float] = (0.5, 0.5), *, title: str | None = None) -> Ray | None:
    """The ray through the query at a point of the first picture, in the middle one of the layers that see all of it, if any."""
    layers = [layer for layer in seen if not layer.windowed]
    if not layers:
        return None
    layer = layers[len(layers) // 2]
    found = ray(layer, layer.index(layer.place(point)))
    return replace(found, title=title or found.title)


@dataclass(frozen=True)
class Study:
    """What was found in one model."""

    label: str
    kind: str
    name: str
    parameters: int
    pictures: int
    confusion: Confusion
    ray: Ray | None
    """None if every layer attends in windows."""
    locality: list[Near]
    spectrum: list[Spectrum]
    masking: Masked | None = None

    def numbers(self) -> dict[str, Any]:
        """As JSON keeps it: shares of confusion by layer and head, and everything else as it is."""
        counted = self.confusion
        return {
            "label": self.label,
            "kind": self.kind,
            "name": self.name,
            "parameters": self.parameters,
            "pictures": self.pictures,
            "confusion": confusion_numbers(counted),
            "ray": None if self.ray is None else ray_numbers(self.ray),
            "locality": [asdict(near) for near in self.locality],
            "spectrum": [asdict(found) for found in self.spectrum],
            "masking": None if self.masking is None else asdict(self.masking),
        }


def confusion_numbers(found: Confusion, stated: float = STATED) -> dict[str, Any]:
    """As JSON keeps it, by layer, head and picture for the stated tolerance."""
    return {
        "tolerances": list(found.tolerances),
        "share": [found.share(tolerance) for tolerance in found.tolerances],
        "stated_tolerance": stated,
        "layers": list(found.layers),
        "pairs": list(found.pairs),
        "share_by_layer": found.by_layer(stated),
        "share_by_head": found.by_head(stated),
        "count_by_picture": found.by_picture(stated),
    }


def ray_numbers(found: Ray) -> dict[str, Any]:
    """As JSON keeps it."""
    return {
        "title": found.title,
        "layer": found.layer,
        "lengths": list(found.lengths),
        "pairs": found.pairs,
        "confused_by_head": found.confused.tolist(),
        "weights": found.weights.tolist(),
    }
