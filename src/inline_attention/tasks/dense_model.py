"""A trained detector or segmenter, from a run's folder or a file of weights."""

from dataclasses import dataclass

from torch import nn

from ..models.checkpoints import read_checkpoint, select_weights
from ..plain.wording import first_line
from ..training.lay_in import weights_of
from ..training.recipe import DataPart, ModelPart, Recipe, TaskPart, build
from ..training.trained import creation_of, metadata_of
from . import make_task
from .dense_task import DenseTask


@dataclass(frozen=True)
class DenseModel:
    """A model, its task, and what its classes are called."""

    model: nn.Module
    name: str
    task: DenseTask
    classes: tuple[str, ...]
    said: str
    """What the loader says of the weights."""


def load_dense(what: str, inference: str | None = None, side: int | None = None) -> DenseModel:
    """A detector or segmenter to use.

    Args:
        what: the folder of a run, or a file of weights that a run wrote.
        inference: 'whole' or 'slide', if it is to be another than in the run.
        side: shorter side that a segmenter is shown pictures at, 0 for their own, if it is to be another than in the run.
    """
    path = weights_of(what)
    metadata = metadata_of(path)
    name, arguments = creation_of(metadata, path)
    given = {key: value for key, value in metadata["task"].items() if value is not None}
    if metadata["task"]["name"] != "segment" and (inference is not None or side is not None):
        raise ValueError(f"{path} is a model to {metadata['task']['name']}: --inference and --side are for those that segment")
    asked = {name: value for name, value in (("inference", inference), ("side", side)) if value is not None}
    recipe = Recipe(
        task=build(TaskPart, {**given, **asked}, "task.", str(path)),
        model=ModelPart(name),
        data=build(DataPart, metadata["data"], "data.", str(path)),
    )
    if side is not None and side < 0:
        raise ValueError(f"--side must be positive, or 0 for pictures as they are, got {side}")
    task = make_task(recipe)
    assert isinstance(task, DenseTask)
    classes = tuple(map(str, metadata["classes"]))
    model = task.make(name, arguments, len(classes))
    state = select_weights(read_checkpoint(path), ema=False, source=str(path))
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(f"{path} does not fit {name} with {task.head}: {first_line(error)}") from error
    return DenseModel(model.eval(), name, task, classes, f"{len(state)} tensors matched")
