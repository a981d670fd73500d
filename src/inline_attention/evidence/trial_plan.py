"""The trials that a set of claims needs, in the order in which they are run."""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from json import dumps
from pathlib import Path

from ..data.config import DataConfig
from ..data.sources import open_source
from ..training.config import Recipe
from .candidate import Candidate
from .claims import RATES, SPEED_FACTORS, Claim, trained
from .scale import BATCH, IMAGENET, Scale, recipe_of
from .trial import Trial, load_finished_record, load_record


@dataclass(frozen=True)
class TrialPlan:
    """All trials of a run. Two candidates may need the same computation: their trials have the same key."""

    trainings: list[Trial]
    """All candidates of one seed before the next seed, so that first results are there early."""
    analyses: list[Trial]
    """Of trained models."""
    timings: list[Trial]
    """These run last, with nothing else on the machine."""
    timed_recipes: dict[str, Recipe]
    """Label -> recipe of the candidates that are timed."""
    classes: int
    val_images: int
    """Size of the validation set."""

    @property
    def trials(self) -> list[Trial]:
        """All of them."""
        return [*self.trainings, *self.analyses, *self.timings]

    def remaining(self, folder: Path, known: Container[str] = ()) -> "TrialPlan":
        """The trials whose key is neither in `known` nor has a record in the folder, each computation once.

        A model that is still to be analysed is trained again if its record is there and its weights are not.
        """

        def done(trial: Trial) -> bool:
            return trial.key in known or load_finished_record(folder, trial.key) is not None

        def once(trials: Iterable[Trial]) -> list[Trial]:
            return list({trial.key: trial for trial in trials}.values())

        analyses = once(trial for trial in self.analyses if not done(trial))
        missing = {trial.training.key for trial in analyses if not _can_be_analyzed(trial.training, folder)}
        trainings = once(trial for trial in self.trainings if trial.key in missing or not done(trial))
        timings = once(trial for trial in self.timings if not done(trial))
        return replace(self, trainings=trainings, analyses=analyses, timings=timings)


def _can_be_analyzed(training: Trial, folder: Path) -> bool:
    """Whether its weights are there; a diverged model has none, and its analysis records that."""
    record = load_record(folder, training.key)
    diverged = record is not None and record.status == "diverged"
    return diverged or (folder / training.key / "best.safetensors").is_file()


def plan_trials(claims: Sequence[Claim], scale: Scale, data: DataConfig, seeds: int, device: str = "cpu") -> TrialPlan:
    """The trials of these claims; the device matters for timings only."""
    source = open_source(data)
    classes = len(source.classes)
    if scale is not IMAGENET and len(source.train) < BATCH:
        raise ValueError(f"{data.source} has {len(source.train)} training images, and one step takes {BATCH}")
    images = blake2b(dumps(source.fingerprint()).encode(), digest_size=8).hexdigest()

    def training(candidate: Candidate, seed: int) -> Trial:
        return Trial("train", candidate, recipe_of(candidate, scale, data, classes, seed), images)

    candidates = trained(claims)
    one_seed = [candidate for candidate in candidates if candidate.rate in RATES]  # rates are checked with one seed
    trainings = [training(one, seed) for seed in range(seeds) for one in candidates if one not in one_seed]
    trainings += [training(candidate, 0) for candidate in one_seed]
    by_name = {claim.name: claim for claim in claims}
    analyses, timings, timed_recipes = list[Trial](), list[Trial](), dict[str, Recipe]()
    if analyzed := list(dict.fromkeys(one for claim in claims if claim.analyzed for one in claim.candidates)):
        analyses = [replace(training(one, seed), kind="analyze") for seed in range(seeds) for one in analyzed]
    if "speed" in by_name:
        timed_recipes = {one.label: recipe_of(one, scale, data, classes, 0) for one in by_name["speed"].candidates}
        timings = _timings(timed_recipes, seeds, device)
    return TrialPlan(trainings, analyses, timings, timed_recipes, classes, len(source.val))


def _timings(recipes: dict[str, Recipe], seeds: int, device: str) -> list[Trial]:
    """One per seed; other models or another device give other keys."""
    hashes = [Trial("time", None, recipe, "").recipe_hash for recipe in recipes.values()]
    facts = [device, SPEED_FACTORS, list(zip(recipes, hashes, strict=True))]
    data = blake2b(dumps(facts).encode(), digest_size=8).hexdigest()
    first = next(iter(recipes.values()))
    return [Trial("time", None, replace(first, run=replace(first.run, seed=seed)), data) for seed in range(seeds)]
