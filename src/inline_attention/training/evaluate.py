"""How good a model is: every picture counted once, over however many processes, by the task's numbers."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast, gather_object
from torch import nn

from .loader import Batch
from .task import Meter


@dataclass(frozen=True)
class Score:
    """What an evaluation found."""

    numbers: dict[str, float | None]
    """By the names that the task gives them; None for what cannot be told of these pictures."""
    details: dict[str, Any]
    """What the task keeps beside them."""
    pictures: int
    pictures_per_second: float
    """Of the model alone, waiting for pictures not counted."""
    bad: tuple[str, ...]
    """Pictures that could not be read, and were left out."""


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterator[Batch],
    meter: Meter,
    accelerator: Accelerator,
    *,
    skip_bad: bool,
    progress: Callable[[int], None] = lambda _: None,
) -> Score:
    """Go once through the pictures.

    Args:
        batches: this process's share.
        meter: counts what the model says.
        skip_bad: leave out pictures that cannot be read instead of stopping.
        progress: told how many pictures were done by all processes.
    """
    bad: list[str] = []
    done, busy = 0, 0.0
    model = _bare(model, accelerator)
    was_training = model.training
    model.eval()
    for batch in _in_step(batches, accelerator, skip_bad=skip_bad):
        bad.extend(batch.bad)
        start = perf_counter()
        with accelerator.autocast():
            meter.observe(model, batch.to(accelerator.device))
        busy += perf_counter() - start
        done += int(batch.valid.sum())
        progress(done * accelerator.num_processes)
    model.train(was_training)
    counted = accelerator.reduce(torch.tensor([float(done), busy], device=accelerator.device), reduction="sum")
    pictures, seconds = int(counted[0]), float(counted[1]) / accelerator.num_processes
    if not pictures:
        raise ValueError("there is no picture to evaluate on")
    return Score(
        meter.numbers(),
        meter.details(),
        pictures=pictures,
        pictures_per_second=pictures / max(seconds, 1e-9),
        bad=tuple(dict.fromkeys(gather_object(bad))),
    )


def _bare(model: nn.Module, accelerator: Accelerator) -> nn.Module:
    """The model without DDP, which would have processes wait for each other at every call; they may need different ones.

    What batch norms remember is taken from the main process, as DDP does.
    """
    bare: nn.Module = accelerator.unwrap_model(model)
    if accelerator.num_processes > 1:
        for buffer in bare.buffers():
            buffer.copy_(broadcast(buffer))
    return bare


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
            batch = Batch(last.pixels, last.targets, torch.zeros_like(last.valid), ())
        last = batch
        yield batch
