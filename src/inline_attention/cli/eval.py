"""`inline eval`: how good a trained model is."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .arguments import prepare_folder
from .held_out import held_out
from .report import number

if TYPE_CHECKING:
    from ..training.evaluate import Score
    from ..training.trained import Trained

SHOWN = 10
"""Classes that the table shows: the hardest."""


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
    ema: bool = False
    """Take the moving average out of a file that holds both."""
    batch: int = 64
    """Pictures at once; detectors and segmenters take pictures of different sizes one by one."""
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
        from ..tasks.dense_model import task_named
        from ..training import recipe as recipes
        from ..training.classify import Classify
        from ..training.evaluate import evaluate
        from ..training.launch import make_accelerator
        from ..training.loader import evaluation_batches, worker_count
        from ..training.plots import draw_confusion
        from ..training.source import Source
        from ..training.trained import load_trained
        from .eval_dense import evaluate_dense
        from .progress import counter

        if self.batch < 1:
            raise ValueError(f"--batch must be positive, got {self.batch}")
        task = task_named(self.model, self.weights)
        if self.task not in (None, task):
            raise ValueError(f"{self.weights or self.model} was trained to {task}, not to {self.task}")
        if task != "classify":
            evaluate_dense(self)
            return
        if self.inference is not None:
            raise ValueError(f"--inference {self.inference} is for models that segment: leave it out")
        trained = load_trained(self.model, self.weights, ema=self.ema)
        pictures, source = held_out(trained, self.model, self.data, self.root, self.split)
        asked: dict[str, Any] = {"view": self.view, "size": self.size, "crop": self.crop}
        shown = replace(trained.data, **{key: value for key, value in asked.items() if value is not None})
        name = "eval" if self.data is None else f"eval-{Path(self.data).name}"
        out = self.out or (Path(self.model) / name if Path(self.model).is_dir() else Path(name))
        recipe = recipes.Recipe(data=shown)
        recipes.check(recipe)
        classify = Classify(recipe)
        accelerator = make_accelerator(recipe.run, self.device, [], out)
        if accelerator.is_main_process:
            prepare_folder(out)
        batches = evaluation_batches(
            pictures,
            classify.show(training=False),
            self.batch,
            rank=accelerator.process_index,
            processes=accelerator.num_processes,
            channels=shown.channels,
            workers=worker_count(self.workers, accelerator.num_processes, len(pictures)),
        )
        with counter("evaluating", len(pictures), Console(stderr=True, quiet=not accelerator.is_main_process)) as progress:
            model = trained.model.to(accelerator.device)
            meter = classify.meter(Source(pictures, pictures, trained.classes), accelerator)
            score = evaluate(model, batches, meter, accelerator, skip_bad=self.skip_bad, progress=progress)
        accelerator.end_training()
        if not accelerator.is_main_process:
            return
        facts = {
            "model": trained.name, "weights": str(self.weights or self.model), "loaded": trained.said, "data": source,
            "view": shown.view, "size": shown.size, "crop": shown.crop, **score.numbers, **score.details,
            "pictures": score.pictures, "pictures_per_second": score.pictures_per_second, "bad": score.bad,
            "classes": trained.classes,
        }  # fmt: skip
        text = "{\n" + ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in facts.items()) + "\n}"
        (out / "eval.json").write_text(text + "\n")
        if score.details["confusion"]:
            draw_confusion(score.details["confusion"], trained.classes, out / "confusion.png")
        if self.json:
            print(text)
        else:
            self._print(trained, score, source, out)

    def _print(self, trained: "Trained", score: "Score", source: str, out: Path) -> None:
        console = Console()
        console.print(f"{trained.name}: {trained.said}", highlight=False, soft_wrap=True, markup=False)
        table = Table(box=SIMPLE_HEAD, padding=(0, 1))
        for column in ("pictures", "top-1 %", "top-5 %", "loss", "pictures/s"):
            table.add_column(column, justify="right")
        speed = f"{score.pictures_per_second:,.0f}"
        found = score.numbers
        top5 = number(found["top5"]) if len(trained.classes) > 5 else "-"
        table.add_row(f"{score.pictures:,}", number(found["top1"]), top5, number(found["loss"], 3), speed)
        console.print(table)
        known = [
            (share, name) for share, name in zip(score.details["per_class"], trained.classes, strict=True) if share is not None
        ]
        hardest = ", ".join(f"{name} {share:.1f} %" for share, name in sorted(known)[:SHOWN] if share < 100)
        console.print(f"Hardest classes: {hardest or 'none, all are right'}", highlight=False, soft_wrap=True, markup=False)
        if self.data is None:
            note = "The run chose these weights by these very pictures; its own table has the last weights' score."
            console.print(note, highlight=False, soft_wrap=True)
        if score.bad:
            console.print(f"{len(score.bad)} pictures could not be read and were left out:", highlight=False)
            for text in score.bad:
                console.print(f"  {text}", highlight=False, soft_wrap=True, markup=False)
        console.print(f"Written: {out}/eval.json, confusion.png", highlight=False, soft_wrap=True)
