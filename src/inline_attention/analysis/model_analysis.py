"""All analyses of one model, as JSON and reports need them; and each analysis over batches of images."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from .attention import MixerAttention
from .capture import Captured, capture_pass
from .confusion import DEFAULT_TOLERANCE, TOLERANCES, Confusion, confusion, merge_batches
from .locality import SIZES, LayerLocality, locality, mean_locality
from .masked_accuracy import MaskedAccuracy
from .rank import RankStats, mean_rank_stats, rank_stats
from .rays import Ray, ray


@dataclass(frozen=True)
class AnalyzedModel:
    """A model to analyse."""

    label: str
    """Its name in figures and tables."""
    model: nn.Module
    prepare: Callable[[Any], Tensor]
    """The transform from an image to the model's input, (C, H, W)."""


def kind_of(captured: Captured) -> str:
    """The attention of most layers of the model, and whether it has the local residual, in words."""
    kinds = [layer.kind for layer in captured]
    most = max(dict.fromkeys(kinds), key=kinds.count)
    local = any(isinstance(layer, MixerAttention) and layer.mixer.local is not None for layer in captured if layer.kind == most)
    if most == "inline":
        return "InLine" if local else "InLine without local residual"
    return f"{most} with local residual" if local else most


def capture_batches(
    analyzed: AnalyzedModel, images: Sequence[Any], size: int = 8, names: Sequence[str] = ()
) -> Iterator[Captured]:
    """The captured attention of the model over the images, a batch at a time; `names` are the images', for messages."""
    device = next(analyzed.model.parameters()).device
    for start in range(0, len(images), size):
        pixels = torch.stack([analyzed.prepare(image) for image in images[start : start + size]])
        yield capture_pass(analyzed.model, pixels.to(device), names[start : start + size])


def confusion_of(batches: Iterable[Captured], tolerances: Sequence[float] = TOLERANCES) -> Confusion:
    """Confusion over all batches."""
    return merge_batches([confusion(captured, tolerances) for captured in batches])


def locality_of(batches: Iterable[Captured], sizes: Sequence[int] = SIZES) -> list[LayerLocality]:
    """Locality over all batches."""
    return mean_locality([locality(captured, sizes) for captured in batches])


def rank_stats_of(batches: Iterable[Captured]) -> list[RankStats]:
    """Rank and entropy over all batches."""
    return mean_rank_stats([rank_stats(captured) for captured in batches])


def ray_of(captured: Captured, point: tuple[float, float] = (0.5, 0.5), *, title: str | None = None) -> Ray | None:
    """The ray of the query at a point of the first image, in the middle layer without windows; None if there is none."""
    layers = [layer for layer in captured if not layer.windowed]
    if not layers:
        return None
    layer = layers[len(layers) // 2]
    found = ray(layer, layer.index(layer.place(point)))
    return replace(found, title=title or found.title)


@dataclass(frozen=True)
class ModelAnalysis:
    """The results of all analyses of one model."""

    label: str
    kind: str
    name: str
    parameters: int
    images: int
    confusion: Confusion
    ray: Ray | None
    """None if every layer attends in windows."""
    locality: list[LayerLocality]
    rank: list[RankStats]
    masking: MaskedAccuracy | None = None

    def numbers(self) -> dict[str, Any]:
        """For JSON: shares of confusion by layer and head, everything else as it is."""
        return {
            "label": self.label,
            "kind": self.kind,
            "name": self.name,
            "parameters": self.parameters,
            "images": self.images,
            "confusion": confusion_numbers(self.confusion),
            "ray": None if self.ray is None else ray_numbers(self.ray),
            "locality": [asdict(layer) for layer in self.locality],
            "rank": [asdict(layer) for layer in self.rank],
            "masking": None if self.masking is None else asdict(self.masking),
        }


def confusion_numbers(found: Confusion, stated: float = DEFAULT_TOLERANCE) -> dict[str, Any]:
    """For JSON, with shares by layer, head and image at the stated tolerance."""
    return {
        "tolerances": list(found.tolerances),
        "share": [found.share(tolerance) for tolerance in found.tolerances],
        "stated_tolerance": stated,
        "layers": list(found.layers),
        "pairs": list(found.pairs),
        "share_by_layer": found.by_layer(stated),
        "share_by_head": found.by_head(stated),
        "count_by_image": found.by_image(stated),
    }


def ray_numbers(found: Ray) -> dict[str, Any]:
    """For JSON."""
    return {
        "title": found.title,
        "layer": found.layer,
        "lengths": list(found.lengths),
        "pairs": found.pairs,
        "confused_by_head": found.confused.tolist(),
        "weights": found.weights.tolist(),
    }
