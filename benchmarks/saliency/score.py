"""Metrics of saliency maps: against the maps of another model, and against ground-truth trimaps.

Scores are per image, so that batches can be concatenated before averaging. An image whose trimap has no pet (14 in Oxford-IIIT
Pet are all background) has no score: it is nan.

Shapes: maps (B, 1, H, W), from 0 to 1; trimaps (B, 1, H, W), 1 pet, 2 background, 3 border, which is ignored.
"""

from typing import NamedTuple

import torch
from torch import Tensor

PET, BACKGROUND, BORDER = 1, 2, 3
BETA_SQUARED = 0.3
"""Weights precision more than recall, as is usual for saliency."""
LEVELS = 256
"""Thresholds 0, 1/255, ..., 1."""


class Agreement(NamedTuple):
    """Per image, (B,) float64 each."""

    difference: Tensor
    """Mean absolute difference."""
    correlation: Tensor
    """Pearson's, over the pixels; 0 where a map is constant."""


class Scores(NamedTuple):
    """Means over the images that have a score."""

    images: int
    """Number of these images."""
    absolute_error: float
    max_f_beta: float
    overlap: float


def agreement(maps: Tensor, teacher_maps: Tensor) -> Agreement:
    """Compare maps with those of a teacher, both (B, 1, H, W)."""
    if maps.shape != teacher_maps.shape:
        raise ValueError(
            f"maps are {tuple(maps.shape)} and the teacher's {tuple(teacher_maps.shape)}: resize one to the other's size"
        )
    ours, theirs = maps.flatten(1).double(), teacher_maps.flatten(1).double()
    difference = (ours - theirs).abs().mean(1)
    ours, theirs = ours - ours.mean(1, keepdim=True), theirs - theirs.mean(1, keepdim=True)
    lengths = ours.norm(dim=1) * theirs.norm(dim=1)
    return Agreement(difference, (ours * theirs).sum(1) / lengths.clamp_min(1e-12))


def absolute_error(maps: Tensor, trimaps: Tensor) -> Tensor:
    """Mean of |map - truth| over known pixels, truth 1 on the pet and 0 on the background: (B,) float64."""
    pet, known = _truth(maps, trimaps)
    wrong = (maps.flatten(1).double() - pet.double()).abs() * known
    return _scorable(wrong.sum(1) / known.sum(1), pet)


def f_beta(maps: Tensor, trimaps: Tensor) -> Tensor:
    """F_beta = (1 + b) P R / (b P + R), b = 0.3, of `map >= t` for the thresholds t = 0, 1/255, ..., 1: (B, 256) float64.

    P is the precision and R the recall of the pet's pixels; F is 0 where none of them is found.
    """
    pet, known = _truth(maps, trimaps)
    levels = (maps.flatten(1).double() * (LEVELS - 1)).floor().long()
    found, right = _at_least(levels, known), _at_least(levels, pet)
    # with P = right / found and R = right / pet inserted and simplified
    f = (1 + BETA_SQUARED) * right / (BETA_SQUARED * pet.sum(1, keepdim=True).double() + found)
    return _scorable(f, pet)


def overlap(maps: Tensor, trimaps: Tensor, threshold: float = 0.5) -> Tensor:
    """Intersection over union of `map >= threshold` and the pet, on known pixels: (B,) float64."""
    pet, known = _truth(maps, trimaps)
    found = (maps.flatten(1) >= threshold) & known
    return _scorable((found & pet).sum(1).double() / (found | pet).sum(1), pet)


def mean_scores(errors: Tensor, f_curves: Tensor, overlaps: Tensor) -> Scores:
    """Means of `absolute_error` (B,), `f_beta` (B, 256) and `overlap` (B,), of any number of images.

    The curves are averaged before the maximum is taken, so all images share one threshold.
    """
    scorable = ~errors.isnan()
    if not scorable.any():
        raise ValueError(f"none of the {len(errors)} images has a pet in its trimap: there is nothing to score")
    return Scores(
        images=int(scorable.sum()),
        absolute_error=float(errors[scorable].mean()),
        max_f_beta=float(f_curves[scorable].mean(0).max()),
        overlap=float(overlaps[scorable].mean()),
    )


def score(maps: Tensor, trimaps: Tensor) -> Scores:
    """All scores of maps in one batch."""
    return mean_scores(absolute_error(maps, trimaps), f_beta(maps, trimaps), overlap(maps, trimaps))


def _truth(maps: Tensor, trimaps: Tensor) -> tuple[Tensor, Tensor]:
    """Masks of the pet and of the pixels with known truth, (B, H * W) bool each; checks both arguments."""
    if maps.shape != trimaps.shape:
        raise ValueError(f"maps are {tuple(maps.shape)} and trimaps {tuple(trimaps.shape)}: resize one to the other's size")
    if not ((maps >= 0) & (maps <= 1)).all():
        raise ValueError(
            f"maps reach from {float(maps.min()):g} to {float(maps.max()):g}: give them from 0 to 1, after the sigmoid"
        )
    if not ((trimaps >= PET) & (trimaps <= BORDER)).all():
        raise ValueError(
            f"trimaps hold {int(trimaps.min())} to {int(trimaps.max())}: they must hold 1 pet, 2 background, 3 border"
        )
    flat = trimaps.flatten(1)
    return flat == PET, flat != BORDER


def _at_least(levels: Tensor, counted: Tensor) -> Tensor:
    """How many of the counted pixels have at least this level: (B, 256) float64."""
    histogram = torch.zeros(len(levels), LEVELS, dtype=torch.float64, device=levels.device)
    histogram.scatter_add_(1, levels, counted.double())
    return histogram.flip(1).cumsum(1).flip(1)


def _scorable(scores: Tensor, pet: Tensor) -> Tensor:
    """Scores (B, ...), nan for images without a pet."""
    scores[~pet.any(1)] = torch.nan
    return scores
