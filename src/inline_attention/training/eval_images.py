"""Which images a trained model is scored on: those of its run, or others; which split, and whether it was trained on them."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..data.datasets import StreamingDataset
from ..data.sources import Source, folder_names
from ..data.splits import NoSplitError, canonical
from ..models.packaged_weights import PACKAGED
from .classify import Classify
from .config import Recipe
from .load_trained import Trained
from .recipe import absolute_file, absolute_source
from .run_folder import RunFolder
from .task import Task, make_task


@dataclass(frozen=True)
class EvalImages:
    """Images to score a model on, labelled with its classes."""

    source: Source
    """The images are its `val`; it also has their split."""
    name: str
    """The source's name or path."""
    chosen_by: bool = False
    """The run chose its best weights by these very images."""
    trained_on: int = 0
    """How many of them the run was trained on."""


def eval_images(
    task: Task,
    classes: tuple[str, ...],
    model: str,
    data: str | None = None,
    root: str | None = None,
    split: str | None = None,
    *,
    skip_bad: bool = False,
    labels: str | None = None,
    columns: tuple[str, ...] = (),
) -> EvalImages:
    """The images to score a model on.

    Args:
        task: what the model does.
        classes: the names of its classes.
        model: where it came from: the folder of a run knows its own images.
        data: a source of `inline train`, or a folder of class folders; None for the run's own.
        root: of a source that has one.
        split: None for the run's validation images, or else those of `data`, or all images of a folder without splits.
        skip_bad: leave out entries that cannot be read.
        labels: the table of slides in `data`; None for that of the run.
        columns: those of the table with the labels; none for the run's.
    """
    run = _run_of(model, needed=data is None)
    own = None if run is None else run.recipe()
    if labels is not None and data is None:
        raise ValueError(f"labels {labels} are those of the slides in `data`: give data too")
    if own is not None:
        own = replace(own, data=replace(own.data, skip_bad=skip_bad or own.data.skip_bad))
        same = labels is None or own.data.labels == absolute_file(labels)
        if data is None or (own.data.source == absolute_source(data) and root in (None, own.data.root) and same):
            return _of_run(own, classes, model, split)
    assert data is not None
    given = replace(task.recipe.data, source=data, root=root, skip_bad=skip_bad)
    if labels is not None or own is not None:
        table = labels or (own.data.labels if own is not None else "")
        given = replace(given, labels=table, columns=columns or (own.data.columns if own is not None else ()))
    other = make_task(replace(task.recipe, data=given))
    source = other.open_split(split, classes)
    _check_classes(other, source, classes, model)
    return EvalImages(source, data, trained_on=0 if own is None else _count_trained_on(own, source, data))


def validation_set(
    trained: Trained, model: str, data: str | None, root: str | None = None, split: str | None = None
) -> EvalImages:
    """The images to score a classifier on; see `eval_images`."""
    if data is None and model in PACKAGED:
        data = PACKAGED[model].data
    found = eval_images(Classify(Recipe(data=trained.data)), trained.classes, model, data, root, split)
    same = trained.chosen_by is not None and trained.chosen_by == found.source.scored["fingerprint"]
    return replace(found, chosen_by=found.chosen_by or same)


def _run_of(model: str, *, needed: bool) -> RunFolder | None:
    """The run that a model comes from: its folder, or the one that its file of best weights is in."""
    path = Path(model)
    if needed and not path.is_dir():
        raise ValueError(f"{model} does not record which images: give data")
    folder = RunFolder(path if path.is_dir() else path.parent)
    if not needed and not folder.has_recipe:
        return None
    return folder if path in (folder.path, folder.best) else None


def _check_classes(task: Task, source: Source, classes: tuple[str, ...], model: str) -> None:
    """Raise for images of other classes than the model's. Detectors and segmenters read their files by their classes."""
    if not isinstance(task, Classify):
        return
    known, where = folder_names(classes, source.classes), task.recipe.data.source
    if len(source.classes) != len(known):
        raise ValueError(f"{where} has {len(source.classes)} classes, and {model} knows {len(known)}")
    other = [name for name in source.classes if name not in known]
    if other and known != tuple(map(str, range(len(known)))):  # weights without names take any
        raise ValueError(f"{where} has a class {other[0]!r}, and {model} knows others: {', '.join(known)}"[:300])


def _of_run(own: Recipe, classes: tuple[str, ...], model: str, split: str | None) -> EvalImages:
    """A run's own images: its validation images, its training images, or another split of the same source."""
    task, where = make_task(own), own.data.source
    source = task.open()
    _check_classes(task, source, classes, model)
    name = source.split if split is None else canonical(split)
    if name == source.split:
        trained_on = len(source.train) if name == "train" else 0
        return EvalImages(source, where, chosen_by=True, trained_on=trained_on)
    if name == "train" and not isinstance(source.train, StreamingDataset):
        whole = replace(source, val=source.train, split=name, split_note="")
        return EvalImages(whole, where, trained_on=len(source.train))
    try:
        other = task.open_split(split, classes)
    except NoSplitError as error:
        splits = dict.fromkeys(("train", source.split, *error.splits))
        raise NoSplitError(where, split or name, [one for one in splits if one != "all"]) from error
    same = other.scored["fingerprint"] == source.scored["fingerprint"]  # under another name
    return EvalImages(other, where, chosen_by=same, trained_on=_overlap(source.train, other.val))


def _count_trained_on(own: Recipe, source: Source, data: str) -> int:
    """How many of the images a run was trained on; looked up if one of the two folders is in the other."""
    ours, theirs = Path(own.data.source), Path(absolute_source(data))
    if isinstance(source.val, StreamingDataset) or not (ours.is_relative_to(theirs) or theirs.is_relative_to(ours)):
        return 0
    try:
        train = make_task(own).open().train
    except (ValueError, OSError):  # they are no longer there
        return 0
    return _overlap(train, source.val)


def _overlap(train: Any, scored: Any) -> int:
    """How many of the images to score are among those to train on, by their paths; 0 for streams, which have none."""
    if isinstance(train, StreamingDataset) or isinstance(scored, StreamingDataset):
        return 0
    return len(_names(train) & _names(scored))


def _names(images: Any) -> set[str]:
    return {str(Path(images.name(index)).resolve()) for index in range(len(images))}
