"""Batches: which images, in which order, read and augmented by worker processes, each image with its own seed.

Every random draw is a function of the recipe's seed and of its purpose. No generator state is stored, so a run that was
killed resumes with the same numbers, however far workers had read ahead.

Shapes: B images of a micro-batch, C channels, H x W pixels.
"""

import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from math import ceil
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info

from ..compat import open_webdataset_images
from ..lite.decode import BadImageError, decode, open_pillow
from ..lite.text import printable
from .datasets import ImageDataset, StreamingDataset

Transform = Callable[[Any, Any], tuple[Any, Any]]
"""(image or bag, label) -> (model input, target)."""


class Purpose(IntEnum):
    """The purpose of a draw; part of its seed."""

    WEIGHTS = 0
    ORDER = 1
    IMAGE = 2
    STEP = 3


def seed_of(*numbers: int) -> int:
    """A seed of 63 bits that depends on all the numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def reseed(*numbers: int, device: str = "cpu") -> None:
    """Seed Python's, NumPy's and torch's generators, as augmentation uses all three, and that of the device.

    Args:
        numbers: recipe's seed, purpose, and what else the draws depend on.
        device: the kind of device that draws.
    """
    seed = seed_of(*numbers)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002  the global generator is the one that timm draws from
    if device == "cpu":  # `torch.manual_seed` also records, slowly, to seed a GPU that is used later
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


@dataclass(frozen=True)
class BatchPlan:
    """How the images of a run are split into epochs, steps and micro-batches."""

    images: int
    batch: int
    """Images per step over all processes."""
    micro_batch: int
    """Images in one forward pass of a process."""
    processes: int
    accumulation: int
    """Micro-batches that a process works through in a step."""
    steps_per_epoch: int
    steps: int

    @property
    def epochs(self) -> int:
        """Passes over the images; the last one may be partial."""
        return ceil(self.steps / self.steps_per_epoch)


@dataclass(frozen=True)
class Batch:
    """A micro-batch. Samples that are not valid are padding, and are not counted.

    Inputs and targets are tensors, or lists and dictionaries of tensors. Tensors of one shape are stacked: for
    classification `pixels` is (B, C, H, W) and `targets` is (B,). Anything else stays a list of B.
    """

    pixels: Any
    targets: Any
    valid: Tensor  # (B,)
    bad: tuple[str, ...]
    """A line for each image that could not be read."""
    names: tuple[str, ...] = ()
    """Names of the B images, where they have any."""

    def pin_memory(self) -> "Batch":
        """For asynchronous copies to a GPU; called by torch."""
        return self._each(lambda tensor: tensor.pin_memory())

    def to(self, device: torch.device) -> "Batch":
        """All tensors on a device."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        return Batch(_each(change, self.pixels), _each(change, self.targets), change(self.valid), self.bad, self.names)


def _each(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """The same nested lists and dictionaries, with every tensor changed."""
    if isinstance(value, list):
        return [_each(change, part) for part in value]
    if isinstance(value, dict):
        return {name: _each(change, part) for name, part in value.items()}
    return change(value) if isinstance(value, Tensor) else value


@dataclass(frozen=True)
class SampleIndex:
    """One image to be read: its index in the dataset, and the epoch, which seeds its augmentation."""

    index: int
    epoch: int = 0
    valid: bool = True


@dataclass(frozen=True)
class Sample:
    """One transformed image with its target."""

    pixels: Any
    target: Any
    valid: bool
    bad: tuple[str, ...] = ()
    name: str = ""


@dataclass(frozen=True)
class TransformedDataset(Dataset[Sample]):
    """Images as model inputs. An image that cannot be read is replaced by the next one that can."""

    images: ImageDataset
    transform: Transform
    channels: int
    seed: int
    training: bool

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, sample: SampleIndex) -> Sample:
        bad: list[str] = []
        for offset in range(len(self.images)):
            index = (sample.index + offset) % len(self.images)
            reseed(self.seed, Purpose.IMAGE, sample.epoch, index)
            try:
                pixels, target = self.transform(*self.images.load(index, self.channels))
            except BadImageError as error:
                bad.append(printable(str(error)))
                continue
            return Sample(pixels, target, sample.valid and (self.training or not bad), tuple(bad), self.images.name(index))
        raise ValueError(f"none of the {len(self.images)} images can be used: {bad[0]}")


class TransformedStream(IterableDataset[Sample]):
    """A stream of images as model inputs; `seed` and the place in the stream seed an image's augmentation."""

    def __init__(self, dataset: Any, transform: Transform, channels: int, *seed: int) -> None:
        self.dataset, self.transform, self.channels, self.seed = dataset, transform, channels, seed

    def __iter__(self) -> Iterator[Sample]:
        worker = get_worker_info()
        open_webdataset_images(open_pillow)
        for number, (image, label) in enumerate(self.dataset):
            reseed(*self.seed, worker.id if worker else 0, number)
            name = f"image {number} of the stream"
            decoded = decode(image, name, self.channels)
            yield Sample(*self.transform(decoded, int(label)), True, name=name)


def collate(samples: Sequence[Sample]) -> Batch:
    """A batch of samples."""
    return Batch(
        _stack([sample.pixels for sample in samples]),
        _stack([sample.target for sample in samples]),
        torch.tensor([sample.valid for sample in samples]),
        tuple(text for sample in samples for text in sample.bad),
        tuple(sample.name for sample in samples),
    )


