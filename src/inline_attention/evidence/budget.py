"""Which scale a budget allows: steps are timed, a few of each kind of model, and added up."""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from time import perf_counter

import torch
import torch.nn.functional as F

from ..training.create import creation, make_model
from ..training.recipe import DataPart, Recipe
from .cell import Cell
from .claims import SPEED_FACTORS, Claim
from .grid import Grid, grid_of
from .run_cell import RACE_SECONDS
from .scale import BATCH, SCALES, Scale

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
BESIDE = 1.5
"""Time of a step over that of its forward and backward: reading pictures, the optimizer, a machine that is not quiet."""
READ_SECONDS = 1e-4
"""About, to read one held-out picture."""
CELL_SECONDS = 3.0
"""About, to begin a cell and to end it."""
LOOK_SECONDS = 6.0
"""About, to look at one model."""


def parse_budget(text: str) -> float:
    """Seconds: '90s', '30m', '2h', '1.5d'."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if not found or not float(found[1]):
        raise ValueError(f"--budget must be a time such as 90s, 30m, 2h or 1d, got {text!r}")
    return float(found[1]) * UNITS[found[2]]


def estimate_seconds(cells: Sequence[Cell], grid: Grid, jobs: int, device: str = "cpu") -> float:
    """About how long some of a grid's cells take, side by side. A picture forward is a third of it forward and backward."""
    spent = {"train": 0.0, "look": 0.0, "race": 0.0}
    for cell in cells:
        if cell.kind == "train":
            step = _step(_kind(cell.recipe), grid.classes, device)
            held_out = grid.held_out * (READ_SECONDS + step / BATCH / 3)
            spent["train"] += CELL_SECONDS + BESIDE * cell.recipe.schedule.steps * step + held_out
        elif cell.kind == "look":
            spent["look"] += LOOK_SECONDS
        else:
            spent["race"] += RACE_SECONDS * len(SPEED_FACTORS)
    return (spent["train"] + spent["look"]) / jobs + spent["race"]


def choose_scale(
    claims: Sequence[Claim], data: DataPart, seeds: int, jobs: int, budget: float, device: str = "cpu"
) -> tuple[Scale, float]:
    """The largest scale that fits, and about how long it takes; the smallest if none does."""
    for scale in reversed(SCALES.values()):
        grid = grid_of(claims, scale, data, seeds)
        seconds = estimate_seconds(grid.cells, grid, jobs, device)
        if seconds <= budget:
            break
    return scale, seconds


def _kind(recipe: Recipe) -> Recipe:
    """Recipes whose steps take about as long are one: the plain attention of a model stands for all."""
    arguments = re.sub(r"(, )?inline_window=\d+", "", recipe.model.args)
    model = replace(recipe.model, mixer="softmax", kernel=None, local=False, args=arguments)
    return Recipe(model=model, data=recipe.data)


@lru_cache
def _step(recipe: Recipe, classes: int, device: str) -> float:
    """Seconds of one step on one core, or on the accelerator: the best of three."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = make_model(*creation(recipe, classes)).to(device)
        pictures = torch.randn(BATCH, recipe.data.channels, *recipe.data.size, device=device)
        labels = torch.zeros(BATCH, dtype=torch.long, device=device)
        times = []
        for _ in range(3):
            start = perf_counter()
            loss = F.cross_entropy(model(pictures), labels)
            loss.backward()
            loss.item()  # waits for the device
            times.append(perf_counter() - start)
    finally:
        torch.set_num_threads(threads)
    return min(times)
