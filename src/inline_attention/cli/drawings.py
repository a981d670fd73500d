"""Images that a run ends with: attention of a classifier, predictions of a detector or segmenter."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from ..analysis.maps import QueryMap
    from ..data.sources import Source
    from ..training.dense_task import DenseModel

ATTENTION_IMAGES = 4
ATTENTION_BLOCKS = 2
SMALLEST_GRID = 4
"""Tokens a side below which a map shows nothing."""
LEAST_SCORE = 0.5
"""Score from which an object is drawn."""
PREDICTION_IMAGES = 6
COLUMNS, HEIGHT, GAP = 3, 480, 8
"""Of the sheet of predictions: images in a row, pixels of an image, pixels between two."""


def draw_attention(run: Path, source: "Source") -> Path | None:
    """Write attention.png: a few validation images, each of another class, with the attention of one point.

    None if there is nothing to draw, as for a convolutional model.
    """
    from ..analysis.capture import NoAttentionError
    from ..analysis.map_plots import ImageMaps, draw_maps
    from ..analysis.maps import query_maps
    from ..data.datasets import StreamingDataset
    from ..data.transforms import evaluation_transform
    from ..lite.decode import BadImageError
    from ..training.load_trained import load_trained

    if isinstance(source.val, StreamingDataset):
        return None
    trained = load_trained(str(run))
    data = trained.data
    unnormalised = evaluation_transform(replace(data, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)))
    transform = evaluation_transform(data)
    found: dict[int, ImageMaps] = {}
    for index in range(len(source.val)):
        try:
            image, label = source.val.load(index, data.channels)
        except BadImageError:
            continue
        if label in found:
            continue
        pixels = unnormalised(image)
        try:
            maps = _finest(query_maps(trained.model, transform(image)[None], _salient_point(pixels)))
        except NoAttentionError:
            return None
        if not maps:
            return None
        found[label] = ImageMaps(source.classes[label], pixels.permute(1, 2, 0).expand(-1, -1, 3), maps)
        if len(found) == min(ATTENTION_IMAGES, len(source.classes)):
            break
    return draw_maps(list(found.values()), run / "attention.png") if found else None


def _finest(maps: Sequence["QueryMap"]) -> Sequence["QueryMap"]:
    """The last block of each of the finest grids."""
    whole = [found for found in maps if found.mixed.shape[2:] == found.grid]
    by_grid = {found.grid: found for found in whole if min(found.grid) >= SMALLEST_GRID}
    return list(by_grid.values())[:ATTENTION_BLOCKS]


def _salient_point(pixels: "Tensor") -> tuple[float, float]:
    """The point near the centre that differs most from the mean, as shares of height and width."""
    grey = pixels.mean(0)
    height, width = grey.shape
    inner = grey[height // 4 : height - height // 4, width // 4 : width - width // 4]
    place = int((inner - grey.mean()).abs().argmax())
    return (height // 4 + place // inner.shape[1] + 0.5) / height, (width // 4 + place % inner.shape[1] + 0.5) / width


def draw_prediction(dense: "DenseModel", image: "Image.Image", found: Any, least_score: float = LEAST_SCORE) -> "Image.Image":
    """The image with its objects, or with its segments."""
    from ..dense.drawing import draw_objects
    from ..lite.label_drawing import draw_labels

    if dense.task.recipe.task.name == "segment":
        return draw_labels(image, found, dense.classes)
    kept = found["scores"] >= least_score
    names = [dense.classes[label - 1] for label in found["labels"][kept].tolist()]
    masks = found["masks"][kept, 0] >= 0.5 if "masks" in found else None
    return draw_objects(image, found["boxes"][kept], names, found["scores"][kept], masks)


def draw_predictions(run: Path, source: "Source") -> Path | None:
    """Write predictions.png: a sheet of validation images with the predictions of the run's best weights."""
    import torch

    from ..lite.decode import BadImageError
    from ..training.dense_task import load_dense

    dense = load_dense(str(run))
    drawn = []
    step = max(1, len(source.val) // PREDICTION_IMAGES)
    for index in range(0, len(source.val), step):
        try:
            image, _ = source.val.load(index, dense.task.recipe.data.channels)  # type: ignore[union-attr]
        except BadImageError:
            continue
        drawn.append(draw_prediction(dense, image, dense.task.predict(dense.model, image, torch.device("cpu"))))
        if len(drawn) == PREDICTION_IMAGES:
            break
    return _sheet(drawn, run / "predictions.png") if drawn else None


def _sheet(images: "list[Image.Image]", path: Path) -> Path:
    """Images side by side, all of one height."""
    from PIL import Image

    sized = [image.resize((max(1, round(HEIGHT * image.width / image.height)), HEIGHT)) for image in images]
    rows = [sized[start : start + COLUMNS] for start in range(0, len(sized), COLUMNS)]
    widths = [sum(image.width + GAP for image in row) - GAP for row in rows]
    whole = Image.new("RGB", (max(widths), len(rows) * (HEIGHT + GAP) - GAP), "white")
    for number, row in enumerate(rows):
        left = 0
        for image in row:
            whole.paste(image, (left, number * (HEIGHT + GAP)))
            left += image.width + GAP
    whole.save(path)
    return path