def _stack(parts: list[Any]) -> Any:
    """Tensors of one shape stacked; anything else as a list."""
    if all(isinstance(part, Tensor) and part.shape == parts[0].shape for part in parts):
        return torch.stack(parts)
    return parts


def leave_signals(_: int) -> None:
    """Workers ignore Ctrl-C, which their parent process handles, and end when it terminates them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def worker_count(workers: int | None, processes: int, images: int) -> int:
    """The number that was given, or one worker for each core but one, shared by the processes of this machine.

    Fewer than 64 images are read without workers.
    """
    if workers is not None:
        return workers
    local = int(os.environ.get("LOCAL_WORLD_SIZE", processes))
    return 0 if images < 64 else min(8, max(1, (os.cpu_count() or 1) // local - 1))


@dataclass(frozen=True)
class TrainingOrder(Sampler[list[SampleIndex]]):
    """The order of training: the samples of every micro-batch of a process, from a step on."""

    plan: BatchPlan
    seed: int
    rank: int
    start: int

    def __len__(self) -> int:
        return (self.plan.steps - self.start) * self.plan.accumulation

    def __iter__(self) -> Iterator[list[SampleIndex]]:
        plan, epoch, order = self.plan, -1, torch.empty(0)
        for step in range(self.start, plan.steps):
            if step // plan.steps_per_epoch != epoch:
                epoch = step // plan.steps_per_epoch
                generator = torch.Generator().manual_seed(seed_of(self.seed, Purpose.ORDER, epoch))
                order = torch.randperm(plan.images, generator=generator)
            first = step % plan.steps_per_epoch * plan.batch
            for number in self.micro_batches():
                begin = first + number * plan.micro_batch
                yield [SampleIndex(index, epoch) for index in order[begin : begin + plan.micro_batch].tolist()]

    def micro_batches(self) -> range:
        """Numbers, within a step, of this process's micro-batches."""
        return range(self.rank * self.plan.accumulation, (self.rank + 1) * self.plan.accumulation)


def training_batches(
    source: ImageDataset | StreamingDataset,
    transform: Transform,
    plan: BatchPlan,
    *,
    seed: int,
    rank: int,
    start: int,
    channels: int,
    workers: int,
) -> Iterator[Batch]:
    """All micro-batches of this process, from a step to the end of the run.

    One loader runs across epochs, so that workers never pause.
    """
    if isinstance(source, StreamingDataset):
        yield from _stream_batches(source, transform, plan, seed, rank, start, channels, workers)
        return
    dataset = TransformedDataset(source, transform, channels, seed, training=True)
    yield from _read(_loader(dataset, workers, batch_sampler=TrainingOrder(plan, seed, rank, start)))


def _stream_batches(
    source: StreamingDataset,
    transform: Transform,
    plan: BatchPlan,
    seed: int,
    rank: int,
    start: int,
    channels: int,
    workers: int,
) -> Iterator[Batch]:
    """A stream cannot skip: the part of an epoch that a resumed run has trained on is read again and dropped."""
    per_epoch = plan.steps_per_epoch * plan.accumulation
    first = start // plan.steps_per_epoch
    skipped = start % plan.steps_per_epoch * plan.accumulation
    for epoch in range(first, plan.epochs):
        done = 0
        while done < per_epoch:  # a process whose shards are short reads them again
            seeds = (seed, Purpose.ORDER, epoch, done)
            dataset = source.open(seed_of(*seeds) % 2**31)
            dataset.set_loader_cfg(num_workers=workers)
            dataset.set_epoch(epoch)
            stream = TransformedStream(dataset, transform, channels, *seeds, rank)
            before = done
            generator = torch.Generator().manual_seed(seed_of(*seeds, rank))  # seeds the workers
            loader = _loader(stream, workers, batch_size=plan.micro_batch, drop_last=True, generator=generator)
            for batch in islice(_read(loader), per_epoch - done):
                done += 1
                if epoch > first or done > skipped:
                    yield batch
            if done == before:
                raise ValueError(f"the stream gives a worker fewer than {plan.micro_batch} images: take fewer --data.workers")


def evaluation_batches(
    source: ImageDataset | StreamingDataset,
    transform: Transform,
    batch: int,
    *,
    rank: int,
    processes: int,
    channels: int,
    workers: int,
) -> Iterator[Batch]:
    """Every image once, split over processes; all get equally many batches, padded with samples that are not valid."""
    if isinstance(source, StreamingDataset):
        dataset = source.open(0)
        dataset.set_loader_cfg(num_workers=workers)
        yield from _read(_loader(TransformedStream(dataset, transform, channels, 0), workers, batch_size=batch))
        return
    count = len(source)
    per_process = -(-count // processes)
    samples = [SampleIndex(min(i, count - 1), valid=i < count) for i in range(rank, per_process * processes, processes)]
    lists: Any = [samples[i : i + batch] for i in range(0, per_process, batch)]
    yield from _read(_loader(TransformedDataset(source, transform, channels, 0, training=False), workers, batch_sampler=lists))


def _read(loader: DataLoader[Batch]) -> Iterator[Batch]:
    """The batches; a worker's error is raised without the worker's traceback."""
    try:
        yield from loader
    except ValueError as error:
        raise ValueError(str(error).strip().splitlines()[-1].removeprefix("ValueError: ")) from error


def _loader(dataset: Any, workers: int, **options: Any) -> DataLoader[Batch]:
    return DataLoader(
        dataset,
        num_workers=workers,
        collate_fn=collate,
        pin_memory=torch.accelerator.is_available(),
        worker_init_fn=leave_signals,
        prefetch_factor=4 if workers else None,
        **options,
    )
