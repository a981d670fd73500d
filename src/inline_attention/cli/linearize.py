"""`inline linearize`: distil a trained softmax model into a linear copy."""

import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import tyro

from ..lite.decode import first_line
from ..lite.json_file import read_object
from .arguments import prepare_folder
from .linearize_report import print_dry_run, print_record, training_times
from .train_report import TrainingReport

if TYPE_CHECKING:
    from ..data.sources import Source
    from ..training.linearize_config import LinearizeConfig
    from ..training.linearize_task import Teacher
    from ..training.load_trained import Trained


NOT_STORED = ("out", "resume", "json", "device", "workers", "dry_run")
"""Options that may differ when it is resumed."""


@contextmanager
def _named(model: str | None) -> Iterator[None]:
    """Numbers that are not finite are an error that names the model."""
    try:
        yield
    except FloatingPointError as error:
        raise FloatingPointError(f"{model}: {error}") from None


@dataclass(frozen=True)
class Linearize:
    """Distil a trained softmax model into a linear copy, with few images and no labels."""

    model: Annotated[str | None, tyro.conf.Positional] = None
    """The teacher: a run's folder, a file of weights, or a model's name with --weights or --pretrained."""
    weights: Path | None = None
    """File of weights for a model that is given by name."""
    pretrained: bool = False
    """Let timm fetch the weights of a model that is given by name."""
    mixer: str = "inline"
    """The attention of the copy."""
    kernel: str | None = None
    """Its feature map: identity, relu, relu_affine, leaky_relu, exp; unset: the mixer's own."""
    local: bool | None = None
    """Give it the local residual, or not; unset: as the mixer has it."""
    keep_windows: bool = False
    """Keep the windows of windowed attention, instead of attending over the whole map."""
    only: str | None = None
    """Swap attention of these names only: a regular expression, such as 'blocks.[0-5].attn'."""
    example: bool = False
    """Run the model on a random image, and swap attention of other kinds too where that proves it to be plain."""
    keep: str | None = None
    """Blocks that keep their attention: auto, how many ('2'), or which, counted from 1 ('3,7' or '3,') or by name."""
    keep_images: int = 256
    """Training images on which --keep measures how far the output is off with each block linear."""
    keep_cost: int = 1024
    """Side of the image for which --keep reports multiply-adds and time; 0: none."""
    data: str | None = None
    """Images: any source of `inline train`, or a folder of images without classes; unset: those of the teacher's run."""
    unlabelled: bool = False
    """Take all images below the folder, whatever folders they are in, and report no accuracy."""
    root: str | None = None
    """Folder of a wds/, hfds/ or torch/ source."""
    size: tuple[int, int] | None = None
    """Height and width that images are resized to; unset: as the teacher was trained."""
    epochs: float = 2.5
    """Passes over the images: 2 % of them in the first phase, 4 % in the second, the rest in the third."""
    steps: tuple[int, int, int] | None = None
    """Steps of each phase, in place of --epochs; 0 leaves a phase out."""
    rates: tuple[float, float, float] = (1e-3, 1e-3, 5e-4)
    """Learning rate of each phase."""
    batch: int = 64
    """Images at once."""
    out: Path | None = None
    """Folder for the result; unset: linear-NAME under runs/."""
    resume: bool = False
    """Go on with what is in --out."""
    dry_run: bool = False
    """Train and write nothing: print what would be swapped, the steps and, with --keep, what is measured and kept."""
    seed: int = 0
    """Seed of new parameters, order and augmentation."""
    skip_bad: bool = False
    """Leave out images that cannot be read, instead of stopping."""
    workers: int | None = None
    """Processes that read images; unset: by the number of cores."""
    device: str = "auto"
    """auto, cpu or the accelerator that is there."""
    json: bool = False
    """Print the record as JSON instead of the table."""

    def run(self) -> None:
        """Swap the attention, match it layer by layer, distil, print the result."""
        from ..training.linearize import check_config, linearize
        from ..training.linearize_task import Linearize as Phase
        from ..training.model_factory import swap_as_stored
        from .train import stop_signals

        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ValueError("inline linearize runs in one process: start it without torchrun")
        self._check()
        out = Path() if self.dry_run and not self.resume else self._folder()
        options = self._read_options(out) if self.resume else self
        trained = options._teacher()
        config = options._config(trained, self)
        teacher = _as_teacher(trained)
        source = check_config(teacher, config)
        if self.dry_run:
            with _named(options.model):
                options._print_dry_run(teacher, config, source, self)
            return
        if not self.resume and self.keep is None:
            print(swap_as_stored(deepcopy(teacher.model), config.swap_options), file=sys.stderr)
        begin = (lambda: None) if self.resume else partial(options._write_options, out)
        report = TrainingReport(Phase.columns)
        with stop_signals() as stop, report, _named(options.model):
            record = linearize(teacher, config, out, reporter=report, stop=stop.is_set, device=self.device, begin=begin)
        if record is None:
            print(f"Stopped and saved. Go on: inline linearize --out {shlex.quote(str(out))} --resume", file=sys.stderr)
            sys.exit(130)
        self._print(record, out, options)

    def _check(self) -> None:
        if self.model is None and not self.resume:
            raise ValueError("no model: give a run's folder, a file of weights, or a name with --weights or --pretrained")
        rates = (self.epochs, *self.rates)
        if self.batch < 1 or not all(0 < value < inf for value in rates) or min(self.steps or (1,)) < 0:
            raise ValueError(
                f"--batch, --epochs and --rates must be positive, --steps not negative, got {self.batch}, {self.epochs}, "
                f"{self.rates} and {self.steps}"
            )

    def _folder(self) -> Path:
        from ..training.config import RUNS

        if self.resume:
            if self.out is None or not options_file(self.out).is_file():
                raise ValueError(f"--resume needs --out DIR, a folder that `inline linearize` began, got {self.out}")
            return self.out
        out = self.out or RUNS / f"linear-{Path(self.model or '').resolve().name if self.model else ''}"
        if options_file(out).exists() or (out / "recipe.toml").exists():
            raise ValueError(f"{out} holds a run: go on with --resume --out {out}, or choose another --out")
        return out

    def _teacher(self) -> "Trained":
        from ..training.load_trained import load_trained

        return load_trained(self.model or "", self.weights, pretrained=self.pretrained)

    def _config(self, trained: "Trained", now: "Linearize") -> "LinearizeConfig":
        """What to do. `now` has the options of this call: where images are read from may differ from the first call."""
        from ..data.config import AugmentConfig
        from ..training.linearize_config import LinearizeConfig
        from ..training.run_folder import RunFolder

        run = RunFolder(Path(self.model)).recipe() if self.model and Path(self.model).is_dir() else None
        source, root = now.data or self.data, now.root or self.root
        if source is None:
            if run is None:
                raise ValueError(f"{self.model} does not say which images: --data DIR")
            data = run.data
        else:
            source = str(Path(source).expanduser().resolve()) if Path(source).expanduser().exists() else source
            data = replace(trained.data, source=source, root=root)
        data = replace(data, size=self.size or data.size, workers=now.workers, skip_bad=now.skip_bad)
        usual = LinearizeConfig(data)
        augment = usual.augment if run is None else replace(run.augment, mixup=0.0, cutmix=0.0, smoothing=0.0, erase=0.0)
        if augment.auto:
            augment = replace(augment, auto="", scale=AugmentConfig().scale)
        swapped = {"mixer": self.mixer, "kernel": self.kernel, "local": self.local, "only": self.only}
        swapped = {name: value for name, value in swapped.items() if value is not None}
        return LinearizeConfig(
            data,
            augment,
            {
                **swapped,
                **({"keep_windows": True} if self.keep_windows else {}),
                **({"example": [data.channels, *data.size]} if self.example else {}),
            },
            self.epochs,
            self.steps,
            self.rates,
            self.batch,
            self.seed,
            self.unlabelled,
            self.keep,
            self.keep_images,
            self.keep_cost,
        )

    def _write_options(self, out: Path) -> None:
        """Write the options, for --resume."""
        from ..training.checkpoint import write_atomically

        prepare_folder(out)
        kept = {name: value for name, value in vars(self).items() if name not in NOT_STORED}
        kept["model"], weights = _absolute(self.model), _absolute(self.weights)
        kept["weights"] = None if weights is None else str(weights)
        write_atomically(options_file(out), (json.dumps(kept, indent=1) + "\n").encode())

    def _read_options(self, out: Path) -> "Linearize":
        """The options of the first call. Those of this call must not differ."""
        from ..training.recipe import typed_value

        path = options_file(out)
        kinds = {**get_type_hints(Linearize), "weights": str | None}
        try:
            kept = {name: typed_value(kinds[name], value, name) for name, value in read_object(path).items()}
            kept["weights"] = None if kept["weights"] is None else Path(kept["weights"])
            before = replace(self, **kept)
            before._check()
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} cannot be read: {first_line(error)}") from error
        usual = Linearize()
        free = (*NOT_STORED, "data", "root", "skip_bad")
        changed = [
            f"--{name.replace('_', '-')} {getattr(self, name)}"
            for name in vars(usual)
            if name not in free and _absolute(getattr(self, name)) not in (getattr(usual, name), getattr(before, name))
        ]
        if changed:
            raise ValueError(f"{out} was begun with other options than {', '.join(changed)}: leave them out, or begin anew")
        return before

    def _print(self, record: dict[str, Any], out: Path, options: "Linearize") -> None:
        from ..training.linearize_plots import draw_kept, draw_layers

        drawn = [draw_layers(record, out / "layers.png")]
        if "keep" in record:
            drawn.append(draw_kept(record["keep"], out / "keep.png"))
        times = training_times(record, Path(options.model) if options.model else None)
        if self.json:
            print(json.dumps({**record, **times, "run": str(out)}, indent=1))
        else:
            print_record(record, times, out, drawn)

    def _print_dry_run(self, teacher: "Teacher", config: "LinearizeConfig", source: "Source", now: "Linearize") -> None:
        """Print what would be done. `now` has the options of this call."""
        from ..training.choose_blocks import choose_blocks
        from ..training.linearize_config import PHASES
        from ..training.linearize_task import Linearize as Phase
        from ..training.model_factory import swap_as_stored

        found: dict[str, Any] = {"steps": dict(zip(PHASES, config.phase_steps(len(source.train)), strict=True))}
        if config.keep is not None:
            with TrainingReport(Phase.columns) as report:
                found["keep"] = choose_blocks(teacher, config, source, reporter=report, device=now.device)
        options = found["keep"]["swap"] if "keep" in found else config.swap_options
        report_of_swap = swap_as_stored(deepcopy(teacher.model), options)
        if now.json:
            print(json.dumps({**found, "swapped": report_of_swap.changed, "left": report_of_swap.left}, indent=1))
        else:
            print_dry_run(found, str(report_of_swap))


def options_file(out: Path) -> Path:
    """The file that keeps the options for --resume; the first version called it lesson.json."""
    old = out / "lesson.json"
    return old if old.is_file() else out / "options.json"


def _absolute(value: Any) -> Any:
    """An existing path made absolute, as the type that it has; all else as it is."""
    there = isinstance(value, str | Path) and Path(value).exists()
    return type(value)(Path(value).resolve()) if there else value


def _as_teacher(trained: "Trained") -> "Teacher":
    from ..training.linearize_task import Teacher

    classes = trained.classes if int(getattr(trained.model, "num_classes", 0)) else ()
    return Teacher(trained.model, trained.name, trained.arguments, classes)
