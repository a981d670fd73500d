"""`inline predict` with models of slides from their whole images."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ..lite.decode import BadImageError
from ..lite.text import printable
from .bags import OF_IMAGES
from .main import warn
from .progress import step_counter

if TYPE_CHECKING:
    import torch

    from .predict import Predict


def predict_slides(options: "Predict", what: str, device: "torch.device") -> None:
    """Predict slides one by one, with progress within each, and print as results come."""
    from ..training.slides import load_slides

    for name in ("threshold", "inference", "side", "out"):
        if getattr(options, name) is not None:
            raise ValueError(f"--{name} {OF_IMAGES}")
    if options.ema:
        raise ValueError(f"--ema {OF_IMAGES}")
    model = load_slides(what)
    model.model.to(device)
    for path in _files(options.images):
        try:
            with step_counter(printable(path.name), Console(stderr=True), "part") as count:
                found = model.predict(path, count)
        except BadImageError as error:
            if not options.skip_bad:
                raise ValueError(f"{error} (--skip-bad goes on)") from error
            warn(error)
            continue
        print(_text(path, found, model.task.recipe.task.target, options))


def _text(path: Path, found: dict[str, float], target: str, options: "Predict") -> str:
    number = target == "number"
    if options.json:
        classes = [{"name": name, "probability": value} for name, value in found.items()]
        facts: dict[str, Any] = {"slide": str(path), **({"number": found} if number else {"classes": classes})}
        return json.dumps(facts)
    shown = list(found.items())[: None if number else options.top]
    lines = [f"  {name} {value:g}" if number else f"  {value:7.2%}  {printable(name)}" for name, value in shown]
    return "\n".join([printable(str(path)), *lines])


def _files(names: tuple[str, ...]) -> Iterator[Path]:
    """The images that are named, and those in folders."""
    from ..data.slide_dataset import SlideDataset

    for name in names:
        path = Path(name)
        if path.is_dir() and path.suffix != ".zarr":
            yield from SlideDataset.find(path)
        elif path.exists():
            yield path
        else:
            raise ValueError(f"there is no file {name}")
