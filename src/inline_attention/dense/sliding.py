"""Logits of a large picture, from windows of the size that a model was trained on."""

from collections.abc import Callable

import torch
from torch import Tensor


def slide(model: Callable[[Tensor], Tensor], pixels: Tensor, crop: tuple[int, int], stride: tuple[int, int]) -> Tensor:
    """Mean of the logits of all windows that cover a pixel.

    Windows of `crop` start every `stride`; the last of a row or column is moved back until it lies inside. In a side in which
    the picture is smaller than the crop, windows are as long as the picture.

    Args:
        model: gives logits (B, classes, h, w) of pixels (B, C, h, w), in evaluation mode.
        pixels: (B, C, H, W).
        crop: height and width of a window.
        stride: steps down and to the right; at most the crop.

    Returns:
        (B, classes, H, W), in float32 or what the model computes in if that is finer.
    """
    if any(step < 1 or step > side for step, side in zip(stride, crop, strict=True)):
        raise ValueError(f"windows of {crop} every {stride}: each step must be at least 1, and at most the window's side")
    total: Tensor | None = None
    covered = pixels.new_zeros(pixels.shape[2:], dtype=torch.int32)
    for rows in _windows(pixels.shape[2], crop[0], stride[0]):
        for columns in _windows(pixels.shape[3], crop[1], stride[1]):
            logits = model(pixels[..., rows, columns])
            if total is None:
                shape = (*logits.shape[:2], *pixels.shape[2:])
                total = logits.new_zeros(shape, dtype=torch.promote_types(logits.dtype, torch.float32))
            total[..., rows, columns] += logits
            covered[rows, columns] += 1
    assert total is not None
    return total / covered


def _windows(length: int, crop: int, stride: int) -> list[slice]:
    """Where windows lie along one side."""
    crop = min(crop, length)
    last = length - crop
    starts = [*range(0, last, stride), last]
    return [slice(start, start + crop) for start in starts]
