"""Steps, batches and rates of a run: a recipe meets a number of pictures and of processes."""

from dataclasses import dataclass
from math import ceil, cos, pi

from .recipe import Recipe


@dataclass(frozen=True)
class Plan:
    """What follows from the recipe.

    A step's batch is cut into micro-batches of equal size. Each has a number of its own, and all chance in it hangs on that
    number: whether one process works through four, or four processes through one each, the sum is the same.
    """

    pictures: int
    batch: int
    micro_batch: int
    processes: int
    accumulation: int
    """Micro-batches that a process works through in a step."""
    steps_per_epoch: int
    steps: int
    falling_steps: int
    """Over which the rate falls."""
    warmup_steps: int
    shape: str
    power: float
    drops: tuple[int, ...]
    """Steps from which the rate is a tenth of what it was."""
    lr: float
    warmup_lr: float
    min_lr: float
    ema_decay: float

    @property
    def micro_batches(self) -> int:
        """Of a step, over all processes."""
        return self.processes * self.accumulation

    @property
    def epochs(self) -> int:
        """Passes over the pictures, the last one perhaps not whole."""
        return ceil(self.steps / self.steps_per_epoch)

    def epoch_ends(self, step: int) -> bool:
        """Whether an epoch, or the run, is over after so many steps."""
        return step % self.steps_per_epoch == 0 or step == self.steps

    def epoch_of(self, step: int) -> int:
        """How many epochs are begun when so many steps are done."""
        return ceil(step / self.steps_per_epoch)

    def rate(self, step: int) -> float:
        """Learning rate of a step: linear warm-up, then as the shape has it of the steps since the very first.

        cosine: lr(t) = min + (lr - min) (1 + cos(pi t / T)) / 2, then the lowest rate
        poly:   lr(t) = min + (lr - min) (1 - t / T)^power, then the lowest rate
        drops:  lr(t) = lr / 10^(drops up to t)
        """
        if step < self.warmup_steps:
            return self.warmup_lr + step * (self.lr - self.warmup_lr) / self.warmup_steps
        if self.shape == "drops":
            return self.lr * 0.1 ** sum(drop <= step for drop in self.drops)
        if step >= self.falling_steps:
            return self.min_lr
        share = step / self.falling_steps
        left = (1 + cos(pi * share)) / 2 if self.shape == "cosine" else (1 - share) ** self.power
        return self.min_lr + (self.lr - self.min_lr) * left


def make_plan(recipe: Recipe, pictures: int, processes: int) -> Plan:
    """Cut the global batch over processes and time; scale the rates."""
    optim, schedule, augment = recipe.optim, recipe.schedule, recipe.augment
    batch = optim.batch
    if pictures < batch:
        raise ValueError(f"{pictures} training pictures do not fill a batch of {batch}: take --optim.batch {pictures} or less")
    if batch % processes:
        raise ValueError(f"optim.batch must be a multiple of the {processes} processes, got {batch}")
    share = batch // processes
    micro = next(size for size in range(min(share, optim.device_batch), 0, -1) if share % size == 0)
    if (augment.mixup or augment.cutmix) and micro % 2:
        raise ValueError(
            f"mixup and cutmix pair pictures: {batch} over {processes} processes gives batches of {micro}, an odd number"
        )
    factor = batch / optim.rate_batch
    per_epoch = pictures // batch
    steps = schedule.steps or (schedule.epochs + schedule.cooldown) * per_epoch
    warmup = schedule.warmup_steps or schedule.warmup * per_epoch
    drops = tuple(drop * per_epoch for drop in schedule.drops)
    if warmup > steps:
        raise ValueError(f"the warm-up of {warmup} steps is longer than the run's {steps}: take a shorter one, or a longer run")
    if drops and drops[-1] >= steps:
        raise ValueError(f"schedule.drops {schedule.drops}: the last one is not within the run's {steps} steps")
    return Plan(
        pictures=pictures,
        batch=batch,
        micro_batch=micro,
        processes=processes,
        accumulation=share // micro,
        steps_per_epoch=per_epoch,
        steps=steps,
        falling_steps=schedule.steps or schedule.epochs * per_epoch,
        warmup_steps=warmup,
        shape=schedule.shape,
        power=schedule.power,
        drops=drops,
        lr=optim.lr * factor,
        warmup_lr=optim.warmup_lr * factor,
        min_lr=optim.min_lr * factor,
        ema_decay=recipe.ema.decay ** (batch / recipe.ema.rate_batch),
    )
