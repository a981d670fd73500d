"""The JSON beside an ONNX file: every field is required and checked."""

import json
import re

import pytest

from inline_attention.lite.description import FIELDS, read_description
from inline_attention.lite.transform import NumpyTransform

from .exported import CLASSES, MEAN, STD, description


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.json"


def leaf(table, field):
    *groups, name = field.split(".")
    for group in groups:
        table = table[group]
    return table, name


def test_a_description_is_read(path):
    path.write_text(json.dumps(description(b"", size=[20, 30], crop_mode="center")))
    about = read_description(path)
    assert (about.model, about.precision, about.input, about.output) == ("small", "fp32", "images", "logits")
    assert about.classes == tuple(CLASSES)
    assert about.transform == NumpyTransform((20, 30), 3, "center", 0.875, "bicubic", tuple(MEAN), tuple(STD))


def test_files_of_the_first_version_are_read(path):
    """They call `crop_mode` by its old name, `view`."""
    about = description(b"", crop_mode="center")
    about["data"]["view"] = about["data"].pop("crop_mode")
    path.write_text(json.dumps(about))
    assert read_description(path).transform.crop_mode == "center"


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_that_is_not_there(path, field):
    about = description(b"")
    table, name = leaf(about, field)
    del table[name]
    path.write_text(json.dumps(about))
    with pytest.raises(ValueError, match=f"^{path} has no field {field}: export the model again$"):
        read_description(path)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", [None, True, -1, [], {}, "", [["a"]], float("nan")], ids=str)
def test_a_field_of_another_type(path, field, value):
    about = description(b"")
    table, name = leaf(about, field)
    table[name] = value
    path.write_text(json.dumps(about))
    with pytest.raises(ValueError, match=rf"^{path}: {field} must be .*, got .*: export the model again$"):
        read_description(path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("format", "safetensors"),
        ("precision", "fp8"),
        ("sha256", "ab"),
        ("input.shape", ["batch", 3, "height"]),
        ("data.size", [32, 0]),
        ("data.size", [32, 10**400]),
        ("data.mean", [0.5, 0.5, 10**400]),
        ("data.size", [32.0, 32]),
        ("data.size", [32, 32, 32]),
        ("data.channels", 4),
        ("data.crop_mode", "border"),
        ("data.crop", 0),
        ("data.crop", 1.01),
        ("data.interpolation", "random"),
        ("data.mean", [0.5, 0.5]),
        ("data.mean", ["0.5", 0.5, 0.5]),
        ("data.std", [0.1, 0.1, 0.0]),
        ("classes", ["red", 1, "blue", "grey"]),
        ("classes", "abcd"),
    ],
)
def test_a_value_out_of_range(path, field, value):
    about = description(b"")
    table, name = leaf(about, field)
    table[name] = value
    path.write_text(json.dumps(about))
    with pytest.raises(ValueError, match=rf"^{path}: {field} must be .*, got .*: export the model again$"):
        read_description(path)


def test_values_that_contradict_each_other(path):
    for change, message in (
        ({"classes": CLASSES[:3]}, "names 3 classes, but output.shape is ['batch', 4]"),
        ({"input": {"name": "images", "shape": ["b", 1, 8, 8]}}, "data.channels is 3, but input.shape is ['b', 1, 8, 8]"),
        ({"data": {**description(b"")["data"], "mean": [0.5]}}, "data.mean must be a list of 3 numbers, got [0.5]"),
    ):
        path.write_text(json.dumps({**description(b""), **change}))
        with pytest.raises(ValueError, match=rf"\A[^\n]*{re.escape(message)}: export the model again\Z"):
            read_description(path)


def test_files_that_are_no_description(path):
    with pytest.raises(ValueError, match=f"^there is no {path}, which says how the file beside it is used: export"):
        read_description(path)
    whole = json.dumps(description(b""))
    for text in (whole[: len(whole) // 2], "", "[" * 100_000):
        path.write_text(text)
        with pytest.raises(ValueError, match=f"^{path} is not JSON, perhaps it is truncated: "):
            read_description(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=f"^{path} is not JSON"):
        read_description(path)
    path.write_text("[1, 2]")
    with pytest.raises(ValueError, match=f"^{path} must hold a JSON object, got a list: export the model again$"):
        read_description(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(ValueError, match=f"^{path} cannot be read: Is a directory$"):
        read_description(path)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"size": [65_536, 65_536]},
            "data.size: 65,536 x 65,536 pixels .* more than 16,777,216: INLINE_MAX_PIXELS sets the limit",
        ),
        ({"crop": 1e-300}, "data.crop 1e-300 of data.size .* is too small"),
    ],
)
def test_an_input_beyond_the_limit(path, given, message):
    path.write_text(json.dumps(description(b"", **given)))
    with pytest.raises(ValueError, match=f"^{path}: {message}"):
        read_description(path)
