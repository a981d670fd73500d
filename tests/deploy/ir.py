"""Checks of OpenVINO's IR, for several tests."""

import shutil
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from torch import nn

from inline_attention.deploy import openvino_file
from inline_attention.deploy.openvino_file import open_openvino
from inline_attention.deploy.verify import ODD_SIZES, SIZES, TOLERANCE
from inline_attention.lite import openvino_runtime


def reuse_onnx(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the IR from this ONNX file: translating the graph again would take most of the time."""
    monkeypatch.setattr(openvino_file, "write_onnx", lambda program, path: shutil.copy(file, path))


def check_ir(model: nn.Module, file: Path, found: dict) -> None:
    """Both files are described; the graph has names and free sides; outputs are the model's where `export` did not look."""
    assert found["sha256"] == sha256(file.read_bytes()).hexdigest()
    assert found["sha256_bin"] == sha256(file.with_suffix(".bin").read_bytes()).hexdigest()
    assert found["bytes"] == file.stat().st_size + file.with_suffix(".bin").stat().st_size
    assert {(case["height"], case["width"]) for case in found["checked"]["cases"]} == {*SIZES, *ODD_SIZES}
    assert found["checked"]["largest_difference"] < TOLERANCE
    compiled = openvino_runtime.open_ir(file, "fp32")
    assert [port.get_names() for port in (*compiled.inputs, *compiled.outputs)] == [{"images"}, {"logits"}]
    assert [side.is_dynamic for side in compiled.inputs[0].get_partial_shape()] == [True, False, True, True]
    for text in (file.read_text(), file.with_name(f"{file.name}.json").read_text()):
        assert not any(word in text for word in (str(file.parent), "site-packages", ".onnx", ".tmp"))
    run = open_openvino(file)
    for shape in ((1, 3, 37, 53), (3, 3, 95, 41)):
        images = torch.randn(shape)
        with torch.no_grad():
            torch.testing.assert_close(run(images), model(images), rtol=0, atol=TOLERANCE)
