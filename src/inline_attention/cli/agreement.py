"""What an exported file says of real pictures, beside what the model says of them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from .held_out import held_out

if TYPE_CHECKING:
    from torch import Tensor

    from ..training.pictures import Pictures, Stream
    from ..training.trained import Trained

BATCH = 16
EVERY = 10
"""Seconds between two words on how far it is."""


@dataclass(frozen=True)
class Judges:
    """Pictures that model and file are both shown."""

    pictures: "Pictures | Stream"
    source: str
    """What they are called; of a place on a disk, its last name."""
    labelled: bool
    """Whether their classes are the model's."""


def find_judges(trained: "Trained", model: str, data: str | None, root: str | None, split: str) -> Judges:
    """Those of `held_out`; of other classes, or of none, they can be looked at all the same."""
    from ..plain.opening import ENDINGS
    from ..training.pictures import FilePictures
    from ..training.recipe import DataPart
    from ..training.source import open_source

    try:
        pictures, source = held_out(trained, model, data, root, split)
        return Judges(pictures, _called(source), labelled=True)
    except ValueError:
        if data is None:
            raise
        folder = Path(data).expanduser()
        if not folder.is_dir():
            return Judges(open_source(DataPart(source=data, root=root, val=split)).val, _called(data), labelled=False)
        files = sorted(str(file) for file in folder.rglob("*") if file.is_file() and file.suffix.lower() in ENDINGS)
        if not files:
            raise
        return Judges(FilePictures(tuple(files)), _called(data), labelled=False)


def _called(source: str) -> str:
    path = Path(source).expanduser()
    return path.resolve().name if path.exists() else source


def agreement(
    trained: "Trained",
    run: Callable[["Tensor"], "Tensor"],
    judges: Judges,
    *,
    count: int,
    workers: int | None,
    seed: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Accuracy of both in percent, where the pictures are labelled, and how often both name the same class first.

    Args:
        run: the file: (B, C, H, W) -> (B, classes).
        count: of so many pictures at most, drawn by the seed; of a stream, the first ones.
        workers: processes that read pictures; None: by the cores there are.
        say: told how far it is, now and then.
    """
    import torch

    from ..training.classify import Classify
    from ..training.loader import evaluation_batches, worker_count
    from ..training.pictures import Chosen, Stream
    from ..training.recipe import Recipe

    pictures, total = judges.pictures, min(count, len(judges.pictures))
    if not isinstance(pictures, Stream):
        order = torch.randperm(len(pictures), generator=torch.Generator().manual_seed(seed))
        pictures = Chosen(pictures, sorted(order[:total].tolist()))
    say(f"{total:,} pictures of {judges.source}")
    batches = evaluation_batches(
        pictures,
        Classify(Recipe(data=trained.data)).show(training=False),
        BATCH,
        rank=0,
        processes=1,
        channels=trained.data.channels,
        workers=worker_count(workers, 1, total),
    )
    done = alike = right = file_right = 0
    told = perf_counter()
    for batch in batches:
        if batch.bad:
            raise ValueError(f"{batch.bad[0]}: take it out of {judges.source}")
        pixels, classes = batch.pixels[: total - done], batch.targets[: total - done]
        with torch.no_grad():
            expected, got = trained.model(pixels), run(pixels)
        if not torch.isfinite(got).all():
            raise FloatingPointError(f"the file gives numbers that are not finite for pictures of {judges.source}: not written")
        mine, its = expected.argmax(1), got.argmax(1)
        alike += int((mine == its).sum())
        right, file_right = right + int((mine == classes).sum()), file_right + int((its == classes).sum())
        done += len(pixels)
        if perf_counter() - told > EVERY:
            told = perf_counter()
            say(f"{done:,} of {total:,} pictures")
        if done >= total:
            break
    if not done:
        raise ValueError(f"there is no picture in {judges.source}")
    scores = {
        "model_top1": 100 * right / done,
        "file_top1": 100 * file_right / done,
        "change": 100 * (file_right - right) / done,
    }
    judged = scores if judges.labelled else dict.fromkeys(scores)
    return {"data": judges.source, "pictures": done, **judged, "same_top1": 100 * alike / done}
