"""Rays: the weights of one query scaled to several lengths (the paper's first figure).

Division by the sum cancels the length of phi(q): linear attention with ReLU gives the same row for all lengths. Softmax weights
sharpen with the length; those of InLine move away from even weights in proportion to it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..ops.reference import injective_weights, linear_weights, softmax_weights
from .attention import Attention, layer_label
from .confusion import confused_pairs, queries_of_rows

LENGTHS = (0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True)
class Ray:
    """The weights of queries along a ray."""

    title: str
    layer: str
    """The layer of the query, in words."""
    lengths: tuple[float, ...]
    weights: Tensor
    """(heads, lengths, N). Of a mixer without weights, the answers to the queries: (heads, lengths, channels)."""
    confused: Tensor
    """(heads,): pairs of lengths with the same weights."""

    @property
    def pairs(self) -> int:
        """The number of pairs of lengths."""
        return len(self.lengths) * (len(self.lengths) - 1) // 2


def ray(layer: Attention, query: int, lengths: Sequence[float] = LENGTHS, *, image: int = 0) -> Ray:
    """The weights of a query of a layer, multiplied by each of `lengths`."""
    images = slice(image, image + 1)
    q, k, _ = (part[images] for part in layer.project())
    times = torch.tensor(lengths, dtype=q.dtype, device=q.device)
    along = q[:, :, query : query + 1] * times[:, None]
    weights = layer.weigh(along, k, place=query, images=images)[0]
    along = queries_of_rows(along, len(weights))
    return Ray(layer.kind, layer_label(layer.name), tuple(lengths), weights, confused_pairs(along[0], weights))


def plane(lengths: Sequence[float] = LENGTHS) -> tuple[Tensor, Tensor, list[Ray]]:
    """An example in two dimensions: queries on a ray (lengths, 2), keys (N, 2), and the rays of three kinds of attention."""
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
