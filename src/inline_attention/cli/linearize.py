"""`inline linearize`: a softmax model becomes a linear one."""

import json
import os
import shlex
import sys
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from .arguments import prepare_folder

if TYPE_CHECKING:
    from ..tasks.linear_run import Lesson
    from ..tasks.linearize import Teacher
    from ..training.trained import Trained

LESSON = "lesson.json"


@dataclass(frozen=True)
class Linearize:
    """Turn a trained softmax model into a linear one, with few pictures and no labels."""

    model: Annotated[str | None, tyro.conf.Positional] = None
    """The teacher: a run's folder, a file of weights, or a model's name with --weights or --pretrained."""
    weights: Path | None = None
    """File of weights for a model that is named."""
    pretrained: bool = False
    """Fetch the weights that timm has for a model that is named."""
    mixer: str = "inline"
    """The attention that it gets."""
    kernel: str | None = None
    """Its feature map: identity, relu, relu_affine, leaky_relu, exp; unset: the mixer's own."""
    local: bool | None = None
    """Give it the local residual, or not; unset: as the mixer has it."""
    keep_windows: bool = False
    """Let attention that has windows keep them, instead of seeing the whole map."""
    only: str | None = None
    """Swap attention of these names only: a regular expression, such as 'blocks.[0-5].attn'."""
    data: str | None = None
    """Pictures: any source of `inline train`, or a folder of pictures without classes; unset: those of the teacher's run."""
    unlabelled: bool = False
    """Take all pictures below the folder, whatever folders they are in, and tell no accuracy."""
    root: str | None = None
    """Folder of a wds/, hfds/ or torch/ source."""
    size: tuple[int, int] | None = None
    """Height and width that pictures are shown at; unset: as the teacher was trained."""
    epochs: float = 2.5
    """Passes over the pictures, of all three phases together: two hundredths, four, and the rest."""
    steps: tuple[int, int, int] | None = None
    """Steps of each phase, in place of --epochs; 0 leaves a phase out."""
    rates: tuple[float, float, float] = (1e-3, 1e-3, 5e-4)
    """Learning rate of each phase."""
    batch: int = 64
    """Pictures at once."""
    out: Path | None = None
    """Folder for the result; unset: linear-NAME under runs/."""
    resume: bool = False
    """Go on with what is in --out."""
    seed: int = 0
    """Of new parameters, order and augmentation."""
    skip_bad: bool = False
    """Go on without pictures that cannot be read."""
    workers: int | None = None
    """Processes that read pictures."""
    device: str = "auto"
    """auto, cpu or the accelerator that is there."""
    json: bool = False
    """Print the record as JSON instead of the table."""

    def run(self) -> None:
        """Swap, match, distil, tell."""
        from ..models.swap import swap
        from ..tasks.linear_run import check, linearize
        from ..tasks.linearize import Linearize as Phase
        from .report import TrainingReport
        from .train import interruptible

        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ValueError("inline linearize runs in one process: start it without torchrun")
        self._check()
        out = self._folder()
        asked = self._remembered(out) if self.resume else self
        trained = asked._teacher()
        lesson = asked._lesson(trained, self)
        teacher = _as_teacher(trained)
        check(teacher, lesson)
        if not self.resume:
            print(swap(deepcopy(teacher.model), **lesson.swapped), file=sys.stderr)
            asked._remember(out)
        report = TrainingReport(Phase.columns)
        with interruptible() as wanted, report:
            record = linearize(teacher, lesson, out, report=report, stop=lambda: bool(wanted), device=self.device)
        if record is None:
            print(f"Stopped and saved. Go on: inline linearize --out {shlex.quote(str(out))} --resume", file=sys.stderr)
            sys.exit(130)
        self._tell(record, out, asked)

    def _check(self) -> None:
        if self.model is None and not self.resume:
            raise ValueError("no model: give a run's folder, a file of weights, or a name with --weights or --pretrained")
        if self.batch < 1 or self.epochs <= 0 or min(self.rates) <= 0 or min(self.steps or (1,)) < 0:
            raise ValueError(
                f"--batch, --epochs and --rates must be positive, --steps not negative, got {self.batch}, {self.epochs}, "
                f"{self.rates} and {self.steps}"
            )

    def _folder(self) -> Path:
        from .train import RUNS

        if self.resume:
            if self.out is None or not (self.out / LESSON).is_file():
                raise ValueError(f"--resume needs --out DIR, a folder that `inline linearize` began, got {self.out}")
            return self.out
        out = self.out or RUNS / f"linear-{Path(self.model or '').resolve().name if self.model else ''}"
        if (out / LESSON).exists() or (out / "recipe.toml").exists():
            raise ValueError(f"{out} holds a run: go on with --resume --out {out}, or choose another --out")
        return out

    def _teacher(self) -> "Trained":
        from timm.models import is_model

        from ..training.trained import load_trained, make_named

        what = self.model or ""
        if self.weights is not None and Path(what).exists():
            raise ValueError(f"--weights is for a model that is named, and {what} has its own: leave out one of the two")
        if self.pretrained:
            return make_named(what, pretrained=True)
        if self.weights is None and is_model(what) and not Path(what).exists():
            raise ValueError(f"{what} needs weights: --weights FILE, or --pretrained for those that timm has")
        return load_trained(what, self.weights)

    def _lesson(self, trained: "Trained", now: "Linearize") -> "Lesson":
        """What to do; where pictures are read from and by how many may be said anew."""
        from ..tasks.linear_run import Lesson
        from ..training.recipe import AugmentPart
        from ..training.run_folder import RunFolder

        run = RunFolder(Path(self.model)).recipe() if self.model and Path(self.model).is_dir() else None
        source, root = now.data or self.data, now.root or self.root
        if source is None:
            if run is None:
                raise ValueError(f"{self.model} does not say which pictures: --data DIR")
            data = run.data
        else:
            source = str(Path(source).expanduser().resolve()) if Path(source).expanduser().exists() else source
            data = replace(trained.data, source=source, root=root)
        data = replace(data, size=self.size or data.size, workers=now.workers, skip_bad=now.skip_bad)
        usual = Lesson(data)
        augment = usual.augment if run is None else replace(run.augment, mixup=0.0, cutmix=0.0, smoothing=0.0, erase=0.0)
        if augment.auto:
            augment = replace(augment, auto="", scale=AugmentPart().scale)
        swapped = {"mixer": self.mixer, "kernel": self.kernel, "local": self.local, "only": self.only}
        swapped = {name: value for name, value in swapped.items() if value is not None}
        return Lesson(
            data,
            augment,
            {**swapped, **({"keep_windows": True} if self.keep_windows else {})},
            self.epochs,
            self.steps,
            self.rates,
            self.batch,
            self.seed,
            self.unlabelled,
        )

    def _remember(self, out: Path) -> None:
        """Keep what was asked, for a run that goes on."""
        from ..training.checkpoint import write_whole

        prepare_folder(out)
        kept = {name: value for name, value in vars(self).items() if name not in ("out", "resume", "json", "device", "workers")}
        kept["model"], weights = _absolute(self.model), _absolute(self.weights)
        kept["weights"] = None if weights is None else str(weights)
        write_whole(out / LESSON, (json.dumps(kept, indent=1) + "\n").encode())

    def _remembered(self, out: Path) -> "Linearize":
        """What was asked when the work began. What is asked now must not differ."""
        path = out / LESSON
        try:
            kept: dict[str, Any] = json.loads(path.read_text())
            for name in ("steps", "rates", "size"):
                kept[name] = None if kept[name] is None else tuple(kept[name])
            kept["weights"] = None if kept["weights"] is None else Path(kept["weights"])
            before = replace(self, **kept)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} cannot be read: {error}") from error
        usual = Linearize()
        free = ("out", "resume", "json", "device", "workers", "data", "root", "skip_bad")
        changed = [
            f"--{name.replace('_', '-')} {getattr(self, name)}"
            for name in vars(usual)
            if name not in free and _absolute(getattr(self, name)) not in (getattr(usual, name), getattr(before, name))
        ]
        if changed:
            raise ValueError(f"{out} was begun with other options than {', '.join(changed)}: leave them out, or begin anew")
        return before

    def _tell(self, record: dict[str, Any], out: Path, asked: "Linearize") -> None:
        from ..deploy.plots import draw_layers
        from .linearize_report import print_record, taught_in

        drawn = draw_layers(record, out / "layers.png")
        whole = taught_in(record, Path(asked.model) if asked.model else None)
        if self.json:
            print(json.dumps({**record, **whole, "run": str(out)}, indent=1))
        else:
            print_record(record, whole, out, drawn)


def _absolute(value: Any) -> Any:
    """A path that is there as a whole one, in the kind that it came in; all else as it is."""
    there = isinstance(value, str | Path) and Path(value).exists()
    return type(value)(Path(value).resolve()) if there else value


def _as_teacher(trained: "Trained") -> "Teacher":
    from ..tasks.linearize import Teacher

    classes = trained.classes if int(getattr(trained.model, "num_classes", 0)) else ()
    return Teacher(trained.model, trained.name, trained.arguments, classes)
