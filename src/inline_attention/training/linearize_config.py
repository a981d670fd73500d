"""What decides the result of making a softmax model linear; the phases, and the recipe of each."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..data.config import AugmentConfig, DataConfig
from . import distillation
from .config import ModelConfig, OptimConfig, Recipe, RunConfig, ScheduleConfig
from .linearize_task import Linearize, Teacher
from .recipe import to_inline

PHASES = tuple(name for name in distillation.PHASES if name != "swapped")
PHASE_SHARES = (0.02, 0.04, 0.94)
"""Share of the steps of each phase: a short match and a long distillation kept the most accuracy."""
DERIVED_ARGUMENTS = ("num_classes", "in_chans", "img_size", "swap")
"""Arguments of models that the recipe derives from the data, or that are not timm's."""


@dataclass(frozen=True)
class LinearizeConfig:
    """What decides the result.

    Args:
        data, augment: which images, and how they are transformed.
        swap_options: of `swap_as_stored`.
        epochs: passes over the images, of all phases together.
        steps: of each phase, in place of epochs; a phase without steps is left out.
        rates: highest learning rate of each phase, at this batch.
        batch: images per step.
        seed: of new parameters, order and augmentation.
        unlabelled: use all images below the folder, whatever folders they are in.
        keep: which blocks keep their attention, as `parse_keep` reads it; None for none.
        keep_images: training images on which the errors of blocks are measured.
        keep_cost: side of the image for which the cost of kept blocks is measured; 0 for none.
    """

    data: DataConfig
    augment: AugmentConfig = field(default_factory=lambda: AugmentConfig(scale=(0.5, 1.0)))
    swap_options: dict[str, Any] = field(default_factory=lambda: {"mixer": "inline"})
    epochs: float = 2.5
    steps: tuple[int, int, int] | None = None
    rates: tuple[float, float, float] = (1e-3, 1e-3, 5e-4)
    batch: int = 64
    seed: int = 0
    unlabelled: bool = False
    keep: str | None = None
    keep_images: int = 256
    keep_cost: int = 1024

    def phase_steps(self, images: int) -> tuple[int, ...]:
        """Steps of each phase."""
        if self.steps is not None:
            return self.steps
        total = self.epochs * images / self.batch
        return tuple(max(1, round(share * total)) for share in PHASE_SHARES)

    def task(self, teacher: Teacher, phase: str, steps: int, weights: Path | None = None) -> Linearize:
        """One phase."""
        return Linearize(
            self._recipe(teacher, phase, steps, weights), teacher, self.swap_options, phase, unlabelled=self.unlabelled
        )

    def _recipe(self, teacher: Teacher, phase: str, steps: int, weights: Path | None) -> Recipe:
        rate = self.rates[PHASES.index(phase)]
        arguments = {name: value for name, value in teacher.arguments.items() if name not in DERIVED_ARGUMENTS}
        return Recipe(
            model=ModelConfig(
                name=teacher.name,
                args=to_inline(arguments),
                swap=to_inline(self.swap_options),
                weights=None if weights is None else str(weights),
            ),
            data=self.data,
            augment=self.augment,
            optim=OptimConfig(
                batch=self.batch,
                rate_batch=self.batch,
                lr=rate,
                warmup_lr=rate / 100,
                min_lr=rate / 50,
                weight_decay=0.05 if phase == "distil" else 0.0,
                clip=1.0,
            ),
            schedule=ScheduleConfig(steps=steps, warmup=0, warmup_steps=steps // 20),
            run=RunConfig(seed=self.seed, log=20, save=200, evaluate=1_000_000),  # once, at the end
        )
