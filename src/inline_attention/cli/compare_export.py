"""Compares the predictions of an exported file with the model's, on real images."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from ..data.datasets import ImageDataset, StreamingDataset
    from ..data.loader import Batch
    from ..training.load_trained import Trained

BATCH = 16
REPORT_SECONDS = 10
"""Seconds between two messages about progress."""


@dataclass(frozen=True)
class EvalSet:
    """Images to compare a model and its exported file on."""

    images: "ImageDataset | StreamingDataset"
    source: str
    """Its name; of a path, the last part."""
    labelled: bool
    """Whether the labels are the model's classes."""


def open_eval_set(trained: "Trained", model: str, data: str | None, root: str | None, split: str | None) -> EvalSet:
    """The model's validation set, or other images; those of other classes, or without classes, are taken without labels."""
    from ..data.config import DataConfig
    from ..data.datasets import FileDataset
    from ..data.sources import open_split
    from ..data.splits import NoSplitError
    from ..lite.image_paths import images_below
    from ..training.eval_images import validation_set

    try:
        images = validation_set(trained, model, data, root, split)
        return EvalSet(images.source.val, _short_name(images.name), labelled=True)
    except NoSplitError:
        raise
    except ValueError:
        if data is None:
            raise
        folder = Path(data).expanduser()
        if not folder.is_dir():
            return EvalSet(open_split(DataConfig(source=data, root=root), split).val, _short_name(data), labelled=False)
        files = [str(file) for file in images_below(folder)]
        if not files:
            raise
        return EvalSet(FileDataset(tuple(files)), _short_name(data), labelled=False)


def _short_name(source: str) -> str:
    path = Path(source).expanduser()
    return path.resolve().name if path.exists() else source


def compare_predictions(
    trained: "Trained",
    run: Callable[["Tensor"], "Tensor"],
    images_from: EvalSet,
    *,
    count: int,
    workers: int | None,
    seed: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Accuracy of both in percent, if the images are labelled, and how often both predict the same class.

    Args:
        run: the file: (B, C, H, W) -> (B, classes).
        count: at most so many images, drawn by the seed; of a stream, the first ones.
        workers: processes that read images; None: by the number of cores.
        say: called with a message about progress, now and then.
    """
    import torch

    from ..models.finite import check_outputs

    source, total = images_from.source, min(count, len(images_from.images))
    say(f"{total:,} images of {source}")
    done = same = model_right = file_right = 0
    reported = perf_counter()
    for batch in _batches(trained, images_from, total, workers, seed):
        if batch.bad:
            raise ValueError(f"{batch.bad[0]}: take it out of {source}")
        pixels, classes = batch.pixels[: total - done], batch.targets[: total - done]
        with torch.no_grad():
            by_model, by_file = trained.model(pixels), run(pixels)
        check_outputs(by_model, batch.names)
        check_outputs(by_file, batch.names, "nothing is written: the file")
        model_class, file_class = by_model.argmax(1), by_file.argmax(1)
        same += int((model_class == file_class).sum())
        model_right += int((model_class == classes).sum())
        file_right += int((file_class == classes).sum())
        done += len(pixels)
        if perf_counter() - reported > REPORT_SECONDS:
            reported = perf_counter()
            say(f"{done:,} of {total:,} images")
        if done >= total:
            break
    if not done:
        raise ValueError(f"there is no image in {source}")
    scores = {
        "model_top1": 100 * model_right / done,
        "file_top1": 100 * file_right / done,
        "change": 100 * (file_right - model_right) / done,
    }
    accuracy = scores if images_from.labelled else dict.fromkeys(scores)
    return {"data": source, "images": done, **accuracy, "same_top1": 100 * same / done}


def _batches(trained: "Trained", images_from: EvalSet, total: int, workers: int | None, seed: int) -> "Iterable[Batch]":
    """`total` images, drawn by the seed, as the model takes them."""
    import torch

    from ..data.datasets import StreamingDataset, Subset
    from ..data.loader import evaluation_batches, worker_count
    from ..training.classify import Classify
    from ..training.config import Recipe

    images = images_from.images
    if not isinstance(images, StreamingDataset):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
        images = Subset(images, sorted(order[:total].tolist()))
    return evaluation_batches(
        images,
        Classify(Recipe(data=trained.data)).transform(training=False),
        BATCH,
        rank=0,
        processes=1,
        channels=trained.data.channels,
        workers=worker_count(workers, 1, total),
    )
