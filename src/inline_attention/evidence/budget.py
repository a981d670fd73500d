"""The largest scale that fits a time budget, from the measured time of a training step of each kind of model."""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from time import perf_counter

import torch
import torch.nn.functional as F

from ..data.config import DataConfig
from ..training.config import Recipe
from ..training.model_factory import make_model, model_spec
from .claims import SPEED_FACTORS, Claim
from .run_trial import TIMING_SECONDS
from .scale import BATCH, SCALES, Scale
from .trial import Trial
from .trial_plan import TrialPlan, plan_trials

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
OVERHEAD = 1.5
"""Time of a step over that of forward and backward alone: data loading, the optimizer, other load on the machine."""
READ_SECONDS = 1e-4
"""Approximate time to read one validation image."""
TRIAL_SECONDS = 3.0
"""Approximate time to start and to end a trial."""
ANALYSIS_SECONDS = 6.0
"""Approximate time to analyse one model."""


def parse_budget(text: str) -> float:
    """Seconds of a duration such as '90s', '30m', '2h' or '1.5d'."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if not found or not float(found[1]):
        raise ValueError(f"--budget must be a time such as 90s, 30m, 2h or 1d, got {text!r}")
    return float(found[1]) * UNITS[found[2]]


def estimate_seconds(trials: Sequence[Trial], plan: TrialPlan, jobs: int, device: str = "cpu") -> float:
    """Approximate time of these trials of a plan with `jobs` in parallel."""
    spent = {"train": 0.0, "analyze": 0.0, "time": 0.0}
    for trial in trials:
        if trial.kind == "train":
            step = _step(_representative(trial.recipe), plan.classes, device)
            # a forward pass takes about a third of forward and backward
            evaluation = plan.val_images * (READ_SECONDS + step / BATCH / 3)
            spent["train"] += TRIAL_SECONDS + OVERHEAD * trial.recipe.schedule.steps * step + evaluation
        elif trial.kind == "analyze":
            spent["analyze"] += ANALYSIS_SECONDS
        else:
            spent["time"] += TIMING_SECONDS * len(SPEED_FACTORS)
    return (spent["train"] + spent["analyze"]) / jobs + spent["time"]


def choose_scale(
    claims: Sequence[Claim], data: DataConfig, seeds: int, jobs: int, budget: float, device: str = "cpu"
) -> tuple[Scale, float]:
    """The largest scale that fits the budget (the smallest if none does), and its approximate time in seconds."""
    for scale in reversed(SCALES.values()):
        plan = plan_trials(claims, scale, data, seeds)
        seconds = estimate_seconds(plan.trials, plan, jobs, device)
        if seconds <= budget:
            break
    return scale, seconds


def _representative(recipe: Recipe) -> Recipe:
    """The recipe that stands for all whose steps take about as long: the same model with softmax attention."""
    arguments = re.sub(r"(, )?(inline_window=\d+|mixer_args=\{[^}]*\})", "", recipe.model.args)
    model = replace(recipe.model, mixer="softmax", kernel=None, local=False, args=arguments)
    return Recipe(model=model, data=recipe.data)


@lru_cache
def _step(recipe: Recipe, classes: int, device: str) -> float:
    """Seconds of forward and backward on one core or on the accelerator: the best of three."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = make_model(*model_spec(recipe, classes)).to(device)
        images = torch.randn(BATCH, recipe.data.channels, *recipe.data.size, device=device)
        labels = torch.zeros(BATCH, dtype=torch.long, device=device)
        times = []
        for _ in range(3):
            start = perf_counter()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            loss.item()  # waits for the device
            times.append(perf_counter() - start)
    finally:
        torch.set_num_threads(threads)
    return min(times)
