"""What detectors and segmenters say, drawn over the pictures."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL import Image

    from ..tasks.dense_model import DenseModel

SURE = 0.5
"""Score from which an object is drawn."""
SHOWN = 6
"""Held-out pictures that the end of a run shows."""
COLUMNS = 3
HEIGHT = 480
"""Pixels of a picture in the sheet."""
GAP = 8


def draw(dense: "DenseModel", picture: "Image.Image", found: Any, sure: float = SURE) -> "Image.Image":
    """The picture with its objects, or with its classes."""
    from ..dense.drawing import draw_labels, draw_objects

    if dense.task.recipe.task.name == "segment":
        return draw_labels(picture, found, dense.classes)
    kept = found["scores"] >= sure
    names = [dense.classes[label - 1] for label in found["labels"][kept].tolist()]
    masks = found["masks"][kept, 0] >= 0.5
    return draw_objects(picture, found["boxes"][kept], names, found["scores"][kept], masks, dense.classes)


def draw_held_out(run: Path) -> Path | None:
    """A sheet of held-out pictures, as the best weights of a run see them."""
    import torch

    from ..plain.decode import BadPictureError
    from ..tasks import make_task
    from ..tasks.dense_model import load_dense
    from ..training.run_folder import RunFolder

    dense = load_dense(str(run))
    recipe = RunFolder(run).recipe()
    source = make_task(recipe).open()
    drawn = []
    step = max(1, len(source.val) // SHOWN)
    for index in range(0, len(source.val), step):
        try:
            picture, _ = source.val.load(index, recipe.data.channels)  # type: ignore[union-attr]
        except BadPictureError:
            continue
        drawn.append(draw(dense, picture, dense.task.look(dense.model, picture, torch.device("cpu"))))
        if len(drawn) == SHOWN:
            break
    return sheet(drawn, run / "predictions.png") if drawn else None


def sheet(pictures: "list[Image.Image]", path: Path) -> Path:
    """Pictures side by side, all of one height."""
    from PIL import Image

    sized = [picture.resize((max(1, round(HEIGHT * picture.width / picture.height)), HEIGHT)) for picture in pictures]
    rows = [sized[start : start + COLUMNS] for start in range(0, len(sized), COLUMNS)]
    widths = [sum(picture.width + GAP for picture in row) - GAP for row in rows]
    whole = Image.new("RGB", (max(widths), len(rows) * (HEIGHT + GAP) - GAP), "white")
    for number, row in enumerate(rows):
        left = 0
        for picture in row:
            whole.paste(picture, (left, number * (HEIGHT + GAP)))
            left += picture.width + GAP
    whole.save(path)
    return path
