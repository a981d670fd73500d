"""From logits to the class of every pixel, a few classes at a time: memory does not grow with their number."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .overlap import IGNORED

AT_ONCE = 8
"""Classes whose logits are enlarged together."""


class ReadOut(NamedTuple):
    """What a picture's logits say."""

    labels: Tensor
    """(H, W)"""
    loss: float
    """Cross entropy added up over the pixels that count; 0 without truth."""


def read_out(logits: Tensor, grow: Callable[[Tensor], Tensor], truth: Tensor | None = None) -> ReadOut:
    """The likeliest class of each pixel of one picture.

    Args:
        logits: (classes, h, w).
        grow: (n, h, w) -> (n, H, W), for any n of the classes.
        truth: (H, W), 255 for ignored.
    """
    best = labels = total = wanted = torch.empty(0)
    for start in range(0, len(logits), AT_ONCE):
        part = grow(logits[start : start + AT_ONCE].float())
        value, place = part.max(0)
        if start == 0:
            best, labels = value, place
        else:
            better = value > best
            best, labels = torch.where(better, value, best), torch.where(better, place + start, labels)
        if truth is not None:
            summed = part.logsumexp(0)
            total = summed if start == 0 else torch.logaddexp(total, summed)
            here = (truth - start).clamp(0, len(part) - 1)
            mine = part.gather(0, here[None])[0]
            inside = (truth >= start) & (truth < start + len(part))
            wanted = torch.where(inside, mine, torch.zeros_like(mine) if start == 0 else wanted)
    if truth is None:
        return ReadOut(labels, 0.0)
    return ReadOut(labels, float((total - wanted)[truth != IGNORED].double().sum()))
