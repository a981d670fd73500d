"""Runs one cell: train by the one engine, look at what was trained, or time all contenders in turn."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from ..analysis.confusion import STATED
from ..analysis.masking import masking
from ..analysis.study import Subject, batches_of, confusion_of, locality_of
from ..bench.machine import machine
from ..bench.race import forward
from ..bench.timing import interleave
from ..models.counting import count
from ..plain.wording import first_line
from ..training.create import creation, make_model
from ..training.engine import Report
from ..training.pictures import Stream
from ..training.plan import Plan
from ..training.recipe import Recipe
from ..training.run_folder import RunFolder
from ..training.train import train
from ..training.trained import load_trained
from ..training.view import evaluation_view
from .cell import Cell, Record, Status, load_record
from .claims import SPEED_FACTORS
from .held import HeldClassify, held_source

LOOKED_AT = 64
"""Pictures that confusion and locality are counted over."""
HIDDEN_FROM = 512
"""Pictures that masking is measured on."""
RACE_SECONDS = 10.0
"""For each size."""

Metrics = dict[str, Any]


class StoppedError(Exception):
    """Someone wants to stop; what the cell has done is saved."""


def place_of(device: str) -> torch.device:
    """The device of that name; 'auto' is the accelerator, if there is one."""
    found = torch.accelerator.current_accelerator() if device == "auto" and torch.accelerator.is_available() else None
    return found or torch.device("cpu" if device == "auto" else device)


class _Silent(Report):
    """Cells tell nothing while they run: there are many."""

    def say(self, text: str) -> None:
        pass

    def begin(self, plan: Plan, start: int) -> None:
        pass

    def step(self, step: int, loss: float, rate: float) -> None:
        pass

    def logged(self, row: dict[str, Any]) -> None:
        pass

    def evaluating(self, done: int, total: int) -> None:
        pass

    def evaluated(self, row: dict[str, Any]) -> None:
        pass


def run_cell(
    cell: Cell, folder: Path, *, device: str, stop: Callable[[], bool], racers: Mapping[str, Recipe] | None = None
) -> Record:
    """Run it, and keep its record in the folder. What goes wrong is in the record; only a wish to stop is raised.

    Args:
        cell: what to run.
        folder: of all cells; a model is trained into a folder of its own, named by its key.
        device: 'auto', 'cpu', or the accelerator that must be there.
        stop: asked after every step.
        racers: of a race, the recipes of the contenders, by their labels.
    """
    start, error = perf_counter(), ""
    status: Status = "done"
    metrics: Metrics = {}
    try:
        if cell.kind == "train":
            metrics = _train(cell, folder, device, stop)
        elif cell.kind == "look":
            trained = cell.training.key
            made = load_record(folder, trained)
            if made is not None and made.status == "diverged":
                raise FloatingPointError("there is nothing to look at: its training diverged")
            metrics = _look(folder / trained, cell.recipe, place_of(device))
        else:
            metrics = _race(racers or {}, cell.seed, place_of(device))
    except FloatingPointError as diverged:
        status, error = "diverged", first_line(diverged)
        metrics = {"top1": 100 / len(held_source(cell.recipe.data).classes)} if cell.kind == "train" else {}
    except StoppedError:
        raise
    except Exception as failed:  # whatever it is, the other cells go on
        status, error = "failed", f"{type(failed).__name__}: {first_line(failed)}"
    record = Record(
        cell.kind,
        None if cell.contender is None else asdict(cell.contender),
        cell.seed,
        status,
        metrics,
        metrics.pop("seconds", perf_counter() - start),
        cell.key,
        cell.recipe_hash,
        cell.code,
        machine(place_of(device)),
        error,
    )
    record.write(folder)
    return record


def _train(cell: Cell, folder: Path, device: str, stop: Callable[[], bool]) -> Metrics:
    """Accuracy after the last step; what it cost."""
    out = folder / cell.key
    resume = (out / "recipe.toml").exists()
    outcome = train(HeldClassify(cell.recipe), out, resume=resume, report=_Silent(), stop=stop, device=device)
    if not outcome.finished:
        raise StoppedError
    rows = [row for row in outcome.rows if row["kind"] == "evaluation"]
    shutil.rmtree(RunFolder(out).checkpoints, ignore_errors=True)  # what is looked at later is the best, and last, weights
    cost = count(make_model(*creation(cell.recipe, len(outcome.classes))))
    last = [row for row in outcome.rows if row["kind"] == "training"][-1]
    return {
        "top1": rows[-1]["top1"],
        "loss": rows[-1]["loss"],
        "train_loss": last["train_loss"],
        "steps": rows[-1]["step"],
        "parameters": cost.params,
        "multiply_adds": cost.flops,
        "seconds": rows[-1]["seconds"],
    }


@torch.no_grad()
def _look(run: Path, recipe: Recipe, place: torch.device) -> Metrics:
    """In percent: confused pairs of queries, weight on the own 3 x 3 in the first layer, accuracy with keys hidden."""
    trained = load_trained(str(run))
    model = trained.model.to(place)
    held = held_source(recipe.data).val
    if isinstance(held, Stream):
        raise ValueError(f"{recipe.data.source} comes as a stream: pictures cannot be drawn from it")
    order = torch.randperm(len(held), generator=torch.Generator().manual_seed(0)).tolist()[:HIDDEN_FROM]
    loaded = [held.load(index, recipe.data.channels) for index in order]
    view = evaluation_view(trained.data)
    subject = Subject(run.name, model, view)
    pictures = [picture for picture, _ in loaded]
    confused = confusion_of(batches_of(subject, pictures[:LOOKED_AT]))
    first = locality_of(batches_of(subject, pictures[:LOOKED_AT]), (3,))[0]
    labels = torch.tensor([label for _, label in loaded], device=place)
    pixels = torch.stack([view(picture) for picture in pictures]).to(place)
    masked = masking(model, zip(pixels.split(64), labels.split(64), strict=True), (3,))
    return {
        "confused": 100 * confused.share(STATED),
        "near": 100 * first.attention[0],
        "together": 100 * first.together[0],
        "even": 100 * first.even[0],
        "whole": masked.top1,
        "own": masked.found["own window"][0],
        "random": masked.found["random tokens"][0],
    }


def _race(racers: Mapping[str, Recipe], seed: int, place: torch.device) -> Metrics:
    """Pictures per second of every contender, at several sizes, in turn within one process."""
    found: dict[str, Metrics] = {label: {} for label in racers}
    for factor in SPEED_FACTORS:
        calls = {}
        batch = max(1, 64 // factor**2)
        for label, recipe in racers.items():
            torch.manual_seed(seed)
            name, arguments = creation(recipe, 10)
            side = tuple(factor * length for length in recipe.data.size)
            model = make_model(name, {**arguments, "img_size": side}).eval().to(place)
            calls[label] = forward(model, torch.randn(batch, recipe.data.channels, *side, device=place))
        for label, timing in interleave(calls, seconds=RACE_SECONDS, device=place).items():
            found[label][f"rate_{factor}x"] = batch / timing.best
    return dict(found)
