"""`stream_train` and `stream_backward`: gradients of an image larger than memory, equal to those of the usual backward pass.

The inputs of the blocks are in files, and memory holds one band and what autograd keeps of it. `training_pass.py` goes through
the steps; docs/large_training.md shows why it is exact.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..layers import Mixer
from ..models.backbone import Backbone
from ..models.finite import check_outputs
from ..ops.checks import is_whole
from .autocast_state import AutocastState
from .image_reader import RowReader
from .parallelize import SequenceParallel
from .parameter_gradients import ParameterGradients
from .pooled_map import PooledMap
from .row_share import ProcessRows, RowShare
from .stages import blocks_of, check_model, stages_of, ways_through
from .training_pass import TrainingPass
from .valid_rows import masked_reader


class Trained(NamedTuple):
    """What `stream_backward` returns."""

    loss: Tensor
    """(), without a graph."""
    logits: Tensor
    """(1, num_classes), without a graph."""


def stream_train(
    model: nn.Module,
    image: Any,
    *,
    mask: Any = None,
    tokens: int = 8192,
    folder: str | Path | None = None,
    keep: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """The logits of one image of any size, with a graph: `backward` of a loss gives every parameter its gradient.

        logits = stream_train(model, "slide.npy")
        criterion(logits, label).backward()                             # as often as the optimizer waits for
        optimizer.step()

    It is one operation of autograd, from the parameters to the logits: `torch.autograd.grad`, several losses, and frozen
    parameters work as usual. Its backward pass can be done once. The model may be in training mode, with drop
    path and dropout, or in evaluation mode; hooks of blocks and of modules in them see parts of the image.

    Args:
        model: one that `stream` takes, or what `parallelize` made of one: its processes then share the image.
        image, mask, tokens: as for `stream`.
        folder: where to put the files; None for the system's temporary folder, "memory" to keep them in memory.
        keep: how many inputs of blocks to keep in files until the backward pass, besides the first; all if None. The others are
            computed again: with 3 of the 12 of a DeiT, 10 blocks.
        progress: called with (done, total) after each part, forward and backward.

    Returns:
        (1, num_classes), equal to `model(image)` up to rounding.
    """
    backbone = check_trainable(model.model if isinstance(model, SequenceParallel) else model, image, tokens, keep)
    if not backbone.global_pool:
        raise ValueError("stream_train needs a global_pool, got ''")
    parameters = [parameter for parameter in backbone.parameters() if parameter.requires_grad]
    gradients = ParameterGradients(parameters)
    source = on_model(masked_reader(backbone, image, mask), backbone)
    share, own = rows_of_process(model, source)
    steps = TrainingPass(
        backbone, source, gradients, tokens=tokens, folder=folder, keep=keep, progress=progress, share=share, own=own
    )
    pooled: Tensor = _Pooled.apply(_Run(backbone, steps), *parameters)
    logits: Tensor = backbone.head(backbone.head_drop(pooled))
    check_outputs(logits.detach(), (), type(backbone).__name__)
    return logits


def stream_backward(
    model: nn.Module,
    image: Any,
    loss: Callable[[Tensor], Tensor],
    **options: Any,
) -> Trained:
    """The loss of one image of any size; its gradients are added to those of the parameters, as by `backward`.

    Args:
        model, image: as for `stream_train`.
        loss: from the logits, (1, num_classes), to a number.
        options: of `stream_train`.
    """
    logits = stream_train(model, image, **options)
    value = loss(logits)
    value.backward()
    return Trained(value.detach(), logits.detach())


def check_trainable(model: nn.Module, image: Any, tokens: int, keep: int | None) -> Backbone:
    """The model, if a training pass can take it; otherwise a ValueError that says why not."""
    backbone = check_model(model, "stream_train")
    if not is_whole(tokens) or tokens < 1:
        raise ValueError(f"tokens must be at least 1, got {tokens}")
    if keep is not None and (not is_whole(keep) or keep < 0):
        raise ValueError(f"keep must be a whole number from 0 on, or None for all, got {keep}")
    if isinstance(image, Tensor) and image.requires_grad:
        raise ValueError("gradients of the image are not computed: pass image.detach()")
    for number, (stage, ways) in enumerate(zip(stages_of(backbone), ways_through(backbone, "stream_train"), strict=True)):
        for index, (block, way) in enumerate(zip(blocks_of(stage), ways, strict=True)):
            mixer: Mixer = block.mixer
            if way == "bands" and mixer.training and mixer.attn_drop:
                raise ValueError(
                    "stream_train cannot drop keys of blocks that are linear over the whole map: "
                    f"stages.{number}.blocks.{index} has attn_drop={mixer.attn_drop:g}; set it to 0"
                )
    check_hooks(backbone)
    return backbone


def check_hooks(model: nn.Module) -> None:
    """Raise if a parameter has a hook on its gradient: parts of the gradient would go through it, and then their sum.

    Hooks after the gradient is added to `.grad` are called once, as usual.
    """
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and getattr(parameter, "_backward_hooks", None):
            raise ValueError(
                f"{name} has a hook that would see gradients of parts of the image: use register_post_accumulate_grad_hook"
            )


def on_model(source: RowReader, model: nn.Module) -> RowReader:
    """The source with its rows on the device of the model and in its precision."""
    like = next(model.parameters())
    return source._replace(read=lambda start, stop: source.read(start, stop).to(like.device, like.dtype))


def rows_of_process(model: nn.Module, source: RowReader) -> tuple[RowShare, list[tuple[int, int]] | None]:
    """The processes that share an image, and the first and last row of each stage that this one has; None for all."""
    if not isinstance(model, SequenceParallel):
        return RowShare(), None
    if source.valid is not None:
        raise ValueError("processes that share an image take no mask: leave the mask out, or train with one process")
    return ProcessRows(model.group, next(model.parameters()).device), model.own_rows(source.height)


class _Run:
    """A pass with the pooling after it, between the forward and the backward of `_Pooled`."""

    def __init__(self, model: Backbone, steps: TrainingPass) -> None:
        self.steps, self.autocast = steps, AutocastState.now(steps.last.device)
        self.pool = PooledMap(model, steps.last, steps.gradients)
        once, _, back = self.pool.counts()
        steps.counter.total += once + back
        self.done = False

    def forward(self) -> Tensor:
        self.rows = self.steps.forward()
        return self.pool.forward(self.rows, self.steps.prefix())

    def backward(self, gradient: Tensor) -> list[Tensor | None]:
        if self.done:
            raise RuntimeError("this image's backward pass was done before, and its files are gone: call stream_train again")
        self.done = True
        with self.autocast.again():
            into = self.steps.take_gradient()
            known, of_prefix = self.pool.backward(gradient, self.rows, self.steps.prefix(), into.tensor)
            self.steps.backward(into, of_prefix, known=known)
        self.steps.gradients.sum_over(self.steps.last.share)
        return self.steps.gradients.of_all()


class _Pooled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: _Run, *parameters: Tensor) -> Tensor:
        ctx.run = run
        return run.forward()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *ctx.run.backward(gradient))
