"""A scale: how large models and runs are. With it and the pictures, a contender becomes a recipe.

All contenders of a scale have the same recipe: pictures, augmentation, optimizer, rate, steps. `claims` checks the rate.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

from ..models.counting import count
from ..models.registry import fitting_patch
from ..training.choose import suiting
from ..training.create import creation, make_model
from ..training.recipe import AugmentPart, DataPart, ModelPart, OptimPart, Recipe, RunPart, SchedulePart, load, to_inline
from .contender import Contender

BATCH = 64
RATE = 4e-3
"""Of models of 32 channels; that of others is the smaller the more they have."""
PYRAMID_WIDTH = 64
"""Channels of the nano models of PVT, Swin and CSwin: 20 or 32 in the first stage, 128 or 160 in the last."""
HEADS = 2
AS_THEY_ARE = AugmentPart(scale=(1.0, 1.0), ratio=(1.0, 1.0), hflip=0.0)
"""Pictures are not varied: a run that sees each of them about once has nothing to gain from it."""
PYRAMID_STEPS = 0.5
"""Steps of PVT, Swin and CSwin, over those of the DeiT: each costs three to five times as much, and teaches more."""


@dataclass(frozen=True)
class Scale:
    """How much is spent on a cell."""

    name: str
    steps: int
    """Of a DeiT, of 64 pictures each."""
    width: int
    """Channels of the DeiT that most claims are about."""
    depth: int
    """Its blocks."""
    varied: bool = False
    """Whether pictures are varied as the recipe that suits them does; otherwise they are shown as they are."""

    @property
    def says(self) -> str:
        """In words."""
        if self is IMAGENET:
            return "the paper's smallest models by the paper's recipes"
        return (
            f"DeiT of width {self.width} and depth {self.depth}, {self.steps:,} steps of {BATCH} pictures a cell, "
            f"and nano models of the other families, {self._pyramid_steps:,} steps"
        )

    @property
    def _pyramid_steps(self) -> int:
        return round(PYRAMID_STEPS * self.steps)

    def schedule(self, family: str) -> SchedulePart:
        """A tenth of the steps to warm up, and a cosine."""
        steps = self.steps if family == "deit" else self._pyramid_steps
        return SchedulePart(epochs=10_000, warmup=0, steps=steps, warmup_steps=max(1, steps // 10))

    def optim(self, family: str) -> OptimPart:
        """AdamW; wider models learn by smaller rates."""
        rate = RATE * 32 / (self.width if family == "deit" else PYRAMID_WIDTH)
        ends = rate / 100
        return OptimPart(batch=BATCH, rate_batch=BATCH, lr=rate, warmup_lr=ends, min_lr=ends, weight_decay=0.05, clip=1.0)


SCALES = {
    scale.name: scale
    for scale in (
        Scale("glance", 60, 32, 2),
        Scale("hour", 250, 32, 2),
        Scale("laptop", 500, 32, 3),
        Scale("day", 6000, 64, 4, varied=True),
        Scale("week", 25000, 96, 6, varied=True),
    )
}
"""From the smallest to the largest; besides these there is `IMAGENET`."""
IMAGENET = Scale("imagenet", 0, 192, 12)
"""The paper's own recipes and models, for machines with GPUs; never run here."""


def recipe_of(contender: Contender, scale: Scale, data: DataPart, classes: int, seed: int) -> Recipe:
    """What the cell of a contender computes."""
    recipe = _published(contender, data) if scale is IMAGENET else _small(contender, scale, data)
    longer = 1.0 if contender.equal and scale is IMAGENET else contender.longer  # the paper's runs are long as they are
    if longer != 1:
        recipe = replace(recipe, schedule=_shortened(recipe.schedule, 1 / longer))
    if contender.equal:
        reference = replace(contender, mixer="softmax", local=False, finer=1.0, longer=1.0, equal=False)
        cost = _cost(recipe, classes) / _cost(recipe_of(reference, scale, data, classes, seed), classes)
        recipe = replace(recipe, schedule=_shortened(recipe.schedule, cost))
    optim = replace(
        recipe.optim, **{name: contender.rate * getattr(recipe.optim, name) for name in ("lr", "warmup_lr", "min_lr")}
    )
    evaluate = max(1, recipe.schedule.epochs)  # at the end alone: the best of several would be chosen on the held-out pictures
    return replace(recipe, optim=optim, run=replace(recipe.run, seed=seed, evaluate=evaluate))


