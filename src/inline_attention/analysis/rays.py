"""Rays: one query at several lengths, and what it looks at (the paper's first figure).

Divided linear attention forgets how long phi(q) is, so with ReLU all lengths give one row. Softmax sharpens with the length;
InLine moves away from even weights in proportion to it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..ops.reference import injective_weights, linear_weights, softmax_weights
from .capture import Attention, in_words
from .confusion import confused_pairs

LENGTHS = (0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True)
class Ray:
    """Rows of weights along a ray."""

    title: str
    layer: str
    """Where the query is from, in words."""
    lengths: tuple[float, ...]
    weights: Tensor
    """(heads, lengths, N)."""
    confused: Tensor
    """(heads,): pairs of lengths with the same row."""

    @property
    def pairs(self) -> int:
        """How many pairs of lengths there are."""
        return len(self.lengths) * (len(self.lengths) - 1) // 2


def ray(layer: Attention, query: int, lengths: Sequence[float] = LENGTHS, *, picture: int = 0) -> Ray:
    """The ray through a query of a layer: its rows when it is as long as the model made it times each of `lengths`."""
    q, k, _ = (part[picture : picture + 1] for part in layer.project())
    times = torch.tensor(lengths, dtype=q.dtype, device=q.device)
    along = q[:, :, query : query + 1] * times[:, None]
    weights = layer.weigh(along, k, place=query)[0]
    if len(weights) != q.shape[1]:  # a head for each channel
        along = along.transpose(2, 3).flatten(1, 2).unsqueeze(-1)
    return Ray(layer.kind, in_words(layer.name), tuple(lengths), weights, confused_pairs(along[0], weights))


def plane(lengths: Sequence[float] = LENGTHS) -> tuple[Tensor, Tensor, list[Ray]]:
    """The same in two dimensions, to draw: queries on a ray (lengths, 2), keys (N, 2), and the rays of three attentions."""
    angles = torch.deg2rad(torch.tensor([5.0, 30.0, 55.0, 85.0, 130.0, 200.0, 310.0], dtype=torch.float64))
    keys = torch.stack([angles.cos(), angles.sin()], -1) * torch.tensor([1.6, 1.0, 1.9, 1.3, 1.5, 1.2, 1.7]).unsqueeze(1)
    direction = torch.tensor([0.8, 0.6], dtype=torch.float64)
    queries = direction * torch.tensor(lengths, dtype=torch.float64).unsqueeze(1)
    q, k = queries[None, None], keys[None, None]
    found = {
        "softmax": softmax_weights(q, k),
        "linear, ReLU": linear_weights(q.relu(), k.relu()),
        "InLine": injective_weights(q, k),
    }
    rays = [Ray(name, "seven keys", tuple(lengths), w[0], confused_pairs(q[0], w[0])) for name, w in found.items()]
    return queries, keys, rays
