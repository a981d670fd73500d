"""A segmenter's inference: logits of overlapping windows, and the class of every pixel in little memory."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..data.label_maps import IGNORED
from ..lite.segmenter import window_slices

CLASSES_AT_ONCE = 8
"""Classes whose logits are upsampled together, so that memory does not grow with the number of classes."""


class PixelLabels(NamedTuple):
    """The predicted classes of one image."""

    labels: Tensor
    """(H, W)"""
    loss: float
    """Sum of the cross entropy over all pixels that are not ignored; 0 without truth."""


def argmax_labels(logits: Tensor, upsample: Callable[[Tensor], Tensor], truth: Tensor | None = None) -> PixelLabels:
    """The most probable class of each pixel of one image, a few classes at a time.

    Args:
        logits: (classes, h, w).
        upsample: (n, h, w) -> (n, H, W), for any n of the classes.
        truth: (H, W), 255 for ignored.
    """
    best = labels = log_sum = true_logit = torch.empty(0)
    for start in range(0, len(logits), CLASSES_AT_ONCE):
        chunk = upsample(logits[start : start + CLASSES_AT_ONCE].float())
        value, place = chunk.max(0)
        if start == 0:
            best, labels = value, place
        else:
            better = value > best
            best, labels = torch.where(better, value, best), torch.where(better, place + start, labels)
        if truth is not None:  # cross entropy is log sum exp(logits) - logit of the true class
            summed = chunk.logsumexp(0)
            log_sum = summed if start == 0 else torch.logaddexp(log_sum, summed)
            found = chunk.gather(0, (truth - start).clamp(0, len(chunk) - 1)[None])[0]
            inside = (truth >= start) & (truth < start + len(chunk))
            true_logit = torch.where(inside, found, torch.zeros_like(found) if start == 0 else true_logit)
    if truth is None:
        return PixelLabels(labels, 0.0)
    return PixelLabels(labels, float((log_sum - true_logit)[truth != IGNORED].double().sum()))


def slide(model: Callable[[Tensor], Tensor], pixels: Tensor, crop: tuple[int, int], stride: tuple[int, int]) -> Tensor:
    """Logits of a large image, from windows of the size that the model was trained on: their mean where they overlap.

    Windows of `crop` start every `stride`; the last of a row or column is moved back to lie inside. Where the image is
    smaller than the crop, windows are as long as the image.

    Args:
        model: pixels (B, C, h, w) -> logits (B, classes, h, w), in evaluation mode.
        pixels: (B, C, H, W).
        crop: height and width of a window.
        stride: steps down and to the right; at most the crop.

    Returns:
        (B, classes, H, W), in float32 or the model's dtype if that is finer.
    """
    if any(step < 1 or step > side for step, side in zip(stride, crop, strict=True)):
        raise ValueError(f"windows of {crop} every {stride}: each step must be at least 1, and at most the window's side")
    total: Tensor | None = None
    covered = pixels.new_zeros(pixels.shape[2:], dtype=torch.int32)
    for rows in window_slices(pixels.shape[2], crop[0], stride[0]):
        for columns in window_slices(pixels.shape[3], crop[1], stride[1]):
            logits = model(pixels[..., rows, columns])
            if total is None:
                shape = (*logits.shape[:2], *pixels.shape[2:])
                total = logits.new_zeros(shape, dtype=torch.promote_types(logits.dtype, torch.float32))
            total[..., rows, columns] += logits
            covered[rows, columns] += 1
    assert total is not None
    return total / covered
