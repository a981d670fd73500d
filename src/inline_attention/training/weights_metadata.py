"""Checks of the metadata in a file of weights, which may come from anywhere, and of what is made from it."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..data.config import DataConfig, data_faults
from ..data.datasets import check_classes
from ..lite.text import check_names
from .config import Recipe, TaskConfig
from .recipe import HEADS, build, check, upgrade

TASKS = tuple(name for name in HEADS if name != "classify")
"""Tasks that a file names; files of classifiers name none."""
LISTED = f"{', '.join(TASKS[:-1])} or {TASKS[-1]}"
LONGEST_VALUE = 60
MAX_GROWTH, SMALL_MODEL = 4, 2**26
"""A model may take so many times the bytes of its file (8 bits as 32), and so many more."""
FIELDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "model": ("a name", lambda value: isinstance(value, str)),
    "arguments": ("a table", lambda value: isinstance(value, dict)),
    "classes": ("a list of names", lambda value: isinstance(value, list) and all(isinstance(name, str) for name in value)),
    "data": ("a table", lambda value: isinstance(value, dict)),
    "task": (
        f"a table whose name is {LISTED}",
        lambda value: isinstance(value, dict) and value.get("name") in TASKS,
    ),
}
"""The fields that are used: what they must be, in words and as a test. All of them are optional, others are notes."""


def check_metadata(table: Any, path: Path) -> Mapping[str, Any]:
    """The metadata of a file, or a ValueError that names the field that is wrong."""
    if not isinstance(table, dict):
        raise ValueError(f"{path}: its metadata must be a table, got {_short(table)}")
    for field, (expected, fits) in FIELDS.items():
        if field in table and not fits(table[field]):
            raise ValueError(f"{path}: {field} of its metadata must be {expected}, got {_short(table[field])}")
    check_names(table.get("classes", ()), path)
    return table


def data_of(metadata: Mapping[str, Any], path: Path) -> DataConfig:
    """How images become the model's input."""
    if "data" not in metadata:
        raise ValueError(f"{path} does not say how images become its input: its metadata has no data")
    data = build(DataConfig, upgrade(metadata["data"], "data."), "data.", str(path))
    if faults := data_faults(data):
        raise ValueError(f"{path}: {faults[0]}")
    return data


def task_of(metadata: Mapping[str, Any], path: Path, given: Mapping[str, Any]) -> TaskConfig:
    """The detector's or segmenter's settings, some of them replaced."""
    if "task" not in metadata:
        raise ValueError(f"{path} is a model to classify, not for the task {LISTED}")
    table = {key: value for key, value in metadata["task"].items() if value is not None}
    task = build(TaskConfig, {**table, **given}, "task.", str(path))
    try:
        check(Recipe(task=task))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return task


def classes_of(metadata: Mapping[str, Any], path: Path, count: int | None = None) -> tuple[str, ...]:
    """The names of classes; `count` of them, if it is given."""
    names = tuple(metadata.get("classes", ()))
    if not names:
        raise ValueError(f"{path} names no classes: its metadata has no classes")
    return check_classes(names, str(path), count)


def make_for_file(path: Path, make: Callable[..., nn.Module], *arguments: Any) -> nn.Module:
    """The model of a file; what is wrong with its arguments is an error that names the file, as is a far larger model."""
    claimed = 0
    with suppress(Exception), torch.device("meta"):  # what is wrong with the arguments is reported below
        claimed = sum(value.numel() * value.element_size() for value in make(*arguments).state_dict().values())
    if claimed > MAX_GROWTH * path.stat().st_size + SMALL_MODEL:
        raise ValueError(f"{path}: its metadata asks for a model of {claimed:,} bytes, far more than the file's: refused")
    try:
        return make(*arguments)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."
