"""The training loop. Everything that can be switched on is an option of this one loop."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from time import perf_counter
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from timm.utils import ModelEmaV3
from torch import Tensor, nn

from ..data.loader import Batch, Purpose, reseed
from .nonfinite import first_nonfinite_layer
from .run_folder import RunWriter
from .schedule import Plan, Scheduler, learning_rate
from .task import Score, Task

MOST_SKIPPED_STEPS = 25
"""Steps in a row that fp16 may skip, halving its loss scale, before the run counts as diverged."""


@dataclass
class Progress:
    """How far a run is: what a checkpoint holds besides tensors. Sums are over whole steps."""

    step: int = 0
    best: dict[str, Any] = field(default_factory=dict)
    """Metrics of the best weights so far, and where they come from."""
    window_loss: float = 0.0
    """Sum of losses since the last line of metrics."""
    window_steps: int = 0
    epoch_loss: float = 0.0
    seconds: float = 0.0
    evaluated: int = 0
    """Step of the last end of an epoch that is done."""
    bad: list[str] = field(default_factory=list)
    """A line for each image that could not be read."""


class Timer:
    """Training time: in all, and since the last line of metrics. Evaluation and saving do not count."""

    def __init__(self, before: float) -> None:
        self.start = perf_counter() - before
        self.begin_window()

    def begin_window(self) -> None:
        """Start a new window."""
        self.window_start, self.waited, self.steps = perf_counter(), 0.0, 0

    def seconds(self) -> float:
        """Of the whole run."""
        return perf_counter() - self.start

    def steps_per_second(self) -> float:
        """In the window."""
        return self.steps / max(perf_counter() - self.window_start, 1e-9)

    def share_waited(self) -> float:
        """Share of the window's time spent waiting for images."""
        return self.waited / max(perf_counter() - self.window_start, 1e-9)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time spent in here counts as waiting for images."""
        before = perf_counter()
        yield
        self.waited += perf_counter() - before

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time spent in here does not count."""
        before = perf_counter()
        yield
        spent = perf_counter() - before
        self.start += spent
        self.window_start += spent


class Reporter(Protocol):
    """Receives what happens in a run, in the main process."""

    def message(self, text: str) -> None:
        """One line for the user."""

    def begin(self, plan: Plan, start: int) -> None:
        """Training begins at this step."""

    def step(self, step: int, loss: float, images_per_second: float) -> None:
        """A step is done, at this speed."""

    def within(self, done: int, total: int) -> None:
        """Progress within one image, where it goes through the model in parts."""

    def logged(self, row: dict[str, Any]) -> None:
        """A line of training metrics was written."""

    def evaluating(self, done: int, total: int) -> None:
        """Progress of an evaluation, in images."""

    def evaluated(self, row: dict[str, Any]) -> None:
        """A line of evaluation metrics was written."""


class SilentReporter(Reporter):
    """Reports nothing."""

    def message(self, text: str) -> None:  # noqa: D102
        pass

    def begin(self, plan: Plan, start: int) -> None:  # noqa: D102
        pass

    def step(self, step: int, loss: float, images_per_second: float) -> None:  # noqa: D102
        pass

    def within(self, done: int, total: int) -> None:  # noqa: D102
        pass

    def logged(self, row: dict[str, Any]) -> None:  # noqa: D102
        pass

    def evaluating(self, done: int, total: int) -> None:  # noqa: D102
        pass

    def evaluated(self, row: dict[str, Any]) -> None:  # noqa: D102
        pass


