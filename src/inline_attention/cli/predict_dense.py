"""`inline predict` with detectors and segmenters: what is where, drawn over the pictures."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .arguments import prepare_folder

if TYPE_CHECKING:
    import torch

    from ..tasks.dense_model import DenseModel
    from .predict import Predict


def predict_dense(asked: "Predict", model: str, device: "torch.device") -> None:
    """Look at pictures one by one, at their own sizes; draw each, and print as they come."""
    from ..plain.decode import BadPictureError, decode
    from ..plain.opening import opened_pictures
    from ..tasks.dense_model import load_dense
    from ..training.trained import task_named
    from .dense_pictures import SURE, draw

    _check(asked, task_named(model))
    sure = SURE if asked.threshold is None else asked.threshold
    dense = load_dense(model, asked.inference, asked.side)
    dense.model.to(device)
    out = asked.out or Path("predictions")
    prepare_folder(out)
    bad, taken = 0, set[str]()
    for name, opened in opened_pictures(asked.pictures):
        try:
            picture = decode(opened, name, dense.task.recipe.data.channels)
        except BadPictureError as error:
            if not asked.skip_bad:
                raise ValueError(f"{error} (--skip-bad goes on)") from error
            print(f"inline: {error}", file=sys.stderr)
            bad += 1
            continue
        found = dense.task.look(dense.model, picture, device)
        path = _free(out, Path(name).stem.replace(" ", "-"), taken)
        for written in (path, _labels(path)):
            if written.resolve() == Path(name).resolve():
                raise ValueError(f"{written} would be written over the picture that it is made from: choose another --out")
        draw(dense, picture, found, sure).save(path)
        facts: dict[str, Any] = {"picture": name, "drawn": str(path)}
        if dense.task.recipe.task.name == "segment":
            facts |= {"labels": str(_keep_labels(found, path)), "classes": _shares(dense, found)}
        else:
            facts["objects"] = _objects(dense, found, sure)
        print(json.dumps(facts) if asked.json else _told(facts))
    if bad:
        print(f"inline: {bad} pictures could not be read", file=sys.stderr)


def _check(asked: "Predict", task: str) -> None:
    """Raise for options that say nothing to this task."""
    if asked.stream or asked.ema:
        raise ValueError("--stream and --ema are for models that classify: leave them out")
    if asked.threshold is not None and task != "detect":
        raise ValueError("--threshold is for models that detect: leave it out")
    if asked.threshold is not None and not 0 <= asked.threshold <= 1:
        raise ValueError(f"--threshold must be within 0..1, got {asked.threshold}")


def _free(out: Path, stem: str, taken: set[str]) -> Path:
    """A name that no other picture of this call has."""
    names = (stem if turn == 1 else f"{stem}-{turn}" for turn in range(1, 1_000_000))
    name = next(name for name in names if not {name, _labels(out / name).stem} & taken)
    taken |= {name, _labels(out / name).stem}
    return out / f"{name}.png"


def _labels(path: Path) -> Path:
    """Where class numbers go."""
    return path.with_name(f"{path.stem}_labels.png")


def _keep_labels(found: "torch.Tensor", path: Path) -> Path:
    """The numbers of classes as a grey PNG, for other programs."""
    import numpy as np
    from PIL import Image

    labels = _labels(path)
    kind = np.uint8 if int(found.max()) < 256 else np.uint16
    Image.fromarray(found.numpy().astype(kind)).save(labels)
    return labels


def _shares(dense: "DenseModel", found: "torch.Tensor") -> list[dict[str, Any]]:
    counts = found.flatten().bincount(minlength=len(dense.classes)) / found.numel()
    told = [{"name": name, "share": share} for name, share in zip(dense.classes, counts.tolist(), strict=True) if share]
    return sorted(told, key=lambda entry: -float(str(entry["share"])))


def _objects(dense: "DenseModel", found: dict[str, "torch.Tensor"], sure: float) -> list[dict[str, Any]]:
    areas = (found["masks"][:, 0] >= 0.5).sum((1, 2)).tolist()
    rows = zip(found["scores"].tolist(), found["labels"].tolist(), found["boxes"].tolist(), areas, strict=True)
    return [
        {"name": dense.classes[label - 1], "score": score, "box": [round(side, 1) for side in box], "pixels": area}
        for score, label, box, area in rows
        if score >= sure
    ]


def _told(facts: dict[str, Any]) -> str:
    """A picture as lines to read."""
    lines = [f"{facts['picture']} -> {facts['drawn']}"]
    lines += [f"  {entry['share']:7.2%}  {entry['name']}" for entry in facts.get("classes", ())]
    for entry in facts.get("objects", ()):
        left, top, right, bottom = entry["box"]
        lines.append(f"  {entry['score']:7.2%}  {entry['name']} from ({left:.0f}, {top:.0f}) to ({right:.0f}, {bottom:.0f})")
    if not facts.get("objects", True):
        lines.append("  nothing sure enough")
    return "\n".join(lines)
