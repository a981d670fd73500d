"""Small data and a small recipe, for runs of seconds."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image
from safetensors.torch import load_file

from inline_attention.data.config import AugmentConfig, DataConfig
from inline_attention.training.config import EmaConfig, ModelConfig, OptimConfig, Recipe, RunConfig, ScheduleConfig
from inline_attention.training.recipe import to_toml

COLOURS = {"blue": (40, 60, 200), "green": (40, 180, 60), "red": (200, 50, 40)}


def write_images(
    folder: Path, per_class: int, *, size: tuple[int, int] = (20, 28), seed: int = 0, classes=tuple(COLOURS)
) -> Path:
    """Noisy images of a few colours, (height, width), in one folder per class."""
    generator = np.random.default_rng(seed)
    for name in classes:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(per_class):
            noise = generator.normal(0, 40, (*size, 3)) + np.array(COLOURS[name])
            Image.fromarray(noise.clip(0, 255).astype(np.uint8)).save(folder / name / f"{number}.png")
    return folder


def small_recipe(source: Path | str, **parts) -> Recipe:
    """Two epochs of a tiny model with everything on that draws from generator."""
    recipe = Recipe(
        model=ModelConfig("inline_swin_nano", drop_path=0.2, args="embed_dim=8, depths=[1,1,1,1], num_heads=[1,2,4,8]"),
        data=DataConfig(source=str(source), size=(16, 24), workers=0),
        augment=AugmentConfig(auto="rand-m9-mstd0.5-inc1", erase=0.25, mixup=0.8, cutmix=1.0, smoothing=0.1),
        optim=OptimConfig(batch=12, device_batch=12, lr=2e-3, rate_batch=12, warmup_lr=1e-5, min_lr=1e-5, clip=5.0),
        schedule=ScheduleConfig(epochs=2, warmup=1),
        ema=EmaConfig(decay=0.9, rate_batch=12),
        run=RunConfig(log=2),
    )
    return replace(recipe, **{name: replace(getattr(recipe, name), **fields) for name, fields in parts.items()})


class RecordingReporter:
    """A reporter that records what it receives."""

    def __init__(self):
        self.messages, self.losses, self.rows = [], [], []

    def message(self, text):
        self.messages.append(text)

    def begin(self, plan, start):
        self.plan, self.start = plan, start

    def step(self, step, loss, images_per_second):
        self.losses.append(loss)

    def logged(self, row):
        self.rows.append(row)

    def evaluating(self, done, total):
        pass

    def evaluated(self, row):
        self.rows.append(row)


def never() -> bool:
    return False


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **more}


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "inline_attention", *words]


def run_command(*words: str, cwd: Path | None = None, **more) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*words), capture_output=True, text=True, cwd=cwd, env=environment(), timeout=300, **more)


def write_recipe(path: Path, recipe: Recipe) -> Path:
    path.write_text(to_toml(recipe))
    return path


TIMES = ("seconds", "images_per_second", "waiting")


def metrics(run: Path) -> list[dict]:
    """Rows of a run without those that depend on the clock."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in TIMES} for row in rows]


def weights(run: Path) -> dict[str, bytes]:
    """Every tensor, bit for bit, of a run's last checkpoint and of its best weights."""
    last = sorted((run / "checkpoints").glob("step-*"))[-1]
    files = [*last.glob("*.safetensors"), run / "best.safetensors"]
    return {f"{file.name} {name}": value.numpy().tobytes() for file in files for name, value in load_file(file).items()}
