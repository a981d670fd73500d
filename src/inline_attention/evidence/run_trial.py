"""Runs one trial: trains a model, analyses a trained one, or times all candidates in turn."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from ..analysis.confusion import DEFAULT_TOLERANCE
from ..analysis.masked_accuracy import masked_accuracy
from ..analysis.model_analysis import AnalyzedModel, capture_batches, confusion_of, locality_of
from ..bench.measure import forward, interleave
from ..bench.result import machine
from ..data.datasets import StreamingDataset
from ..data.transforms import evaluation_transform
from ..lite.decode import first_line
from ..models.counting import count
from ..training.config import Recipe
from ..training.load_trained import load_trained
from ..training.model_factory import make_model, model_spec
from ..training.run import run_training
from ..training.run_folder import RunFolder
from .cached_images import CachedClassify, cached_source
from .claims import SPEED_FACTORS
from .trial import Record, Status, Trial, load_record

ANALYZED_IMAGES = 64
"""Images over which confusion and locality are measured."""
MASKING_IMAGES = 512
"""Images over which accuracy with masked keys is measured."""
TIMING_SECONDS = 10.0
"""Seconds of timing at each image size."""

Metrics = dict[str, Any]


class StoppedError(Exception):
    """A stop was requested; the trial has saved a checkpoint."""


def resolve_device(device: str) -> torch.device:
    """The device of this name; 'auto' is the accelerator, or the CPU if there is none."""
    found = torch.accelerator.current_accelerator() if device == "auto" and torch.accelerator.is_available() else None
    return found or torch.device("cpu" if device == "auto" else device)


def run_trial(
    trial: Trial, folder: Path, *, device: str, stop: Callable[[], bool], timed_recipes: Mapping[str, Recipe] | None = None
) -> Record:
    """Run a trial and write its record to the folder. Errors go into the record; only `StoppedError` is raised.

    Args:
        trial: the trial to run.
        folder: the folder of all trials; a model is trained in a subfolder named after the trial's key.
        device: 'auto', 'cpu' or the name of the accelerator.
        stop: called after every step; True stops the training.
        timed_recipes: for a timing, the recipes of the candidates by their labels.
    """
    start, error = perf_counter(), ""
    status: Status = "done"
    metrics: Metrics = {}
    try:
        if trial.kind == "train":
            metrics = _train(trial, folder, device, stop)
        elif trial.kind == "analyze":
            trained = trial.training.key
            training = load_record(folder, trained)
            if training is not None and training.status == "diverged":
                raise FloatingPointError("there is no model to analyse: its training diverged")
            metrics = _analyze(folder / trained, trial.recipe, resolve_device(device))
        else:
            metrics = _time(timed_recipes or {}, trial.seed, resolve_device(device))
    except FloatingPointError as diverged:
        status, error = "diverged", first_line(diverged)
        metrics = {"top1": 100 / len(cached_source(trial.recipe.data).classes)} if trial.kind == "train" else {}
    except StoppedError:
        raise
    except Exception as failed:  # one failed trial must not end the others
        status, error = "failed", f"{type(failed).__name__}: {first_line(failed)}"
    record = Record(
        trial.kind,
        None if trial.candidate is None else asdict(trial.candidate),
        trial.seed,
        status,
        metrics,
        metrics.pop("seconds", perf_counter() - start),
        trial.key,
        trial.recipe_hash,
        trial.code,
        machine(resolve_device(device)),
        error,
    )
    record.write(folder)
    return record


def _train(trial: Trial, folder: Path, device: str, stop: Callable[[], bool]) -> Metrics:
    """Accuracy after the last step, and the cost of the model."""
    out = folder / trial.key
    resume = (out / "recipe.toml").exists()
    outcome = run_training(CachedClassify(trial.recipe), out, resume=resume, stop=stop, device=device)
    if not outcome.finished:
        raise StoppedError
    rows = [row for row in outcome.rows if row["kind"] == "evaluation"]
    shutil.rmtree(RunFolder(out).checkpoints, ignore_errors=True)  # analyses need the weights only
    cost = count(make_model(*model_spec(trial.recipe, len(outcome.classes))))
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
def _analyze(run: Path, recipe: Recipe, place: torch.device) -> Metrics:
    """In percent: confused pairs of queries, weight on the 3 x 3 neighbourhood in layer 1, accuracy with masked keys.

    Without attention weights (ViT^3) there are confused pairs only, of its answers.
    """
    trained = load_trained(str(run))
    model = trained.model.to(place)
    dataset = cached_source(recipe.data).val
    if isinstance(dataset, StreamingDataset):
        raise ValueError(f"{recipe.data.source} comes as a stream: images cannot be drawn from it")
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0)).tolist()[:MASKING_IMAGES]
    loaded = [dataset.load(index, recipe.data.channels) for index in order]
    transform = evaluation_transform(trained.data)
    analyzed = AnalyzedModel(run.name, model, transform)
    images = [image for image, _ in loaded]
    confused = confusion_of(capture_batches(analyzed, images[:ANALYZED_IMAGES]))
    share = {"confused": 100 * confused.share(DEFAULT_TOLERANCE)}
    if not all(layer.has_weights for layer in next(capture_batches(analyzed, images[:1]))):
        return share
    first = locality_of(capture_batches(analyzed, images[:ANALYZED_IMAGES]), (3,))[0]
    labels = torch.tensor([label for _, label in loaded], device=place)
    pixels = torch.stack([transform(image) for image in images]).to(place)
    masked = masked_accuracy(model, zip(pixels.split(64), labels.split(64), strict=True), (3,))
    return share | {
        "near": 100 * first.attention[0],
        "together": 100 * first.together[0],
        "even": 100 * first.even[0],
        "whole": masked.top1,
        "own": masked.found["own window"][0],
        "random": masked.found["random tokens"][0],
    }


def _time(timed_recipes: Mapping[str, Recipe], seed: int, place: torch.device) -> Metrics:
    """Images per second of every candidate at several image sizes, timed in turn in one process."""
    found: dict[str, Metrics] = {label: {} for label in timed_recipes}
    for factor in SPEED_FACTORS:
        calls = {}
        batch = max(1, 64 // factor**2)
        for label, recipe in timed_recipes.items():
            torch.manual_seed(seed)
            name, arguments = model_spec(recipe, 10)
            side = tuple(factor * length for length in recipe.data.size)
            model = make_model(name, {**arguments, "img_size": side}).eval().to(place)
            calls[label] = forward(model, torch.randn(batch, recipe.data.channels, *side, device=place))
        for label, timing in interleave(calls, seconds=TIMING_SECONDS, device=place).items():
            found[label][f"rate_{factor}x"] = batch / timing.best
    return dict(found)
