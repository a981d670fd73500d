"""`inline bench bags`: slides as bags of tiles, InLine against softmax, attention-based pooling and the mean, on made bags."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from itertools import islice
from math import nan
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from timm.models import create_model
from torch import nn

from .made_bags import CHANNELS, Bag, GatedAttention, Pooled, made_bag, made_bags
from .measure import Call, Timing, measure_candidates, peak_memory_of_one_call
from .report import GREY, INLINE, SOFTMAX, TEXTBOOK, failures, logarithmic, number
from .result import Record, peak, seconds

BATCH = 16
"""Bags of a training step."""
RATE, WARMUP = 1e-3, 30
FIRST_TEST_BAG = 10**7
SHAPE: dict[str, Any] = {"patch_size": 1, "in_chans": CHANNELS, "num_classes": 2, "img_size": 8, "depth": 2, "embed_dim": 64}
"""Of inline_deit_nano."""


@dataclass(frozen=True)
class BagCase:
    """Bags of so many tiles, in fp32."""

    tiles: int
    most: int = 10_000
    """Tiles up to which softmax is timed and scored like the others; above it, a single training step is timed."""
    train_tiles: int = 100
    """Tiles of the bags that models are trained on: the rule is the same at every size."""
    training: float = 900.0
    """Seconds for which each model is trained: equal time, not equal steps."""
    test: int = 400
    """Bags that accuracy is measured on."""
    model: str = "bags"
    """What is measured, for messages."""


BAG_CASES = [BagCase(1_000), BagCase(10_000), BagCase(100_000, test=100)]
QUICK_BAG_CASES = [BagCase(tiles, training=20.0, test=50) for tiles in (100, 1_000)]

MODELS: dict[str, Callable[[], nn.Module]] = {
    "inline": partial(create_model, "inline_deit_nano", mixer="inline", **SHAPE),
    "softmax": partial(create_model, "inline_deit_nano", mixer="softmax", **SHAPE),
    "attention pooling": partial(Pooled, weigh=GatedAttention),
    "mean": Pooled,
}
COLOURS = {"inline": INLINE, "softmax": SOFTMAX, "attention pooling": TEXTBOOK, "mean": GREY}


def measure_bags(case: BagCase, seconds: float, device: torch.device) -> Record:
    """Time and memory of a training step on one bag, and accuracy after equal time of training."""
    bag = _to(made_bag(case.tiles, 0), device)
    timed = {name: partial(_step, make, bag) for name, make in MODELS.items() if name != "softmax" or case.tiles <= case.most}
    record = measure_candidates(timed, "step", seconds=seconds, dtype=bag[0].dtype, device=device)
    if case.tiles > case.most:
        call = _step(MODELS["softmax"], bag)
        start = perf_counter()
        record["memory"]["softmax"] = peak_memory_of_one_call(call, device)
        taken = perf_counter() - start
        record["once"] = {"softmax": asdict(Timing(taken, taken, 1))}
    trained = {name: train(name, case.train_tiles, case.training, device) for name in MODELS}
    scored = {name: model for name, (model, _) in trained.items() if name != "softmax" or case.tiles <= case.most}
    scores = {name: accuracy(model, case, device) for name, model in scored.items()}
    return {**record, "size": case.tiles, "accuracy": scores, "steps": {name: steps for name, (_, steps) in trained.items()}}


def _to(bag: Bag, device: torch.device) -> Bag:
    return bag[0].to(device), bag[1].to(device), bag[2]


def _step(make: Callable[[], nn.Module], bag: Bag) -> Call:
    """Forward and backward of one bag."""
    maps, mask, _ = bag
    model = make().to(maps.device)

    def run() -> None:
        model(maps, mask).sum().backward()
        model.zero_grad(set_to_none=True)

    return run


@lru_cache(maxsize=len(MODELS))
def train(name: str, tiles: int, seconds: float, device: torch.device) -> tuple[nn.Module, int]:
    """A model of `MODELS` after so many seconds of training on small bags, and its steps; one step at least.

    The cases of one bench share it.
    """
    torch.manual_seed(0)
    model = MODELS[name]().to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.05)
    bags, start, steps = made_bags(tiles, 1), perf_counter(), 0
    while not steps or perf_counter() - start < seconds:
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (steps + 1) / WARMUP)
        maps, masks, labels = zip(*islice(bags, BATCH), strict=True)
        logits = model(torch.cat(maps).to(device), torch.cat(masks).to(device))
        F.cross_entropy(logits, torch.tensor(labels, device=device)).backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
    return model.eval(), steps


@torch.no_grad()
def accuracy(model: nn.Module, case: BagCase, device: torch.device) -> float:
    """Percent of the test bags that are right."""
    right = 0
    for index in range(case.test):
        maps, mask, label = _to(made_bag(case.tiles, FIRST_TEST_BAG + index), device)
        right += int(model(maps, mask).argmax(1)) == label
    return 100 * right / case.test


COLUMNS = ["tiles", "model", "accuracy %", "steps", "s/step", "GB"]
LEGEND = (
    "Made bags, not slides: two spots far apart, and the label says which of two kinds lies further left; guessing gives 50 %. "
    "Accuracy on other bags after equal time of training on bags of 100 tiles, and the steps of 16 bags that fitted into it; "
    "seconds and peak memory of forward and backward on one bag. inline and softmax: inline_deit_nano with two blocks of 64 "
    "channels; attention pooling: gated attention over tiles (Ilse et al., 2018), and mean: their mean, neither of which knows "
    "where tiles lie."
)


def step_seconds(record: Record, name: str) -> float:
    """Seconds of a step on one bag, timed in turns or once."""
    found = seconds(record, "step", name)
    return found if found == found else seconds(record, "once", name)


def gigabytes(record: Record, name: str) -> float:
    """Peak memory of a step on one bag."""
    return peak(record, name) / 1e9


def rows(records: Sequence[Record]) -> list[list[str]]:
    """The table: one row per number of tiles and model."""
    return [
        [
            f"{r['tiles']:,}",
            name,
            number(r["accuracy"].get(name, nan), 1),
            f"{r['steps'].get(name, 0):,}",
            number(step_seconds(r, name), 3),
            number(gigabytes(r, name), 3),
        ]
        for r in records
        for name in MODELS
    ]


def sentences(records: Sequence[Record]) -> list[str]:
    """Time and memory of softmax over InLine's, at each number of tiles."""
    lines = [
        f"{r['tiles']:,} tiles: a step of softmax takes {step_seconds(r, 'softmax') / step_seconds(r, 'inline'):.2f} times as "
        f"long as InLine's, and {gigabytes(r, 'softmax') / gigabytes(r, 'inline'):.2f} times the memory"
        for r in records
    ]
    return [*lines, *failures(records)]


def draw(records: Sequence[Record]) -> Figure:
    """Accuracy, time and memory against the number of tiles."""
    figure = Figure(figsize=(12, 3.8), layout="constrained")
    accuracy, time, memory = figure.subplots(1, 3)
    tiles = [r["tiles"] for r in records]
    for name, colour in COLOURS.items():
        accuracy.plot(tiles, [r["accuracy"].get(name, nan) for r in records], "-o", color=colour, label=name)
        time.plot(tiles, [step_seconds(r, name) for r in records], "-o", color=colour, label=name)
        memory.plot(tiles, [gigabytes(r, name) for r in records], "-o", color=colour, label=name)
    for axis, label in ((accuracy, "accuracy, %"), (time, "time of a step, s"), (memory, "memory of a step, GB")):
        logarithmic(axis, tiles)
        axis.set(xlabel="tiles", ylabel=label)
    accuracy.set(yscale="linear", ylim=(40, 102))
    accuracy.axhline(50, color="black", linewidth=0.8, linestyle=":")
    accuracy.legend(fontsize=9)
    return figure
