"""`stream_segment_loss`: the loss of a segmenter on an image larger than memory, with gradients of all parameters.

The loss is a mean over labelled pixels, so that it is a sum over bands. `segment_pass.py` goes forward and back.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..dense.segmenter import Segmenter
from ..lite.label_drawing import IGNORED
from .decoder_rows import check_decoder
from .gradients import check_trainable
from .label_rows import label_reader
from .segment_pass import PixelLoss, SegmentPass
from .valid_rows import masked_reader


def stream_segment_loss(
    segmenter: Segmenter,
    image: Any,
    labels: Any,
    *,
    mask: Any = None,
    ignore: int = IGNORED,
    loss: PixelLoss | None = None,
    auxiliary: float = 0.4,
    tokens: int = 8192,
    folder: str | Path | None = None,
    keep: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """The mean loss over the labelled pixels of one image of any size, with a graph.

        stream_segment_loss(segmenter, "map.npy", labels).backward()

    Layers that normalise over the batch (UperNet) must be in evaluation mode, since there is one image: `freeze_batch_norms`.

    Args:
        segmenter: with a backbone that `stream` takes. In training mode, channels are dropped before the classifier, and
            UperNet's auxiliary head has its share.
        image, mask, tokens, folder, keep, progress: as for `stream_train`.
        labels: an array or tensor of whole numbers, (H, W), memory-mapped or not, or a function that returns rows of one.
        ignore: the label of pixels that do not count; masked pixels do not count either.
        loss: the sum of the losses of some pixels, whose logits and labels it is given; cross entropy if None.
        auxiliary: the weight of the auxiliary head's loss in training mode.

    Returns:
        (), zero if no pixel is labelled.
    """
    backbone, _, _ = segmenter.backbone.taps()
    check_trainable(backbone, image, tokens, keep)
    _check_norms(segmenter)
    _check_rows(segmenter, folder)
    source = masked_reader(backbone, image, mask)
    run = SegmentPass(segmenter, source, label_reader(labels, source, ignore), loss or _cross_entropy(ignore))
    run.prepare(auxiliary, ignore, tokens, folder, keep, progress)
    value: Tensor = _Loss.apply(run, *run.gradients.parameters)
    return value


def freeze_batch_norms(model: nn.Module) -> None:
    """Put layers that normalise over the batch in evaluation mode: they use the stored mean and variance."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: SegmentPass, *parameters: Tensor) -> Tensor:
        ctx.run = run
        return run.forward()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *ctx.run.backward(gradient))


def _check_norms(segmenter: Segmenter) -> None:
    for name, module in segmenter.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
            raise ValueError(
                f"{name} normalises over the batch, which is one image in parts: call freeze_batch_norms(segmenter) first"
            )


def _check_rows(segmenter: Segmenter, folder: str | Path | None) -> None:
    """`check_decoder` in evaluation mode."""
    modes = {module: module.training for module in segmenter.modules()}
    segmenter.eval()
    try:
        check_decoder(segmenter, None if folder == "memory" else folder)
    finally:
        for module, training in modes.items():
            module.training = training


def _cross_entropy(ignore: int) -> PixelLoss:
    return lambda logits, labels: F.cross_entropy(logits, labels, ignore_index=ignore, reduction="sum")
