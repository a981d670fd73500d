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

from .build import Schedule
from .evaluate import Score
from .health import first_bad_layer
from .keeper import Keeper
from .loader import Batch
from .plan import Plan
from .randomness import Purpose, reseed
from .recipe import Recipe
from .task import Task

SKIPPED_IN_A_ROW = 25
"""Steps that fp16 may skip, halving its scale, before the run counts as diverged."""


@dataclass
class Progress:
    """How far a run is: what a checkpoint holds besides tensors. Sums are of whole numbers of steps."""

    step: int = 0
    best: dict[str, Any] = field(default_factory=dict)
    window_loss: float = 0.0
    window_steps: int = 0
    epoch_loss: float = 0.0
    seconds: float = 0.0
    evaluated: int = 0
    """Step of the last end of an epoch that was gone through."""
    bad: list[str] = field(default_factory=list)


class Clock:
    """Time of training: in all, and over the window since the last line of metrics; evaluation and saving are not in it."""

    def __init__(self, before: float) -> None:
        self.start = perf_counter() - before
        self.begin_window()

    def begin_window(self) -> None:
        """Count steps and waiting anew."""
        self.mark, self.waited, self.steps = perf_counter(), 0.0, 0

    def seconds(self) -> float:
        """Of the whole run."""
        return perf_counter() - self.start

    def rate(self) -> float:
        """Steps per second in the window."""
        return self.steps / max(perf_counter() - self.mark, 1e-9)

    def share_waited(self) -> float:
        """Of the window's time, for pictures."""
        return self.waited / max(perf_counter() - self.mark, 1e-9)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time spent here is waiting for pictures."""
        before = perf_counter()
        yield
        self.waited += perf_counter() - before

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time spent here is not training."""
        before = perf_counter()
        yield
        spent = perf_counter() - before
        self.start += spent
        self.mark += spent


class Report(Protocol):
    """Who is told what happens, in the main process."""

    def say(self, text: str) -> None:
        """One line worth knowing."""

    def begin(self, plan: Plan, start: int) -> None:
        """Training begins at this step."""

    def step(self, step: int, loss: float, rate: float) -> None:
        """A step was done."""

    def logged(self, row: dict[str, Any]) -> None:
        """A line of metrics on training was written."""

    def evaluating(self, done: int, total: int) -> None:
        """So many pictures of the evaluation are done."""

    def evaluated(self, row: dict[str, Any]) -> None:
        """A line of metrics on an evaluation was written."""


