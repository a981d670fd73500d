"""`inline predict` with detectors and segmenters: objects or segments, drawn over the images."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .arguments import prepare_folder

if TYPE_CHECKING:
    import torch

    from ..training.dense_task import DenseModel
    from .predict import Predict


def predict_dense(options: "Predict", model: str, device: "torch.device") -> None:
    """Predict images one by one, at their own sizes; draw each, and print as results come."""
    from ..lite.decode import BadImageError, decode
    from ..lite.image_paths import open_images
    from ..training.dense_task import load_dense
    from ..training.load_trained import task_named
    from .drawings import LEAST_SCORE, draw_prediction

    _check(options, task_named(model))
    least_score = LEAST_SCORE if options.threshold is None else options.threshold
    dense = load_dense(model, options.inference, options.side)
    dense.model.to(device)
    out = options.out or Path("predictions")
    prepare_folder(out)
    bad, taken = 0, set[str]()
    for name, opened in open_images(options.images):
        try:
            image = decode(opened, name, dense.task.recipe.data.channels)
        except BadImageError as error:
            if not options.skip_bad:
                raise ValueError(f"{error} (--skip-bad goes on)") from error
            print(f"inline: {error}", file=sys.stderr)
            bad += 1
            continue
        found = dense.task.predict(dense.model, image, device)
        path = _unused_path(out, Path(name).stem.replace(" ", "-"), taken)
        for written in (path, _label_path(path)):
            if written.resolve() == Path(name).resolve():
                raise ValueError(f"{written} would be written over the image that it is made from: choose another --out")
        draw_prediction(dense, image, found, least_score).save(path)
        facts: dict[str, Any] = {"image": name, "drawn": str(path)}
        if dense.task.recipe.task.name == "segment":
            facts |= {"labels": str(_write_labels(found, path)), "classes": _shares(dense, found)}
        else:
            facts["objects"] = _objects(dense, found, least_score)
        print(json.dumps(facts) if options.json else _lines(facts, least_score))
    if bad:
        print(f"inline: {bad} images could not be read", file=sys.stderr)


def _check(options: "Predict", task: str) -> None:
    """Raise for options that this task has no use for."""
    if options.stream or options.ema:
        raise ValueError("--stream and --ema are for models that classify: leave them out")
    if options.threshold is not None and task != "detect":
        raise ValueError("--threshold is for models that detect: leave it out")
    if options.threshold is not None and not 0 <= options.threshold <= 1:
        raise ValueError(f"--threshold must be within 0..1, got {options.threshold}")


def _unused_path(out: Path, stem: str, taken: set[str]) -> Path:
    """A path that no other image of this call has."""
    names = (stem if turn == 1 else f"{stem}-{turn}" for turn in range(1, 1_000_000))
    name = next(name for name in names if not {name, _label_path(out / name).stem} & taken)
    taken |= {name, _label_path(out / name).stem}
    return out / f"{name}.png"


def _label_path(path: Path) -> Path:
    """The file of class numbers beside a drawing."""
    return path.with_name(f"{path.stem}_labels.png")


def _write_labels(found: "torch.Tensor", path: Path) -> Path:
    """Write the class numbers as a grey PNG, for other programs."""
    import numpy as np
    from PIL import Image

    labels = _label_path(path)
    kind = np.uint8 if int(found.max()) < 256 else np.uint16
    Image.fromarray(found.numpy().astype(kind)).save(labels)
    return labels


def _shares(dense: "DenseModel", found: "torch.Tensor") -> list[dict[str, Any]]:
    counts = found.flatten().bincount(minlength=len(dense.classes)) / found.numel()
    shares = [{"name": name, "share": share} for name, share in zip(dense.classes, counts.tolist(), strict=True) if share]
    return sorted(shares, key=lambda entry: -float(str(entry["share"])))


def _objects(dense: "DenseModel", found: dict[str, "torch.Tensor"], least_score: float) -> list[dict[str, Any]]:
    areas = (found["masks"][:, 0] >= 0.5).sum((1, 2)).tolist()
    rows = zip(found["scores"].tolist(), found["labels"].tolist(), found["boxes"].tolist(), areas, strict=True)
    return [
        {"name": dense.classes[label - 1], "score": score, "box": [round(side, 1) for side in box], "pixels": area}
        for score, label, box, area in rows
        if score >= least_score
    ]


def _lines(facts: dict[str, Any], least_score: float) -> str:
    """The result for one image, as lines of text."""
    lines = [f"{facts['image']} -> {facts['drawn']}"]
    lines += [f"  {entry['share']:7.2%}  {entry['name']}" for entry in facts.get("classes", ())]
    for entry in facts.get("objects", ()):
        left, top, right, bottom = entry["box"]
        lines.append(f"  {entry['score']:7.2%}  {entry['name']} from ({left:.0f}, {top:.0f}) to ({right:.0f}, {bottom:.0f})")
    if not facts.get("objects", True):
        lines.append(f"  no object with a score of {least_score:g} or more")
    return "\n".join(lines)
