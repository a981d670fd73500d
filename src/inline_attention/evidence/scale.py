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

BATCH = 32
OPTIM = OptimPart(batch=BATCH, rate_batch=BATCH, lr=2e-3, warmup_lr=2e-5, min_lr=2e-5, weight_decay=0.05, clip=1.0)
HEADS = 2
WHOLE = AugmentPart(scale=(1.0, 1.0), ratio=(1.0, 1.0))
"""Pictures are not cropped: a run that sees each of them about once has nothing to gain from it."""


@dataclass(frozen=True)
class Scale:
    """How much is spent on a cell."""

    name: str
    steps: int
    """Of 32 pictures."""
    width: int
    """Channels of the DeiT that most claims are about."""
    depth: int
    """Its blocks."""
    varied: bool = False
    """Whether pictures are varied as the recipe that suits them does; otherwise they are mirrored, where that recipe does."""

    @property
    def says(self) -> str:
        """In words."""
        if self is IMAGENET:
            return "the paper's smallest models by the paper's recipes"
        return f"DeiT of width {self.width} and depth {self.depth}, {self.steps:,} steps of {BATCH} pictures a cell"


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
        augment=usual.augment if scale.varied else replace(WHOLE, hflip=usual.augment.hflip),
        optim=OPTIM,
        schedule=SchedulePart(epochs=10_000, warmup=0, steps=scale.steps, warmup_steps=max(1, scale.steps // 10)),
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
