"""Batches: which pictures, in which order, read by worker processes, each varied by a chance of its own.

Shapes: B pictures of a micro-batch, C channels, H x W pixels.
"""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info

from ..plain.decode import BadPictureError, decode
from .pictures import Pictures, Stream
from .plan import Plan
from .randomness import Purpose, key, reseed

Show = Callable[[Image.Image, Any], tuple[Any, Any]]
"""(picture, what is known of it) -> (what the model is shown, what it should say)."""


@dataclass(frozen=True)
class Batch:
    """A micro-batch. Places that are not valid fill up: they count for nothing.

    What a task gives for a picture is a tensor, or lists and dictionaries of tensors. Tensors of one shape are stacked: for
    classification `pixels` is (B, C, H, W) and `targets` is (B,). Other things stay a list of B.
    """

    pixels: Any
    targets: Any
    valid: Tensor  # (B,)
    bad: tuple[str, ...]
    """What was wrong with the pictures that could not be read."""

    def pin_memory(self) -> "Batch":
        """For copies to a GPU beside its work; called by torch."""
        return self._each(lambda tensor: tensor.pin_memory())

    def to(self, device: torch.device) -> "Batch":
        """All tensors on a device."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        return Batch(_each(change, self.pixels), _each(change, self.targets), change(self.valid), self.bad)


def _each(change: Callable[[Tensor], Tensor], what: Any) -> Any:
    """All tensors in it, changed."""
    if isinstance(what, list):
        return [_each(change, part) for part in what]
    if isinstance(what, dict):
        return {name: _each(change, part) for name, part in what.items()}
    return change(what) if isinstance(what, Tensor) else what


@dataclass(frozen=True)
class Ticket:
    """One picture to be read: its place in the data, and the epoch, which decides how it is varied."""

    index: int
    epoch: int = 0
    valid: bool = True


@dataclass(frozen=True)
class Sample:
    """One picture as read."""

    pixels: Any
    target: Any
    valid: bool
    bad: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shown(Dataset[Sample]):
    """Pictures as a model sees them. In the place of one that cannot be read comes the next that can."""

    pictures: Pictures
    show: Show
    channels: int
    seed: int
    training: bool

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, ticket: Ticket) -> Sample:
        bad: list[str] = []
        for offset in range(len(self.pictures)):
            index = (ticket.index + offset) % len(self.pictures)
            reseed(self.seed, Purpose.PICTURE, ticket.epoch, index)
            try:
                shown, target = self.show(*self.pictures.load(index, self.channels))
            except BadPictureError as error:
                bad.append(str(error))
                continue
            return Sample(shown, target, ticket.valid and (self.training or not bad), tuple(bad))
        raise ValueError(f"none of the {len(self.pictures)} pictures can be read: {bad[0]}")


class Streamed(IterableDataset[Sample]):
    """A stream of pictures as a model sees them."""

    def __init__(self, dataset: Any, show: Show, channels: int, *chance: int) -> None:
        self.dataset, self.show, self.channels, self.chance = dataset, show, channels, chance

    def __iter__(self) -> Iterator[Sample]:
        worker = get_worker_info()
        for number, (picture, label) in enumerate(self.dataset):
            reseed(*self.chance, worker.id if worker else 0, number)
            decoded = decode(picture, f"picture {number} of the stream", self.channels)
            yield Sample(*self.show(decoded, int(label)), True)


def collate(samples: Sequence[Sample]) -> Batch:
    """One batch out of samples."""
    return Batch(
        _together([sample.pixels for sample in samples]),
        _together([sample.target for sample in samples]),
        torch.tensor([sample.valid for sample in samples]),
        tuple(text for sample in samples for text in sample.bad),
    )


def _together(parts: list[Any]) -> Any:
    """Tensors of one shape as one; other things as they are."""
    if all(isinstance(part, Tensor) and part.shape == parts[0].shape for part in parts):
        return torch.stack(parts)
    return parts


def leave_signals(_: int) -> None:
    """Workers leave Ctrl-C to the process that they work for, and end when it ends them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def worker_count(asked: int | None, processes: int, pictures: int) -> int:
    """A reader for each core but one, shared by the processes of this machine; none for a handful of pictures."""
    if asked is not None:
        return asked
    local = int(os.environ.get("LOCAL_WORLD_SIZE", processes))
    return 0 if pictures < 64 else min(8, max(1, (os.cpu_count() or 1) // local - 1))


@dataclass(frozen=True)
class Order(Sampler[list[Ticket]]):
    """The order of training: the tickets of every micro-batch that a process works through, from a step on."""

    plan: Plan
    seed: int
    rank: int
    start: int

    def __len__(self) -> int:
        return (self.plan.steps - self.start) * self.plan.accumulation

    def __iter__(self) -> Iterator[list[Ticket]]:
        plan, epoch, order = self.plan, -1, torch.empty(0)
        for step in range(self.start, plan.steps):
            if step // plan.steps_per_epoch != epoch:
                epoch = step // plan.steps_per_epoch
                chance = torch.Generator().manual_seed(key(self.seed, Purpose.ORDER, epoch))
                order = torch.randperm(plan.pictures, generator=chance)
            first = step % plan.steps_per_epoch * plan.batch
            for number in self.micro_batches():
                begin = first + number * plan.micro_batch
                yield [Ticket(index, epoch) for index in order[begin : begin + plan.micro_batch].tolist()]

    def micro_batches(self) -> range:
        """Numbers, within a step, of those that fall to this process."""
        return range(self.rank * self.plan.accumulation, (self.rank + 1) * self.plan.accumulation)


def training_batches(
    source: Pictures | Stream, show: Show, plan: Plan, *, seed: int, rank: int, start: int, channels: int, workers: int
) -> Iterator[Batch]:
    """All micro-batches of this process, from a step to the end of the run, across epochs, so that workers never pause."""
    if isinstance(source, Stream):
        yield from _streamed_batches(source, show, plan, seed, rank, start, channels, workers)
        return
    shown = Shown(source, show, channels, seed, training=True)
    yield from _read(_loader(shown, workers, batch_sampler=Order(plan, seed, rank, start)))


def _streamed_batches(
    source: Stream, show: Show, plan: Plan, seed: int, rank: int, start: int, channels: int, workers: int
) -> Iterator[Batch]:
    """A stream cannot jump: the part of an epoch that was trained on is read again and dropped."""
    per_epoch = plan.steps_per_epoch * plan.accumulation
    first = start // plan.steps_per_epoch
    skipped = start % plan.steps_per_epoch * plan.accumulation
    for epoch in range(first, plan.epochs):
        done = 0
        while done < per_epoch:  # a process whose shards are short reads them again
            turn = (seed, Purpose.ORDER, epoch, done)
            dataset = source.open(key(*turn) % 2**31)
            dataset.set_loader_cfg(num_workers=workers)
            dataset.set_epoch(epoch)
            shown = Streamed(dataset, show, channels, *turn, rank)
            before = done
            chance = torch.Generator().manual_seed(key(*turn, rank))  # workers' own seeds come from it
            loader = _loader(shown, workers, batch_size=plan.micro_batch, drop_last=True, generator=chance)
            for batch in islice(_read(loader), per_epoch - done):
                done += 1
                if epoch > first or done > skipped:
                    yield batch
            if done == before:
                raise ValueError(f"the stream gives a worker fewer than {plan.micro_batch} pictures: take fewer --data.workers")


def evaluation_batches(
    source: Pictures | Stream, show: Show, batch: int, *, rank: int, processes: int, channels: int, workers: int
) -> Iterator[Batch]:
    """Every picture once, shared out over processes; all get equally many batches, filled up with places that do not count."""
    if isinstance(source, Stream):
        dataset = source.open(0)
        dataset.set_loader_cfg(num_workers=workers)
        yield from _read(_loader(Streamed(dataset, show, channels, 0), workers, batch_size=batch))
        return
    count = len(source)
    per_process = -(-count // processes)
    tickets = [Ticket(min(i, count - 1), valid=i < count) for i in range(rank, per_process * processes, processes)]
    lists: Any = [tickets[i : i + batch] for i in range(0, per_process, batch)]
    yield from _read(_loader(Shown(source, show, channels, 0, training=False), workers, batch_sampler=lists))


def _read(loader: DataLoader[Batch]) -> Iterator[Batch]:
    """The batches; a worker's error is told without the worker's traceback."""
    try:
        yield from loader
    except ValueError as error:
        raise ValueError(str(error).strip().splitlines()[-1].removeprefix("ValueError: ")) from error


def _loader(dataset: Any, workers: int, **how: Any) -> DataLoader[Batch]:
    return DataLoader(
        dataset,
        num_workers=workers,
        collate_fn=collate,
        pin_memory=torch.accelerator.is_available(),
        worker_init_fn=leave_signals,
        prefetch_factor=4 if workers else None,
        **how,
    )
