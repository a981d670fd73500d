"""How far a model's output is off when some of its blocks are linear, or all but some.

The attention of the copy is matched to the original's first, for a few steps: what a match removes does not need to be kept.

Shapes: images (B, C, H, W).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import isfinite

import torch
from torch import Tensor, nn

from ..data.loader import BatchPlan, training_batches, worker_count
from ..data.sources import Source
from ..models.finite import check_outputs
from .distillation import (
    AttentionPair,
    attention_errors,
    model_output,
    output_error,
    pair_attention,
    record_calls,
    set_trainable,
)
from .linearize_task import Linearize

MATCH_STEPS = 80
"""The attention of the copy is matched on at most so many batches."""


class StoppedError(Exception):
    """It was requested to stop."""


def image_batches(
    task: Linearize, source: Source, first: int, last: int, *, batch: int, device: torch.device, stop: Callable[[], bool]
) -> Iterator[Tensor]:
    """Training images without augmentation, in the order of the seed, from a batch to before another; no validation image."""
    per_epoch = len(source.train) // batch
    data, seed = task.recipe.data, task.recipe.run.seed
    found = training_batches(
        source.train,
        task.transform(training=False),
        BatchPlan(len(source.train), batch, batch, 1, 1, per_epoch, last),
        seed=seed,
        rank=0,
        start=first,
        channels=data.channels,
        workers=worker_count(data.workers, 1, (last - first) * batch),
    )
    for images in found:
        if stop():
            raise StoppedError
        if images.bad and not data.skip_bad:
            raise ValueError(f"{images.bad[0]} (--skip-bad goes on without such images)")
        yield images.pixels.to(device)


@contextmanager
def restored(student: nn.Module, pairs: Iterable[AttentionPair]) -> Iterator[None]:
    """The student with the teacher's own attention in these places."""
    pairs = list(pairs)
    for pair in pairs:
        student.set_submodule(pair.path, pair.teacher)
    try:
        yield
    finally:
        for pair in pairs:
            student.set_submodule(pair.path, pair.student)


def match_attention(
    teacher: nn.Module, student: nn.Module, names: Sequence[str], batches: Iterable[Tensor], rate: float
) -> None:
    """Train the student's attention, each layer by itself, to give the teacher's output; a step for each batch of images."""
    set_trainable(teacher, student, names, "all")
    learned = [parameter for parameter in student.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=rate, weight_decay=0.0)
    pairs = pair_attention(teacher, student, names)
    for images in batches:
        with torch.no_grad(), record_calls(pairs) as calls:
            teacher(images)
        optimizer.zero_grad()
        attention_errors(student, pairs, calls, images).mean().backward()
        optimizer.step()
    student.requires_grad_(False)


@torch.no_grad()
def output_errors(
    teacher: nn.Module,
    student: nn.Module,
    names: Sequence[str],
    kept: Sequence[Collection[str]],
    batches: Iterable[Tensor],
) -> list[float]:
    """For each set of names, how far the output is off if these keep the teacher's attention and the others are the student's.

    The error is the one that distillation reduces: the divergence of the classes, or the relative error of the features. One
    that is not finite raises a FloatingPointError: blocks could not be compared.

    Args:
        names: of the attention that was swapped.
        kept: the sets.
        batches: of images.
    """
    pairs = pair_attention(teacher, student, names)
    sums, images = [0.0] * len(kept), 0
    for pixels in batches:
        target = model_output(teacher, pixels)
        check_outputs(target, (), "the teacher")
        for place, some in enumerate(kept):
            with restored(student, (pair for pair in pairs if pair.name in some)):
                error = float(output_error(teacher, model_output(student, pixels), target))
            if not isfinite(error):
                linear = [name for name in names if name not in some]
                raise FloatingPointError(
                    f"the linear copy gives numbers that are not finite (error {error}) with {', '.join(linear)} linear: "
                    "lower the second of --rates, at which its attention is matched"
                )
            sums[place] += len(pixels) * error
        images += len(pixels)
    return [total / images for total in sums]
