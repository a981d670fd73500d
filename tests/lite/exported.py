"""A classifier small enough to compute by hand, as an ONNX file with its description: channel means times a matrix."""

import json
import shutil
from hashlib import sha256
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from inline_attention.lite.openvino_runtime import import_openvino, shared_core

CLASSES = ["red", "green", "blue", "grey"]
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def matrix(channels: int = 3, classes: int = 4) -> np.ndarray:
    """(C, classes)."""
    return np.random.default_rng(channels).standard_normal((channels, classes)).astype(np.float32)


def graph(shape=("batch", 3, "height", "width"), output=("batch", 4), weights=None, kind=TensorProto.FLOAT) -> bytes:
    """GlobalAveragePool, Flatten, Gemm."""
    weights = matrix(shape[1], output[1]) if weights is None else weights
    nodes = [
        helper.make_node("GlobalAveragePool", ["images"], ["means"]),
        helper.make_node("Flatten", ["means"], ["flat"]),
        helper.make_node("Gemm", ["flat", "weights"], ["logits"]),
    ]
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "small",
            [helper.make_tensor_value_info("images", kind, shape)],
            [helper.make_tensor_value_info("logits", kind, output)],
            [helper.make_tensor("weights", kind, weights.shape, weights.ravel())],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.checker.check_model(model)
    return model.SerializeToString()


def description(data: bytes, *, channels: int = 3, **shown) -> dict:
    """What the exporter writes beside the file."""
    view = {"size": [32, 32], "channels": channels, "crop_mode": "squash", "crop": 0.875, "interpolation": "bicubic"}
    return {
        "format": "onnx",
        "model": "small",
        "precision": "fp32",
        "sha256": sha256(data).hexdigest(),
        "input": {"name": "images", "shape": ["batch", channels, "height", "width"]},
        "output": {"name": "logits", "shape": ["batch", len(CLASSES)]},
        "data": {**view, "mean": MEAN, "std": STD, **shown},
        "classes": CLASSES,
        "checked": {"largest_difference": 0.0},
        "versions": {"onnx": onnx.__version__},
    }


def write(folder: Path, data: bytes | None = None, about: dict | None = None) -> Path:
    """model.onnx and model.onnx.json in a folder; the path of the first."""
    folder.mkdir(parents=True, exist_ok=True)
    data = graph() if data is None else data
    (folder / "model.onnx").write_bytes(data)
    (folder / "model.onnx.json").write_text(json.dumps(description(data) if about is None else about))
    return folder / "model.onnx"


def write_ir(folder: Path) -> Path:
    """The same model as OpenVINO's IR: model.xml, model.bin and model.xml.json; the path of the first."""
    model = shared_core().read_model(write(folder / "onnx"))
    file = folder / "model.xml"
    import_openvino().save_model(model, file, compress_to_fp16=False)
    digests = [sha256(file.with_suffix(suffix).read_bytes()).hexdigest() for suffix in (".xml", ".bin")]
    about = {**description(b""), "format": "openvino", "sha256": digests[0], "sha256_bin": digests[1]}
    (folder / "model.xml.json").write_text(json.dumps(about))
    shutil.rmtree(folder / "onnx")
    return file
