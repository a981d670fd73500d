"""The JSON file beside an exported file: the model, its evaluation transform, the names of its classes."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .decode import first_line
from .limits import HUGE, TINY, input_fault
from .text import check_names
from .transform import CROP_MODES, INTERPOLATIONS, NumpyTransform, SegmentTransform, upgrade_transform

FORMATS = ("onnx", "openvino")
"""Of files that have a description which is read here."""
TASKS = ("classify", "segment")
PRECISIONS = ("fp32", "fp16", "bf16", "int8")
LARGEST_NUMBER = 65536
"""Of pixels of a side, and of classes."""
_AGAIN = "export the model again"


@dataclass(frozen=True)
class Description:
    """What is known of an exported model."""

    format: str
    model: str
    """Its name."""
    task: str
    """One of `TASKS`."""
    precision: str
    sha256: tuple[str, ...]
    """Of the file, and of those that belong to it: for OpenVINO of model.xml and model.bin."""
    input: str
    """Name of the images in the graph, (B, C, H, W)."""
    output: str
    """Name of the logits in the graph: (B, classes), or (B, classes, H, W) of a segmenter."""
    transform: NumpyTransform | SegmentTransform
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


def _hash(value: Any) -> bool:
    return _text(value) and bool(re.fullmatch("[0-9a-fA-F]{64}", value))


FIELDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "format": (f"one of {', '.join(FORMATS)}", lambda value: value in list(FORMATS)),
    "model": ("a name", _text),
    "precision": (f"one of {', '.join(PRECISIONS)}", lambda value: value in PRECISIONS),
    "sha256": ("64 hexadecimal digits", _hash),
    "input.name": ("a name", _text),
    "input.shape": ("a list of 4 names or numbers", _each(_side, 4)),
    "output.name": ("a name", _text),
    "output.shape": ("a list of 2 names or numbers, or 4 for a segmenter", _each(_side, 2, 4)),
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
SEGMENT_FIELDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "data.side": (
        f"0, or a whole number up to {LARGEST_NUMBER}",
        lambda value: (value == 0 and type(value) is int) or _whole(value),
    ),
    "data.longest": (f"a whole number, 1 to {LARGEST_NUMBER}", _whole),
    "data.windows": ("null, or a list of 4 whole numbers", lambda value: value is None or _each(_whole, 4)(value)),
}
"""More of them, for a segmenter."""
BIN_FIELDS = {"sha256_bin": FIELDS["sha256"]}
"""More of them, for OpenVINO."""
OPTIONAL = {"task": (f"one of {', '.join(TASKS)}", lambda value: value in list(TASKS))}
"""Files of earlier versions have none: they are classifiers."""


def description_of(file: Path) -> Path:
    """Path of the description of a file: `model.onnx.json` beside `model.onnx`."""
    return file.with_name(f"{file.name}.json")


def read_description(path: Path) -> Description:
    """Read the JSON file and check every field."""
    table = _table(path)
    if isinstance(table.get("data"), dict):
        table["data"] = upgrade_transform(table["data"])
    table.setdefault("task", "classify")
    found = {field: _value(table, field, path, FIELDS) for field in FIELDS}
    found["task"] = _value(table, "task", path, OPTIONAL)
    more = (SEGMENT_FIELDS if found["task"] == "segment" else {}) | (BIN_FIELDS if found["format"] == "openvino" else {})
    found |= {field: _value(table, field, path, more) for field in more}
    _check_together(found, path)
    check_names(found["classes"], path)
    digests = (found[field].lower() for field in ("sha256", "sha256_bin") if field in found)
    return Description(
        format=found["format"],
        model=found["model"],
        task=found["task"],
        precision=found["precision"],
        sha256=tuple(digests),
        input=found["input.name"],
        output=found["output.name"],
        transform=_transform(found),
        classes=tuple(found["classes"]),
    )


def _check_together(found: dict[str, Any], path: Path) -> None:
    """Raise where fields contradict each other."""
    channels, classes, shape = found["data.channels"], found["classes"], found["output.shape"]
    for part in ("mean", "std"):
        if len(found[f"data.{part}"]) not in (3, channels):
            raise ValueError(f"{path}: data.{part} must be a list of 3 numbers, got {found[f'data.{part}']}: {_AGAIN}")
    if found["input.shape"][1] != channels:
        raise ValueError(f"{path}: data.channels is {channels}, but input.shape is {found['input.shape']}: {_AGAIN}")
    if shape[1] != len(classes):
        raise ValueError(f"{path} names {len(classes)} classes, but output.shape is {shape}: {_AGAIN}")
    if len(shape) != (2 if found["task"] == "classify" else 4):
        raise ValueError(f"{path}: the task is {found['task']}, but output.shape is {shape}: {_AGAIN}")
    if fault := input_fault(tuple(found["data.size"]), found["data.crop"]):
        raise ValueError(f"{path}: {fault}")


def _transform(found: dict[str, Any]) -> NumpyTransform | SegmentTransform:
    mean, std = (tuple(map(float, found[f"data.{part}"])) for part in ("mean", "std"))
    channels, interpolation = found["data.channels"], found["data.interpolation"]
    if found["task"] == "segment":
        windows = found["data.windows"]
        side, longest = found["data.side"], found["data.longest"]
        return SegmentTransform(side, longest, channels, interpolation, mean, std, None if windows is None else tuple(windows))
    height, width = found["data.size"]
    return NumpyTransform((height, width), channels, found["data.crop_mode"], found["data.crop"], interpolation, mean, std)


def _table(path: Path) -> Any:
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"there is no {path}, which says how the file beside it is used: {_AGAIN}") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or first_line(error)}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON, perhaps it is truncated: {first_line(error)}") from error
    if not isinstance(table, dict):
        raise ValueError(f"{path} must hold a JSON object, got a {type(table).__name__}: {_AGAIN}")
    return table


def _value(table: Any, field: str, path: Path, fields: Mapping[str, tuple[str, Callable[[Any], bool]]]) -> Any:
    """The value of a field, whose name may be dotted."""
    value = table
    for key in field.split("."):
        if not isinstance(value, dict) or key not in value:
            raise ValueError(f"{path} has no field {field}: {_AGAIN}")
        value = value[key]
    expected, fits = fields[field]
    if not fits(value):
        text = repr(value)
        raise ValueError(f"{path}: {field} must be {expected}, got {text[:60]}{'...' * (len(text) > 60)}: {_AGAIN}")
    return value
