"""`inline eval` and `inline predict` with models of bags of tile features: scores, predictions, and maps of attention."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..lite.decode import BadImageError
from ..lite.text import printable
from .arguments import prepare_folder
from .console import table_console
from .eval import Eval, eval_folder, print_rest, score, score_table, write_score
from .main import warn
from .predict_output import DrawingPaths
from .train_report import metric_number, number

if TYPE_CHECKING:
    import torch

    from ..data.bag import Bag
    from ..data.sources import Source
    from ..training.bags import BagModel
    from ..training.slides import SlideModel
    from .predict import Predict

OF_IMAGES = "is for models of images: leave it out"
DRAWN_SLIDES = 4


def evaluate_bags(options: Eval, task: str = "bags") -> None:
    """Load the model, evaluate it on every slide once, print and write the result.

    Args:
        options: of the command.
        task: bags, or slides for whole images.
    """
    from ..training.bags import load_bags
    from ..training.eval_images import eval_images
    from ..training.slides import load_slides

    for name in ("crop_mode", "size", "crop", "root", "inference", "side"):
        if getattr(options, name) is not None:
            raise ValueError(f"--{name.replace('_', '-')} {OF_IMAGES}")
    if options.ema:
        raise ValueError("--ema is for files that hold both kinds of weights: a run's best weights are one of them")
    load = load_bags if task == "bags" else load_slides
    model: BagModel | SlideModel = load(str(options.weights or options.model))
    images = eval_images(
        model.task, model.classes, options.model, options.data, split=options.split, skip_bad=options.skip_bad,
        labels=options.labels, columns=options.columns,
    )  # fmt: skip
    source, out = images.source, eval_folder(options)
    found = score(options, model.task, model.model, source, out)
    if found is None:
        return
    facts = {
        "model": model.name, "weights": str(options.weights or options.model), "task": asdict(model.task.recipe.task),
        "data": images.name,
    }  # fmt: skip
    bad = (*source.bad, *found.bad)
    text = write_score(out, facts, found, images, model.classes, bad, "slides")
    if options.json:
        print(text)
        return
    console = table_console()
    console.print(f"{model.name}: {model.loaded}", highlight=False, soft_wrap=True, markup=False)
    table = score_table(*model.task.columns.values(), "slides", "slides/s")
    numbers = [metric_number(found.metrics, name) for name in model.task.columns]
    table.add_row(found.split, *numbers, f"{found.images:,}", number(found.images_per_second, 1))
    console.print(table)
    unit = " %" if model.task.recipe.task.target == "class" else ""
    print_rest(console, found, images, model.classes, out, bad=bad, unit=unit, what="slides")


def predict_bags(options: "Predict", what: str, device: "torch.device") -> None:
    """Predict slides one by one, and print as results come; with --attention, write a map of each slide's tiles."""
    from ..training.bags import load_bags

    for name in ("threshold", "inference", "side", "folder"):
        if getattr(options, name) is not None:
            raise ValueError(f"--{name} {OF_IMAGES}")
    if options.stream or options.ema:
        raise ValueError(f"--{'stream' if options.stream else 'ema'} {OF_IMAGES}")
    if not options.attention and (options.out is not None or options.layer != -1):
        raise ValueError("--out and --layer are for the maps of --attention: give --attention too")
    model = load_bags(what)
    model.model.to(device)
    out = options.out or Path("predictions")
    if options.attention:
        prepare_folder(out)
    paths = DrawingPaths(out)
    for path in _files(options.images):
        try:
            bag = model.read(path)
        except BadImageError as error:
            if not options.skip_bad:
                raise ValueError(f"{error} (--skip-bad goes on)") from error
            warn(error)
            continue
        facts = _predicted(model, bag, path, device)
        if options.attention:
            facts |= _write_attention(model, bag, path, paths.unused(str(path)), device, options.layer)
        print(json.dumps(facts) if options.json else "\n".join(_lines(facts, options.top)))


def _files(names: tuple[str, ...]) -> Iterator[Path]:
    """The files that are named, and those in folders."""
    from ..data.bag_dataset import find_bags

    for name in names:
        path = Path(name)
        if path.is_dir():
            yield from find_bags(path)
        elif path.is_file():
            yield path
        else:
            raise ValueError(f"there is no file {name}")


def _predicted(model: "BagModel", bag: "Bag", path: Path, device: "torch.device") -> dict[str, Any]:
    found = model.predict(bag, device, str(path))
    facts: dict[str, Any] = {"slide": str(path), "tiles": len(bag.features), "grid": bag.grid}
    if model.task.recipe.task.target == "number":
        return {**facts, "number": found}
    return {**facts, "classes": [{"name": name, "probability": value} for name, value in found.items()]}


def _write_attention(
    model: "BagModel", bag: "Bag", path: Path, drawing: Path, device: "torch.device", layer: int
) -> dict[str, Any]:
    from ..analysis.tile_maps import attention_measurements, draw_tile_weights, write_geojson
    from ..analysis.tile_weights import tile_weights

    found = tile_weights(model.model, *model.inputs(bag, device), bag.places.to(device), layer)
    geojson = write_geojson(drawing.with_suffix(".geojson"), bag.coords, bag.tile, attention_measurements(found))
    draw_tile_weights([(path.stem, bag.places, found)], drawing)
    return {"layer": found.layer, "whose": found.whose, "geojson": str(geojson), "drawn": str(drawing)}


def _lines(facts: dict[str, Any], top: int) -> list[str]:
    drawn = f" -> {facts['drawn']}, {Path(facts['geojson']).name}" if "drawn" in facts else ""
    lines = [printable(f"{facts['slide']}: {facts['tiles']:,} tiles{drawn}")]
    lines += [f"  {name} {value:g}" for name, value in facts.get("number", {}).items()]
    return lines + [f"  {entry['probability']:7.2%}  {printable(entry['name'])}" for entry in facts.get("classes", ())[:top]]


def draw_bags(run: Path, source: "Source") -> Path | None:
    """Write attention.png: a few validation slides, and how the run's best weights weigh their tiles."""
    import torch

    from ..analysis.capture import NoAttentionError
    from ..analysis.tile_maps import draw_tile_weights
    from ..analysis.tile_weights import tile_weights
    from ..training.bags import load_bags

    model, device, slides = load_bags(str(run)), torch.device("cpu"), []
    for index in range(0, len(source.val), max(1, len(source.val) // DRAWN_SLIDES)):
        path = Path(source.val.name(index))  # type: ignore[union-attr]
        try:
            bag = model.read(path)
            found = tile_weights(model.model, *model.inputs(bag, device), bag.places)
        except BadImageError:
            continue
        except NoAttentionError:
            return None
        slides.append((path.stem, bag.places, found))
        if len(slides) == DRAWN_SLIDES:
            break
    return draw_tile_weights(slides, run / "attention.png") if slides else None
