"""The cells that claims need, in the order in which they are run."""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from json import dumps
from pathlib import Path

from ..training.recipe import DataPart, Recipe
from ..training.source import open_source
from .cell import Cell, load_record, read_record
from .claims import RATES, SPEED_FACTORS, Claim, trained
from .contender import Contender
from .scale import BATCH, IMAGENET, Scale, recipe_of


@dataclass(frozen=True)
class Grid:
    """Everything that is to be run."""

    trainings: list[Cell]
    """Seed by seed, so that a first look is there early. Two contenders may be one computation: their keys are the same."""
    looks: list[Cell]
    """At trained models."""
    races: list[Cell]
    """Alone on the machine."""
    racers: dict[str, Recipe]
    """The contenders of a race, by label."""
    classes: int
    held_out: int
    """Pictures that every model is evaluated on."""

    @property
    def cells(self) -> list[Cell]:
        """All."""
        return [*self.trainings, *self.looks, *self.races]

    def left(self, folder: Path, known: Container[str] = ()) -> "Grid":
        """What is neither in the folder nor known, each computation once.

        A record is not enough of a model that is yet to be looked at: it is trained again where its weights are not there.
        """

        def there(cell: Cell) -> bool:
            return cell.key in known or read_record(folder, cell.key) is not None

        def once(cells: Iterable[Cell]) -> list[Cell]:
            return list({cell.key: cell for cell in cells}.values())

        looks = once(cell for cell in self.looks if not there(cell))
        missing = {cell.training.key for cell in looks if not _can_be_looked_at(cell.training, folder)}
        trainings = once(cell for cell in self.trainings if cell.key in missing or not there(cell))
        return replace(self, trainings=trainings, looks=looks, races=once(cell for cell in self.races if not there(cell)))


def _can_be_looked_at(training: Cell, folder: Path) -> bool:
    """Its weights are there; or there are none, since it diverged, which is what the look will say."""
    record = load_record(folder, training.key)
    diverged = record is not None and record.status == "diverged"
    return diverged or (folder / training.key / "best.safetensors").is_file()


def grid_of(claims: Sequence[Claim], scale: Scale, data: DataPart, seeds: int, device: str = "cpu") -> Grid:
    """The cells of these claims, each once; speeds are of a device."""
    source = open_source(data)
    classes = len(source.classes)
    if scale is not IMAGENET and len(source.train) < BATCH:
        raise ValueError(f"{data.source} has {len(source.train)} pictures to learn from, and one step takes {BATCH}")
    pictures = blake2b(dumps(source.fingerprint()).encode(), digest_size=8).hexdigest()

    def cell(contender: Contender, seed: int) -> Cell:
        return Cell("train", contender, recipe_of(contender, scale, data, classes, seed), pictures)

    contenders = trained(claims)
    once = [contender for contender in contenders if contender.rate in RATES]  # rates are checked with one seed
    cells = [cell(contender, seed) for seed in range(seeds) for contender in contenders if contender not in once]
    cells += [cell(contender, 0) for contender in once]
    names = {claim.name: claim for claim in claims}
    looks, races, racers = [], [], dict[str, Recipe]()
    if "seeing" in names:
        looks = [replace(cell(one, seed), kind="look") for seed in range(seeds) for one in names["seeing"].contenders]
    if "speed" in names:
        recipes = {one: recipe_of(one, scale, data, classes, 0) for one in names["speed"].contenders}
        racers = {one.label: recipe for one, recipe in recipes.items()}
        hashes = [Cell("race", None, recipe, "").recipe_hash for recipe in racers.values()]
        facts = [device, SPEED_FACTORS, list(zip(racers, hashes, strict=True))]
        together = blake2b(dumps(facts).encode(), digest_size=8).hexdigest()
        first = next(iter(recipes.values()))
        races = [
            Cell("race", None, replace(first, run=replace(first.run, seed=seed)), together) for seed in range(seeds)
        ]  # fmt: skip
    return Grid(cells, looks, races, racers, classes, len(source.val))
