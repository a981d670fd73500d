"""The JSON file beside an ONNX file: the model, its evaluation transform, the names of its classes."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .decode import first_line
from .limits import HUGE, TINY, input_fault
from .text import check_names
from .transform import CROP_MODES, INTERPOLATIONS, NumpyTransform, upgrade_transform

PRECISIONS = ("fp32", "fp16", "int8")
LARGEST_NUMBER = 65536
"""Of pixels of a side, and of classes."""
_AGAIN = "export the model again"


@dataclass(frozen=True)
class Description:
    """What is known of an exported classifier."""

    model: str
    """Its name."""
    precision: str
    sha256: str
    """Of the ONNX file."""
    input: str
    """Name of the images in the graph, (B, C, H, W)."""
    output: str
    """Name of the logits in the graph, (B, classes)."""
    transform: NumpyTransform
    classes: tuple[str, ...]


def _whole(value: Any) -> bool:
    return type(value) is int and 0 < value <= LARGEST_NUMBER


def _number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < HUGE


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _each(fits: Callable[[Any], bool], *lengths: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and (not lengths or len(value) in lengths) and all(map(fits, value))


def _side(value: Any) -> bool:
    return _text(value) or _whole(value)


FIELDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "format": ("'onnx'", lambda value: value == "onnx"),
    "model": ("a name", _text),
    "precision": (f"one of {', '.join(PRECISIONS)}", lambda value: value in PRECISIONS),
    "sha256": ("64 hexadecimal digits", lambda value: _text(value) and bool(re.fullmatch("[0-9a-fA-F]{64}", value))),
    "input.name": ("a name", _text),
    "input.shape": ("a list of 4 names or numbers", _each(_side, 4)),
    "output.name": ("a name", _text),
    "output.shape": ("a list of 2 names or numbers", _each(_side, 2)),
    "data.size": (f"a list of 2 whole numbers, 1 to {LARGEST_NUMBER}", _each(_whole, 2)),
    "data.channels": ("1 or 3", lambda value: type(value) is int and value in (1, 3)),
    "data.crop_mode": (f"one of {', '.join(CROP_MODES)}", lambda value: value in CROP_MODES),
    "data.crop": ("a number above 0, 1 at most", lambda value: _number(value) and 0 < value <= 1),
    "data.interpolation": (f"one of {', '.join(INTERPOLATIONS)}", lambda value: value in list(INTERPOLATIONS)),
    "data.mean": ("a list of 1 or 3 numbers", _each(_number, 1, 3)),
    "data.std": ("a list of 1 or 3 positive numbers", _each(lambda value: _number(value) and value > TINY, 1, 3)),
    "classes": ("a list of names", lambda value: bool(value) and _each(_text)(value)),
}
"""The required fields: what they must be, in words and as a test. Other fields are notes."""


def description_of(file: Path) -> Path:
    """Path of the description of a file: `model.onnx.json` beside `model.onnx`."""
    return file.with_name(f"{file.name}.json")


def read_description(path: Path) -> Description:
    """Read the JSON file and check every field."""
    table = _table(path)
    if isinstance(table.get("data"), dict):
        table["data"] = upgrade_transform(table["data"])
    found = {field: _value(table, field, path) for field in FIELDS}
    channels, classes = found["data.channels"], found["classes"]
    for part in ("mean", "std"):
        if len(found[f"data.{part}"]) not in (3, channels):
            raise ValueError(f"{path}: data.{part} must be a list of 3 numbers, got {found[f'data.{part}']}: {_AGAIN}")
    if found["input.shape"][1] != channels:
        raise ValueError(f"{path}: data.channels is {channels}, but input.shape is {found['input.shape']}: {_AGAIN}")
    if found["output.shape"][1] != len(classes):
        raise ValueError(f"{path} names {len(classes)} classes, but output.shape is {found['output.shape']}: {_AGAIN}")
    height, width = found["data.size"]
    if fault := input_fault((height, width), found["data.crop"]):
        raise ValueError(f"{path}: {fault}")
    check_names(classes, path)
    mean, std = (tuple(map(float, found[f"data.{part}"])) for part in ("mean", "std"))
    transform = NumpyTransform(
        (height, width), channels, found["data.crop_mode"], found["data.crop"], found["data.interpolation"], mean, std
    )
    return Description(
        model=found["model"],
        precision=found["precision"],
        sha256=found["sha256"].lower(),
        input=found["input.name"],
        output=found["output.name"],
        transform=transform,
        classes=tuple(classes),
    )


def _table(path: Path) -> Any:
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"there is no {path}, which says how the ONNX file beside it is used: {_AGAIN}") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or first_line(error)}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON, perhaps it is truncated: {first_line(error)}") from error
    if not isinstance(table, dict):
        raise ValueError(f"{path} must hold a JSON object, got a {type(table).__name__}: {_AGAIN}")
    return table


def _value(table: Any, field: str, path: Path) -> Any:
    """The value of a field, whose name may be dotted."""
    value = table
    for key in field.split("."):
        if not isinstance(value, dict) or key not in value:
            raise ValueError(f"{path} has no field {field}: {_AGAIN}")
        value = value[key]
    expected, fits = FIELDS[field]
    if not fits(value):
        text = repr(value)
        raise ValueError(f"{path}: {field} must be {expected}, got {text[:60]}{'...' * (len(text) > 60)}: {_AGAIN}")
    return value
