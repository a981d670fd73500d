"""Scales: the size of models and the length of training. A scale turns a candidate and a dataset into a recipe.

All candidates of a scale share the settings of data, augmentation, optimizer, learning rate and steps. Whether the common
learning rate is fair is checked by training candidates at `claims.RATES` too.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

from ..data.config import AugmentConfig, DataConfig
from ..data.sources import open_source
from ..models.counting import count
from ..models.families import fitting_patch
from ..training.chosen_recipe import choose_recipe
from ..training.config import ModelConfig, OptimConfig, Recipe, RunConfig, ScheduleConfig
from ..training.model_factory import make_model, model_spec
from ..training.recipe import load, to_inline
from .candidate import Candidate

BATCH = 64
RATE = 4e-3
"""Learning rate of models of 32 channels; it is divided by the width of wider ones."""
PYRAMID_WIDTH = 64
"""Channels of the nano models of PVT, Swin and CSwin: 20 or 32 in the first stage, 128 or 160 in the last."""
HEADS = 2
NO_AUGMENT = AugmentConfig(scale=(1.0, 1.0), ratio=(1.0, 1.0), hflip=0.0)
"""No augmentation: a run that sees each image about once gains nothing from it."""
PYRAMID_STEPS = 0.5
"""Steps of PVT, Swin and CSwin, as a multiple of the DeiT's: a step costs three to five times as much."""


