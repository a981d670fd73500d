"""`inline eval`: how good a trained model is."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .held_out import held_out
from .report import number
from .scoring import folder_of, score, tell_rest, write

if TYPE_CHECKING:
    from ..training.evaluate import Score
    from ..training.trained import Trained

BATCH = 64


@dataclass(frozen=True)
class Eval:
    """How good a trained model is: accuracy, COCO's average precision, or mean intersection over union, and by class."""

    model: Annotated[str, tyro.conf.Positional]
    """A run's folder, a file of weights (ours or the authors'), or a model's name with --weights."""
    task: Literal["classify", "detect", "segment"] | None = None
    """What the model was trained for; unset: as its file says."""
    weights: Path | None = None
    """File of weights for a model that is named."""
    data: str | None = None
    """Pictures: any source of `inline train` (its held-out part), a folder of class folders; unset: what the run held out."""
    root: str | None = None
    """Folder of a wds/, hfds/ or torch/ source."""
    split: str = "validation"
    """Split of a source that has named splits."""
    view: Literal["squash", "center"] | None = None
    """'squash' resizes both sides as the paper does, 'center' the shorter one as timm usually does; unset: as trained."""
    size: tuple[int, int] | None = None
    """Height and width to show pictures at; unset: as trained."""
    crop: float | None = None
    """Share of the resized side that the centre crop keeps; unset: as trained."""
    inference: Literal["whole", "slide"] | None = None
    """Segmentation: whole pictures, or windows of the training crop; unset: as trained."""
    side: int | None = None
    """Segmentation: shorter side to show pictures at, 0 for their own; unset: as trained."""
    ema: bool = False
    """Take the moving average out of a file that holds both."""
    batch: int | None = None
    """Pictures at once; unset: 64 to classify, else 4."""
    workers: int | None = None
    """Processes that read pictures."""
    skip_bad: bool = False
    """Leave out pictures that cannot be read, and list them, instead of stopping."""
    out: Path | None = None
    """Folder for eval.json and confusion.png; unset: eval/ in the run's folder, or here."""
    device: str = "auto"
    """auto, cpu or the accelerator that is there."""
    json: bool = False
    """Print JSON instead of the table."""

    def run(self) -> None:
        """Load, look at every picture once, tell."""
        from ..training import recipe as recipes
        from ..training.classify import Classify
        from ..training.source import Source
        from ..training.trained import load_trained, task_named
        from .eval_dense import evaluate_dense

        if self.batch is not None and self.batch < 1:
            raise ValueError(f"--batch must be positive, got {self.batch}")
        task = task_named(self.model, self.weights)
        if self.task not in (None, task):
            raise ValueError(f"{self.weights or self.model} was trained to {task}, not to {self.task}")
        if task != "classify":
            evaluate_dense(self)
            return
        for name in ("inference", "side"):
            if getattr(self, name) is not None:
                raise ValueError(f"--{name} {getattr(self, name)} is for models that segment: leave it out")
        trained = load_trained(self.model, self.weights, ema=self.ema)
        pictures, source = held_out(trained, self.model, self.data, self.root, self.split)
        asked: dict[str, Any] = {"view": self.view, "size": self.size, "crop": self.crop}
        shown = replace(trained.data, **{key: value for key, value in asked.items() if value is not None})
        recipe = recipes.Recipe(data=shown)
        recipes.check(recipe)
        out = folder_of(self)
        found = score(self, Classify(recipe), trained.model, Source(pictures, pictures, trained.classes), out, BATCH)
        if found is None:
            return
        facts = {
            "model": trained.name, "weights": str(self.weights or self.model), "loaded": trained.said, "data": source,
            "view": shown.view, "size": shown.size, "crop": shown.crop,
        }  # fmt: skip
        text = write(out, facts, found, trained.classes, found.bad, "pictures")
        if self.json:
            print(text)
        else:
            self._print(trained, found, out)

    def _print(self, trained: "Trained", found: "Score", out: Path) -> None:
        console = Console()
        console.print(f"{trained.name}: {trained.said}", highlight=False, soft_wrap=True, markup=False)
        table = Table(box=SIMPLE_HEAD, padding=(0, 1))
        for column in ("pictures", "top-1 %", "top-5 %", "loss", "pictures/s"):
            table.add_column(column, justify="right")
        numbers, speed = found.numbers, f"{found.pictures_per_second:,.0f}"
        top5 = number(numbers["top5"]) if len(trained.classes) > 5 else "-"
        table.add_row(f"{found.pictures:,}", number(numbers["top1"]), top5, number(numbers["loss"], 3), speed)
        console.print(table)
        chosen = self.data is None and not (Path(self.model) / "linearize.json").is_file()  # which keeps its last weights
        tell_rest(console, found, trained.classes, out, own=chosen, bad=found.bad, unit=" %")
