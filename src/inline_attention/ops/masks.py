"""Masks of images: which pixels hold data, which tokens therefore count, and the mean over these. True where valid.

A token is valid if a pixel of its own is: of the cell of stride x stride pixels that no other token has. Overlapping patches
see more pixels, but own no more. Cells nest, so the mask of a later stage may be made from the pixels or from the stage before.

Shapes: pixels (B, H, W); tokens on their grid (B, H', W'); tokens in a row, prefix tokens first, (B, prefix + H' W').
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from .shifted_windows import missing
from .sums import zero_masked

POOL_CHUNK = 2**16
"""Tokens that `pool_valid` takes at once: a map in a file may not fit in memory."""


def check_image_mask(mask: Tensor, images: Tensor) -> None:
    """Raise unless the mask of images (B, C, H, W) is boolean, (B, H, W), and each image has a valid pixel."""
    if not isinstance(mask, Tensor) or mask.dtype is not torch.bool:
        raise ValueError(f"mask must be a boolean tensor, True where a pixel is valid, got {getattr(mask, 'dtype', mask)}")
    expected = (images.shape[0], *images.shape[2:])
    if mask.shape != expected:
        raise ValueError(f"mask must be (batch, height, width) = {tuple(expected)}, got {tuple(mask.shape)}")
    if torch.compiler.is_compiling() or mask.is_meta:
        return
    empty = (~mask.flatten(1).any(1)).nonzero().flatten().tolist()
    if empty:
        raise ValueError(f"each image needs a valid pixel in its mask: that of image {empty[0]} of the batch has none")


def reduce_mask(mask: Tensor, step: int) -> Tensor:
    """(B, H, W) -> (B, ceil(H / step), ceil(W / step)): whether any of the step x step under a token is valid."""
    if step == 1:
        return mask
    padded = F.pad(mask, (0, missing(mask.shape[2], step), 0, missing(mask.shape[1], step)))
    return padded.unflatten(2, (-1, step)).any(3).unflatten(1, (-1, step)).any(2)


def with_prefix(mask: Tensor, num_prefix_tokens: int) -> Tensor:
    """(B, H', W') -> (B, prefix + H' W'): prefix tokens are always valid."""
    return F.pad(mask.flatten(1), (num_prefix_tokens, 0), value=True)


def zero_invalid(x: Tensor, mask: Tensor) -> Tensor:
    """A map (B, C, H', W'), or tokens (B, prefix + H' W', C), with zeros where the mask, (B, H', W'), is False."""
    if x.ndim == 4:
        return x.masked_fill(~mask.unsqueeze(1), 0)
    return zero_masked(x, with_prefix(mask, x.shape[1] - mask[0].numel()))


def pool_valid(tokens: Tensor, mask: Tensor, pool: str) -> Tensor:
    """The mean ("avg"), the maximum ("max"), or the mean of both ("avgmax") over the valid tokens: (B, N, C) -> (B, C)."""
    total, largest = torch.zeros_like(tokens[:, 0]), torch.full_like(tokens[:, 0], float("-inf"))
    for chunk, valid in zip(tokens.split(POOL_CHUNK, 1), mask.split(POOL_CHUNK, 1), strict=True):
        if pool != "max":
            total = total + zero_masked(chunk, valid).sum(1)
        if pool != "avg":
            largest = torch.maximum(largest, chunk.masked_fill(~valid.unsqueeze(-1), float("-inf")).amax(1))
    mean = total / mask.sum(1, keepdim=True)
    return {"avg": mean, "max": largest, "avgmax": 0.5 * (mean + largest)}[pool]