@dataclass(frozen=True)
class Scale:
    """How much compute a trial gets."""

    name: str
    steps: int
    """Training steps of a DeiT, with 64 images each."""
    width: int
    """Channels of the DeiT that most claims use."""
    depth: int
    """Its blocks."""
    augment: bool = False
    """Whether images are augmented as in the recipe that suits them."""

    @property
    def description(self) -> str:
        """Models and steps, in words."""
        if self is IMAGENET:
            return "the paper's smallest models by the paper's recipes"
        return (
            f"DeiT of width {self.width} and depth {self.depth}, {self.steps:,} steps of {BATCH} images a trial, "
            f"and nano models of the other families, {self._pyramid_steps:,} steps"
        )

    @property
    def _pyramid_steps(self) -> int:
        return round(PYRAMID_STEPS * self.steps)

    def schedule(self, family: str) -> ScheduleConfig:
        """Warm-up over a tenth of the steps, then a cosine."""
        steps = self.steps if family == "deit" else self._pyramid_steps
        return ScheduleConfig(epochs=10_000, warmup=0, steps=steps, warmup_steps=max(1, steps // 10))

    def optim(self, family: str) -> OptimConfig:
        """AdamW; wider models get smaller learning rates."""
        rate = RATE * 32 / (self.width if family == "deit" else PYRAMID_WIDTH)
        floor = rate / 100
        return OptimConfig(batch=BATCH, rate_batch=BATCH, lr=rate, warmup_lr=floor, min_lr=floor, weight_decay=0.05, clip=1.0)


SCALES = {
    scale.name: scale
    for scale in (
        Scale("glance", 60, 32, 2),
        Scale("hour", 250, 32, 2),
        Scale("laptop", 500, 32, 3),
        Scale("day", 6000, 64, 4, augment=True),
        Scale("week", 25000, 96, 6, augment=True),
    )
}
"""From the smallest to the largest; `IMAGENET` is separate."""
IMAGENET = Scale("imagenet", 0, 192, 12)
"""The paper's own models and recipes, for machines with GPUs. No stored result comes from it."""


def recipe_of(candidate: Candidate, scale: Scale, data: DataConfig, classes: int, seed: int) -> Recipe:
    """The training recipe of a candidate."""
    recipe = _published(candidate, data) if scale is IMAGENET else _small(candidate, scale, data)
    longer = 1.0 if candidate.equal and scale is IMAGENET else candidate.longer  # the paper's runs are long enough
    if longer != 1:
        recipe = replace(recipe, schedule=_shortened(recipe.schedule, 1 / longer))
    if candidate.equal:
        reference = replace(candidate, mixer="softmax", local=False, finer=1.0, longer=1.0, equal=False)
        cost = _cost(recipe, classes) / _cost(recipe_of(reference, scale, data, classes, seed), classes)
        recipe = replace(recipe, schedule=_shortened(recipe.schedule, cost))
    optim = replace(
        recipe.optim, **{name: candidate.rate * getattr(recipe.optim, name) for name in ("lr", "warmup_lr", "min_lr")}
    )
    # one evaluation, at the end: the best of several would be chosen on the validation set
    evaluate = max(1, recipe.schedule.epochs)
    return replace(recipe, optim=optim, run=replace(recipe.run, seed=seed, evaluate=evaluate))


def _small(candidate: Candidate, scale: Scale, data: DataConfig) -> Recipe:
    usual = _suitable_recipe(data)
    # such narrow models hardly learn from initial weights with a standard deviation of 0.02
    arguments: dict[str, object] = {"weight_init": "xavier"}
    if candidate.family == "deit":
        arguments |= {
            "patch_size": max(1, round(patch_of(usual.data.size) / candidate.finer)),
            "embed_dim": round(candidate.width * scale.width / HEADS) * HEADS,
            "depth": scale.depth,
            "num_heads": HEADS,
        }
    first_map = min(usual.data.size) // fitting_patch(usual.data.size, most=4)
    if candidate.window is not None:
        arguments["inline_window"] = max(1, round(candidate.window * first_map))
    if candidate.family == "pvt" and candidate.mixer == "softmax":  # a 7 x 7 map of keys in every stage, as at 224 pixels
        arguments["sr_ratios"] = [max(1, round(first_map / 2**stage / 7)) for stage in range(4)]
    return Recipe(
        model=_model(f"inline_{candidate.family}_nano", candidate, arguments),
        data=replace(usual.data, source=data.source, root=data.root, train=data.train, val=data.val, workers=0),
        augment=usual.augment if scale.augment else NO_AUGMENT,
        optim=scale.optim(candidate.family),
        schedule=scale.schedule(candidate.family),
        run=RunConfig(log=100),
    )


def _published(candidate: Candidate, data: DataConfig) -> Recipe:
    """The paper's recipe for the smallest model of a family; `finer` changes the image size."""
    recipe = load(f"inline_{candidate.family}_tiny")
    arguments: dict[str, object] = {}
    if candidate.width != 1:
        arguments["embed_dim"] = round(candidate.width * IMAGENET.width / 6) * 6
    if candidate.window is not None:
        arguments["inline_window"] = round(candidate.window * 56)
    size = round(candidate.finer * recipe.data.size[0])
    data_config = replace(recipe.data, source=data.source, root=data.root, train=data.train, val=data.val, size=(size, size))
    model = _model(recipe.model.name, candidate, arguments)
    return replace(recipe, model=replace(model, drop_path=recipe.model.drop_path), data=data_config)


def _model(name: str, candidate: Candidate, arguments: dict[str, object]) -> ModelConfig:
    if candidate.mixer_args:
        arguments = {**arguments, "mixer_args": candidate.mixer_args}
    return ModelConfig(
        name=name, mixer=candidate.mixer, kernel=candidate.kernel, local=candidate.local, args=to_inline(arguments)
    )


def patch_of(size: tuple[int, int]) -> int:
    """Patch size of a DeiT: seven or eight patches along a side, at most 16 pixels each."""
    return max(1, min(16, round(min(size) / 8)))


@lru_cache
def _suitable_recipe(data: DataConfig) -> Recipe:
    """The recipe that `inline train` chooses for this dataset: image size, transforms and augmentation."""
    return choose_recipe(data.source, open_source(data))[1]


@lru_cache
def _cost(recipe: Recipe, classes: int) -> int:
    """Multiply-adds per image."""
    return count(make_model(*model_spec(recipe, classes))).flops


def _shortened(schedule: ScheduleConfig, cost: float) -> ScheduleConfig:
    """The schedule shortened to keep the compute when an image costs `cost` times as much."""
    if schedule.steps:
        steps = max(2, round(schedule.steps / cost))
        return replace(schedule, steps=steps, warmup_steps=max(1, steps // 10))
    return replace(schedule, epochs=max(schedule.warmup + 1, round(schedule.epochs / cost)))
