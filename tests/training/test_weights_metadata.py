"""Metadata of a file of weights that is of another type, out of range or too large: an error that names file and field."""

import pytest
import timm

from inline_attention.training.checkpoint import to_bytes
from inline_attention.training.dense_task import load_dense
from inline_attention.training.load_trained import load_trained, task_named

GOOD = {
    "model": "inline_deit_nano",
    "arguments": {"num_classes": 3, "depth": 1},
    "classes": ["a", "b", "c"],
    "data": {"size": [32, 32], "channels": 3},
}
WRONG = {
    "classes": [
        (3, "classes of its metadata must be a list of names, got 3"),
        ([1, 2, 3], "classes of its metadata must be a list of names"),
        (["a"], "names 1 classes, and the model has 3"),
        (["a", "b\x1b[31m", "c"], r"the class name 'b\\x1b\[31m' has control characters"),
    ],
    "task": [
        (3, "task of its metadata must be a table whose name is detect, segment, bags or slides, got 3"),
        ({}, "task of its metadata must be"),
        ({"name": "classify"}, "task of its metadata must be"),
        ({"name": "segment", "width": -3}, "task.width must be positive, got -3"),
        ({"name": "segment", "longest": 10**6}, "task.longest: 1,000,000 x 1,000,000 pixels"),
    ],
    "data": [
        ([1], "data of its metadata must be a table"),
        ({"size": [0, 3]}, "data.size must be two positive numbers"),
        ({"size": [65_536, 65_536]}, "data.size: .* more than 16,777,216: INLINE_MAX_PIXELS sets the limit"),
        ({"crop": 1e-9}, "data.crop 1e-09 of data.size 32 32 is too small"),
        ({"std": [0, 1, 1]}, r"data.std must be three positive numbers, got \(0.0, 1.0, 1.0\)"),
        ({"mean": [float("nan")] * 3}, "data.mean must be three finite numbers"),
        ({"channels": 7}, "data.channels must be one of 1, 3, got 7"),
    ],
    "model": [(3, "model of its metadata must be a name")],
    "arguments": [
        ([1], "arguments of its metadata must be a table"),
        ({"depth": -1}, "depth must be positive whole numbers, got -1"),
        (
            {"embed_dim": 4096, "num_heads": 4, "depth": 24},
            r"asks for a model of 23,\d+,\d+,\d+ bytes, far more than",
        ),
        ({"img_size": 10**6}, "img_size: 1,000,000 x 1,000,000 pixels"),
    ],
}


@pytest.fixture(scope="module")
def state():
    return timm.create_model("inline_deit_nano", depth=1, num_classes=3).state_dict()


@pytest.mark.parametrize(("field", "value", "message"), [(field, *case) for field in WRONG for case in WRONG[field]])
def test_wrong_metadata_is_named(tmp_path, state, field, value, message):
    path = tmp_path / "w.safetensors"
    path.write_bytes(to_bytes(state, {**GOOD, field: value}))
    with pytest.raises(ValueError, match=rf"^{path}:? .*{message}"):
        load_trained(str(path)) if task_named(str(path)) == "classify" else load_dense(str(path))


def test_metadata_is_a_table_and_may_lack_fields(tmp_path, state):
    path = tmp_path / "w.safetensors"
    path.write_bytes(to_bytes(state, [1]))
    with pytest.raises(ValueError, match=r"w\.safetensors: its metadata must be a table, got \[1\]"):
        load_trained(str(path))
    path.write_bytes(to_bytes(state, GOOD))
    assert load_trained(str(path)).classes == ("a", "b", "c")
    for missing, message in (("data", "its metadata has no data"), ("classes", "names no classes"), ("model", "with which")):
        rest = {key: value for key, value in GOOD.items() if key != missing}
        path.write_bytes(to_bytes(state, {**rest, "task": {"name": "segment"}}))
        with pytest.raises(ValueError, match=rf"w\.safetensors .*{message}"):
            load_dense(str(path))