def _small(contender: Contender, scale: Scale, data: DataPart) -> Recipe:
    usual = _usual(data)
    arguments: dict[str, object] = {"weight_init": "xavier"}  # such narrow models hardly begin to learn from deviations of 0.02
    if contender.family == "deit":
        arguments |= {
            "patch_size": max(1, round(patch_of(usual.data.size) / contender.finer)),
            "embed_dim": round(contender.width * scale.width / HEADS) * HEADS,
            "depth": scale.depth,
            "num_heads": HEADS,
        }
    first_map = min(usual.data.size) // fitting_patch(usual.data.size, most=4)
    if contender.window is not None:
        arguments["inline_window"] = max(1, round(contender.window * first_map))
    if contender.family == "pvt" and contender.mixer == "softmax":  # keys of a 7 x 7 map in every stage, as at 224 pixels
        arguments["sr_ratios"] = [max(1, round(first_map / 2**stage / 7)) for stage in range(4)]
    return Recipe(
        model=_model(f"inline_{contender.family}_nano", contender, arguments),
        data=replace(usual.data, source=data.source, root=data.root, train=data.train, val=data.val, workers=0),
        augment=usual.augment if scale.varied else AS_THEY_ARE,
        optim=scale.optim(contender.family),
        schedule=scale.schedule(contender.family),
        run=RunPart(log=100),
    )


def _published(contender: Contender, data: DataPart) -> Recipe:
    """The paper's recipe for the smallest model of a family; at other resolutions pictures are larger or smaller."""
    recipe = load(f"inline_{contender.family}_tiny")
    arguments: dict[str, object] = {}
    if contender.width != 1:
        arguments["embed_dim"] = round(contender.width * IMAGENET.width / 6) * 6
    if contender.window is not None:
        arguments["inline_window"] = round(contender.window * 56)
    size = round(contender.finer * recipe.data.size[0])
    shown = replace(recipe.data, source=data.source, root=data.root, train=data.train, val=data.val, size=(size, size))
    model = _model(recipe.model.name, contender, arguments)
    return replace(recipe, model=replace(model, drop_path=recipe.model.drop_path), data=shown)


def _model(name: str, contender: Contender, arguments: dict[str, object]) -> ModelPart:
    return ModelPart(
        name=name, mixer=contender.mixer, kernel=contender.kernel, local=contender.local, args=to_inline(arguments)
    )


def patch_of(size: tuple[int, int]) -> int:
    """Of a DeiT: a side has seven or eight patches, or as many of 16 as it takes."""
    return max(1, min(16, round(min(size) / 8)))


@lru_cache
def _usual(data: DataPart) -> Recipe:
    """The recipe that suits the pictures: how they are shown and varied."""
    return suiting(data)[1]


@lru_cache
def _cost(recipe: Recipe, classes: int) -> int:
    """Multiply-adds of one picture."""
    return count(make_model(*creation(recipe, classes))).flops


def _shortened(schedule: SchedulePart, cost: float) -> SchedulePart:
    """As long as the same compute lasts when a picture costs so many times as much."""
    if schedule.steps:
        steps = max(2, round(schedule.steps / cost))
        return replace(schedule, steps=steps, warmup_steps=max(1, steps // 10))
    return replace(schedule, epochs=max(schedule.warmup + 1, round(schedule.epochs / cost)))