@dataclass(kw_only=True)
class Engine:
    """A run, ready to start."""

    task: Task
    plan: Plan
    classes: int
    accelerator: Accelerator
    model: nn.Module
    optimizer: Any
    """accelerate's wrapper of the optimizer."""
    scheduler: Scheduler
    average: ModelEmaV3 | None
    progress: Progress
    reporter: Reporter
    writer: RunWriter
    evaluate: Callable[[nn.Module], Score]
    """Scores a model on the validation set."""
    stop: Callable[[], bool]
    """Whether to save and stop; asked after every step."""

    def run(self, batches: Iterator[Batch]) -> bool:
        """Train to the end. False: stopped before it, after saving."""
        plan, progress, run = self.plan, self.progress, self.task.recipe.run
        self.reporter.begin(plan, progress.step)
        self.task.watch = getattr(self.reporter, "within", self.task.watch)  # which reporters of older code lack
        self.model.train()
        timer = Timer(progress.seconds)
        skipped = 0
        if plan.epoch_ends(progress.step) and progress.evaluated < progress.step:  # the last evaluation ended the run
            self._end_epoch()
            self._save()
        while progress.step < plan.steps:
            step = progress.step
            self.scheduler.step_update(step)
            loss, norm, stopping = self._step(step, batches, timer)
            skipped = skipped + 1 if self.optimizer.step_was_skipped else 0
            if skipped >= MOST_SKIPPED_STEPS:
                raise FloatingPointError(f"fp16 overflowed in {skipped} steps up to step {step}; {self.writer.last_good()}")
            progress.step = step + 1
            progress.window_loss += loss
            progress.window_steps += 1
            progress.epoch_loss += loss
            timer.steps += 1
            progress.seconds = timer.seconds()
            self.reporter.step(progress.step, loss, plan.batch * timer.steps_per_second())
            epoch_done = plan.epoch_ends(progress.step)
            if progress.step % run.log == 0 or epoch_done:
                self._log_step(norm, timer)
            with timer.paused():
                if epoch_done:
                    self._end_epoch()
                if epoch_done or stopping or (run.save and progress.step % run.save == 0):
                    self._save()
            if stopping and progress.step < plan.steps:
                return False
        return True

    def _step(self, step: int, batches: Iterator[Batch], timer: Timer) -> tuple[float, float, bool]:
        """One optimizer step: (loss over the global batch, norm of the gradient, whether to stop)."""
        plan, accelerator = self.plan, self.accelerator
        total = torch.zeros((), device=accelerator.device)
        forwards: list[Callable[[nn.Module], Tensor]] = []
        for turn in range(plan.accumulation):
            with timer.waiting():
                batch = next(batches)
            self._note_bad(batch)
            number = step * plan.micro_batches + accelerator.process_index * plan.accumulation + turn
            forward = partial(self._loss, batch, number)
            forwards.append(forward)
            # DDP averages gradients over processes once, with the last micro-batch
            last = turn == plan.accumulation - 1
            with nullcontext() if last else accelerator.no_sync(self.model):
                loss = forward(self.model)
                accelerator.backward(loss / plan.accumulation)
            total += loss.detach() / plan.accumulation
        norm = float(accelerator.clip_grad_norm_(self.model.parameters(), self.task.recipe.optim.clip or float("inf")))
        # the request to stop is reduced with the loss, so that all processes stop after the same step
        shared = torch.stack([total, total.new_tensor(float(self.stop()))])
        mean_loss, stopping = accelerator.reduce(shared, reduction="mean").tolist()
        if not isfinite(mean_loss) or (not isfinite(norm) and accelerator.scaler is None):
            what = f"loss {mean_loss}" if not isfinite(mean_loss) else f"gradient of length {norm}"
            where = first_nonfinite_layer(accelerator.unwrap_model(self.model), forwards)
            raise FloatingPointError(f"{what} in step {step}: first non-finite value: {where}; {self.writer.last_good()}")
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.average is not None:
            self.average.update(accelerator.unwrap_model(self.model))
        return mean_loss, norm, stopping > 0

    def _loss(self, batch: Batch, number: int, model: nn.Module) -> Tensor:
        """Loss of one micro-batch. Its number seeds all randomness in it: mixup, drop path, sampled boxes."""
        device = self.accelerator.device
        batch = batch.to(device)
        reseed(self.task.recipe.run.seed, Purpose.STEP, number, device=device.type)
        return self.task.loss(model, batch, self.classes)

    def _note_bad(self, batch: Batch) -> None:
        if not batch.bad:
            return
        if not self.task.recipe.data.skip_bad:
            raise ValueError(f"{batch.bad[0]} (--skip-bad goes on without such images)")
        self.progress.bad = list(dict.fromkeys([*self.progress.bad, *batch.bad]))

    def _log_step(self, norm: float, timer: Timer) -> None:
        progress = self.progress
        row = {
            "kind": "training",
            "step": progress.step,
            "epoch": progress.step / self.plan.steps_per_epoch,
            "lr": learning_rate(self.optimizer),
            "train_loss": progress.window_loss / progress.window_steps,
            "gradient": norm if isfinite(norm) else None,  # fp16 overflows now and then
            "images_per_second": self.plan.batch * timer.steps_per_second(),
            "waiting": timer.share_waited(),
            "seconds": progress.seconds,
        }
        progress.window_loss, progress.window_steps = 0.0, 0
        timer.begin_window()
        self.writer.log(row)
        self.reporter.logged(row)

    def _save(self) -> None:
        average = None if self.average is None else self.average.module
        self.writer.save(self.model, self.optimizer.optimizer, average, self.progress)

    def _end_epoch(self) -> None:
        """Evaluate the model and its average, if it is time to; keep the best weights so far."""
        progress, plan = self.progress, self.plan
        epoch = plan.epoch_of(progress.step)
        if epoch % self.task.recipe.run.evaluate == 0 or progress.step == plan.steps:
            try:
                self._evaluate(epoch, progress.epoch_loss / (progress.step - (epoch - 1) * plan.steps_per_epoch))
            except ValueError:  # an image that cannot be read: the epoch is not lost
                self._save()
                raise
        progress.evaluated, progress.epoch_loss = progress.step, 0.0
        progress.bad = list(dict.fromkeys(gather_object(progress.bad)))

    def _evaluate(self, epoch: int, train_loss: float) -> None:
        progress, metric = self.progress, self.task.main_metric
        row: dict[str, Any] = {"kind": "evaluation", "epoch": epoch, "step": progress.step, "lr": learning_rate(self.optimizer)}
        row["train_loss"] = train_loss
        models = {"": self.model, **({} if self.average is None else {"ema_": self.average.module})}
        for prefix, model in models.items():
            score = self.evaluate(model)
            progress.bad = list(dict.fromkeys([*progress.bad, *score.bad]))
            row |= {f"{prefix}{name}": value for name, value in score.metrics.items()}
            value = score.metrics[metric] or 0.0
            if self.task.improves(value, progress.best.get(metric)):
                best = {"weights": "average" if prefix else "model", "epoch": epoch, **score.metrics, metric: value}
                progress.best = {**best, "step": progress.step, "images": score.images, **score.details}
                self.writer.save_best(model, best)
        row["seconds"] = progress.seconds
        self.writer.log(row)
        self.reporter.evaluated(row)
