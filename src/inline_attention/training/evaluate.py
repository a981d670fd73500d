"""How good a model is: top-1, top-5, loss, by class; every picture counted once, over however many processes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix

from .loader import Batch

LARGEST_CONFUSION = 2000
"""Classes up to which the whole confusion matrix is kept."""


@dataclass(frozen=True)
class Score:
    """What an evaluation found. Shares are in percent."""

    top1: float
    top5: float
    loss: float
    pictures: int
    per_class: tuple[float | None, ...]
    """Share of each class that was recognised; None for one without pictures."""
    confusion: tuple[tuple[int, ...], ...]
    """Pictures by true class (row) and by what the model says (column); empty beyond 2,000 classes."""
    pictures_per_second: float
    """Of the model alone, waiting for pictures not counted."""
    bad: tuple[str, ...]
    """Pictures that could not be read, and were left out."""


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterator[Batch],
    classes: int,
    accelerator: Accelerator,
    *,
    skip_bad: bool,
    progress: Callable[[int], None] = lambda _: None,
) -> Score:
    """Go once through the pictures.

    Args:
        batches: this process's share.
        skip_bad: leave out pictures that cannot be read instead of stopping.
        progress: told how many pictures were done by all processes.
    """
    device = accelerator.device
    metrics = MetricCollection(
        {
            "top1": MulticlassAccuracy(classes, average="micro"),
            "top5": MulticlassAccuracy(classes, average="micro", top_k=min(5, classes)),
            "by_class": MulticlassAccuracy(classes, average="none"),
        },
        compute_groups=False,
    ).to(device)
    confusion = MulticlassConfusionMatrix(min(classes, LARGEST_CONFUSION)).to(device)
    mean_loss = MeanMetric().to(device)
    support = torch.zeros(classes, dtype=torch.long, device=device)
    bad: list[str] = []
    done, busy = 0, 0.0
    was_training = model.training
    model.eval()
    for batch in _in_step(batches, accelerator, skip_bad=skip_bad):
        bad.extend(batch.bad)
        start = perf_counter()
        pixels, labels, valid = (part.to(device, non_blocking=True) for part in (batch.pixels, batch.classes, batch.valid))
        with accelerator.autocast():
            logits = model(pixels).float()
        logits, labels = logits[valid], labels[valid]
        if len(labels):
            metrics.update(logits, labels)
            support += labels.bincount(minlength=classes)
            mean_loss.update(F.cross_entropy(logits, labels, reduction="none"))
            if classes <= LARGEST_CONFUSION:
                confusion.update(logits.argmax(1), labels)
        busy += perf_counter() - start
        done += len(labels)
        progress(done * accelerator.num_processes)
    model.train(was_training)
    counted = accelerator.reduce(torch.tensor([float(done), busy], device=device), reduction="sum")
    pictures, seconds = int(counted[0]), float(counted[1]) / accelerator.num_processes
    if not pictures:
        raise ValueError("there is no picture to evaluate on")
    found = metrics.compute()
    matrix = confusion.compute() if classes <= LARGEST_CONFUSION else None
    per_class = found["by_class"]
    empty = accelerator.reduce(support, reduction="sum") == 0
    return Score(
        top1=100 * float(found["top1"]),
        top5=100 * float(found["top5"]),
        loss=float(mean_loss.compute()),
        pictures=pictures,
        per_class=tuple(None if none else 100 * float(share) for share, none in zip(per_class, empty, strict=True)),
        confusion=() if matrix is None else tuple(tuple(int(count) for count in row) for row in matrix.cpu()),
        pictures_per_second=pictures / max(seconds, 1e-9),
        bad=tuple(dict.fromkeys(gather_object(bad))),
    )


def _in_step(batches: Iterator[Batch], accelerator: Accelerator, *, skip_bad: bool) -> Iterator[Batch]:
    """Batches for as long as any process has one: who has none left takes part with its last one, counting nothing.

    A picture that cannot be read in one process stops all of them.
    """
    last: Batch | None = None
    while True:
        batch = next(batches, None)
        bad = batch.bad if batch is not None and not skip_bad else ()
        facts = torch.tensor([float(batch is not None), float(bool(bad))], device=accelerator.device)
        more, stop = accelerator.reduce(facts, reduction="sum").tolist()
        if stop:
            raise ValueError(f"{gather_object(list(bad))[0]} (--skip-bad leaves such pictures out)")
        if not more:
            return
        if batch is None:
            if last is None:
                raise ValueError("a process has no pictures to evaluate on: take fewer processes")
            batch = Batch(last.pixels, last.classes, torch.zeros_like(last.valid), ())
        last = batch
        yield batch