@dataclass
class Engine:
    """The parts of a run, ready to go."""

    recipe: Recipe
    task: Task
    plan: Plan
    classes: int
    accelerator: Accelerator
    model: nn.Module
    optimizer: Any
    schedule: Schedule
    average: ModelEmaV3 | None
    progress: Progress
    report: Report
    keeper: Keeper
    evaluate: Callable[[nn.Module], Score]
    stop: Callable[[], bool]
    """Whether someone wants the run to stop."""

    def run(self, batches: Iterator[Batch]) -> bool:
        """Train to the end. False: stopped before it, after saving."""
        plan, progress, run = self.plan, self.progress, self.recipe.run
        self.report.begin(plan, progress.step)
        self.model.train()
        clock = Clock(progress.seconds)
        skipped = 0
        if plan.epoch_ends(progress.step) and progress.evaluated < progress.step:  # stopped by the evaluation
            self._end_of_epoch()
            self._save()
        while progress.step < plan.steps:
            step = progress.step
            self.schedule.step_update(step)
            loss, norm, stopping = self._step(step, batches, clock)
            skipped = skipped + 1 if self.optimizer.step_was_skipped else 0
            if skipped >= SKIPPED_IN_A_ROW:
                raise FloatingPointError(f"fp16 overflowed in {skipped} steps up to step {step}; {self.keeper.last_good()}")
            progress.step = step + 1
            progress.window_loss += loss
            progress.window_steps += 1
            progress.epoch_loss += loss
            clock.steps += 1
            progress.seconds = clock.seconds()
            self.report.step(progress.step, loss, plan.batch * clock.rate())
            epoch_done = plan.epoch_ends(progress.step)
            if progress.step % run.log == 0 or epoch_done:
                self._log_step(norm, clock)
            with clock.paused():
                if epoch_done:
                    self._end_of_epoch()
                if epoch_done or stopping or (run.save and progress.step % run.save == 0):
                    self._save()
            if stopping and progress.step < plan.steps:
                return False
        return True

    def _step(self, step: int, batches: Iterator[Batch], clock: Clock) -> tuple[float, float, bool]:
        """One change of the weights: (loss over the global batch, length of the gradient, stop?)."""
        plan, accelerator = self.plan, self.accelerator
        total = torch.zeros((), device=accelerator.device)
        losses: list[Callable[[nn.Module], Tensor]] = []
        for turn in range(plan.accumulation):
            with clock.waiting():
                batch = next(batches)
            self._note_bad(batch)
            number = step * plan.micro_batches + accelerator.process_index * plan.accumulation + turn
            last = turn == plan.accumulation - 1
            forward = partial(self._loss, batch, number)
            losses.append(forward)
            with nullcontext() if last else accelerator.no_sync(self.model):
                loss = forward(self.model)
                accelerator.backward(loss / plan.accumulation)
            total += loss.detach() / plan.accumulation
        norm = float(accelerator.clip_grad_norm_(self.model.parameters(), self.recipe.optim.clip or float("inf")))
        shared = torch.stack([total, total.new_tensor(float(self.stop()))])
        loss_mean, stopping = accelerator.reduce(shared, reduction="mean").tolist()
        if not isfinite(loss_mean) or (not isfinite(norm) and accelerator.scaler is None):
            what = f"loss {loss_mean}" if not isfinite(loss_mean) else f"gradient of length {norm}"
            where = first_bad_layer(accelerator.unwrap_model(self.model), losses)
            raise FloatingPointError(f"{what} in step {step}: first bad is {where}; {self.keeper.last_good()}")
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.average is not None:
            self.average.update(accelerator.unwrap_model(self.model))
        return loss_mean, norm, stopping > 0

    def _loss(self, batch: Batch, number: int, model: nn.Module) -> Tensor:
        """Of one micro-batch; its number decides all chance in it: mixing, what drop path drops, which boxes are sampled."""
        device = self.accelerator.device
        batch = batch.to(device)
        reseed(self.recipe.run.seed, Purpose.STEP, number, device=device.type)
        return self.task.loss(model, batch, self.classes)

    def _note_bad(self, batch: Batch) -> None:
        if not batch.bad:
            return
        if not self.recipe.data.skip_bad:
            raise ValueError(f"{batch.bad[0]} (--skip-bad goes on without such pictures)")
        self.progress.bad = list(dict.fromkeys([*self.progress.bad, *batch.bad]))

    def _log_step(self, norm: float, clock: Clock) -> None:
        progress = self.progress
        row = {
            "kind": "training",
            "step": progress.step,
            "epoch": progress.step / self.plan.steps_per_epoch,
            "lr": self.plan.rate(progress.step - 1),
            "train_loss": progress.window_loss / progress.window_steps,
            "gradient": norm if isfinite(norm) else None,  # fp16 overflows now and then
            "pictures_per_second": self.plan.batch * clock.rate(),
            "waiting": clock.share_waited(),
            "seconds": progress.seconds,
        }
        progress.window_loss, progress.window_steps = 0.0, 0
        clock.begin_window()
        self.keeper.log(row)
        self.report.logged(row)

    def _save(self) -> None:
        average = None if self.average is None else self.average.module
        self.keeper.save(self.model, self.optimizer.optimizer, average, self.progress)

    def _end_of_epoch(self) -> None:
        """Evaluate the model, and its average beside it; keep the better of all so far."""
        progress, plan = self.progress, self.plan
        epoch = plan.epoch_of(progress.step)
        if epoch % self.recipe.run.evaluate == 0 or progress.step == plan.steps:
            try:
                self._score(epoch, progress.epoch_loss / (progress.step - (epoch - 1) * plan.steps_per_epoch))
            except ValueError:  # a picture that cannot be read: the epoch is not lost
                self._save()
                raise
        progress.evaluated, progress.epoch_loss = progress.step, 0.0
        progress.bad = list(dict.fromkeys(gather_object(progress.bad)))

    def _score(self, epoch: int, train_loss: float) -> None:
        progress, plan = self.progress, self.plan
        row: dict[str, Any] = {"kind": "evaluation", "epoch": epoch, "step": progress.step, "lr": plan.rate(progress.step - 1)}
        row["train_loss"] = train_loss
        models = {"": self.model, **({} if self.average is None else {"ema_": self.average.module})}
        for prefix, model in models.items():
            score = self.evaluate(model)
            progress.bad = list(dict.fromkeys([*progress.bad, *score.bad]))
            row |= {f"{prefix}{name}": value for name, value in score.numbers.items()}
            judged = self.task.judged
            if (score.numbers[judged] or 0.0) > progress.best.get(judged, -1.0):
                told = {"weights": "average" if prefix else "model", "epoch": epoch, **score.numbers}
                told[judged] = score.numbers[judged] or 0.0
                progress.best = {**told, "step": progress.step, "pictures": score.pictures, **score.details}
                self.keeper.keep_best(model, told)
        row["seconds"] = progress.seconds
        self.keeper.log(row)
        self.report.evaluated(row)
