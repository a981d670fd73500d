"""A segmenter in an exported file: what torch's interpolation and windows give, without torch."""

import json

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper
from PIL import Image

from inline_attention.data.dense_transforms import SegmentationEvalTransform
from inline_attention.dense.inference import slide as slide_torch
from inline_attention.lite.classifier import OnnxClassifier
from inline_attention.lite.onnx_runtime import ONNX
from inline_attention.lite.segmenter import ExportedSegmenter, resize_bilinear, slide
from inline_attention.lite.transform import SegmentTransform

from .exported import MEAN, STD, description, matrix, write


def graph(scale: float = 1.0) -> bytes:
    """Logits of a pixel: its channels times a matrix."""
    weights = scale * matrix().T.reshape(4, 3, 1, 1)
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Conv", ["images", "weights"], ["logits"])],
            "pixels",
            [helper.make_tensor_value_info("images", TensorProto.FLOAT, ("batch", 3, "height", "width"))],
            [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ("batch", 4, "height", "width"))],
            [helper.make_tensor("weights", TensorProto.FLOAT, weights.shape, weights.ravel())],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.checker.check_model(model)
    return model.SerializeToString()


def about(data: bytes, **more) -> dict:
    found = description(data, side=20, longest=64, windows=None, **more)
    return {**found, "task": "segment", "output": {"name": "logits", "shape": ["batch", 4, "height", "width"]}}


def image(height: int, width: int, mode: str = "RGB") -> Image.Image:
    draw = np.random.default_rng(height)
    return Image.fromarray(draw.integers(0, 256, (height, width, 3), dtype=np.uint8)).convert(mode)


@pytest.mark.parametrize("size", [(20, 20), (41, 33), (9, 13)])
@pytest.mark.parametrize("windows", [None, [16, 12, 10, 8]])
def test_labels_are_those_of_torch(size, windows, tmp_path):
    data = graph()
    found = about(data)
    found["data"]["windows"] = windows
    segmenter = ExportedSegmenter.open_with(write(tmp_path, data, found), ONNX)
    picture = image(*size)
    pixels, _ = SegmentationEvalTransform(20, 64, tuple(MEAN), tuple(STD))(picture, np.zeros(size, np.uint8))
    weights = torch.from_numpy(matrix().T.reshape(4, 3, 1, 1).copy())

    def model(x):
        return F.conv2d(x, weights)

    whole = pixels[None]
    logits = model(whole) if windows is None else slide_torch(model, whole, tuple(windows[:2]), tuple(windows[2:]))
    expected = F.interpolate(logits, size=size, mode="bilinear")[0].argmax(0).numpy()
    found = segmenter.labels(picture)
    assert found.shape == size
    assert (found == expected).mean() > 0.999
    assert len(np.unique(found)) > 1


@pytest.mark.parametrize(("before", "after"), [((7, 5), (20, 31)), ((20, 31), (7, 5)), ((4, 4), (4, 4)), ((1, 9), (3, 2))])
def test_resizing_is_that_of_torch(before, after):
    logits = np.random.default_rng(0).standard_normal(before).astype(np.float32)
    expected = F.interpolate(torch.from_numpy(logits)[None, None], size=after, mode="bilinear")[0, 0]
    assert np.abs(resize_bilinear(logits, *after) - expected.numpy()).max() < 1e-5


def test_windows_are_those_of_torch():
    pixels = torch.randn(1, 3, 37, 29)
    weights = torch.randn(2, 3, 3, 3)

    def model(x):
        return F.conv2d(x, weights, padding=1)

    found = slide(lambda x: model(torch.from_numpy(x)).numpy(), pixels.numpy(), (16, 12, 10, 8))
    assert np.abs(found - slide_torch(model, pixels, (16, 12), (10, 8)).numpy()).max() < 1e-5


@pytest.mark.parametrize(("side", "longest"), [(20, 64), (20, 22), (0, 64)])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_the_transform_is_that_of_torch(side, longest, mode):
    picture = image(31, 47, mode)
    channels = len(picture.getbands())
    mean, std = (0.5, 0.4, 0.3)[:channels], (0.2, 0.25, 0.3)[:channels]
    expected, _ = SegmentationEvalTransform(side or None, longest, mean, std)(picture, np.zeros((31, 47), np.uint8))
    found = SegmentTransform(side, longest, channels, "bicubic", mean, std)(picture)
    assert found.shape == expected.shape
    assert np.abs(found - expected.numpy()).max() < 1e-5


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("side", -1, "data.side must be 0, or a whole number up to 65536, got -1"),
        ("longest", None, "data.longest must be a whole number, 1 to 65536, got None"),
        ("windows", [1, 2], r"data.windows must be null, or a list of 4 whole numbers, got \[1, 2\]"),
    ],
)
def test_fields_of_segmenters(field, value, message, tmp_path):
    data = graph()
    found = about(data)
    found["data"][field] = value
    with pytest.raises(ValueError, match=f"{message}: export the model again$"):
        ExportedSegmenter.open_with(write(tmp_path, data, found), ONNX)
    del found["data"][field]
    (tmp_path / "model.onnx.json").write_text(json.dumps(found))
    with pytest.raises(ValueError, match=f"has no field data.{field}: export the model again$"):
        ExportedSegmenter.open_with(tmp_path / "model.onnx", ONNX)


def test_a_task_and_an_output_that_do_not_fit(tmp_path):
    data = graph()
    for task, shape in (("segment", ["batch", 4]), ("classify", ["batch", 4, "height", "width"])):
        found = {**about(data), "task": task, "output": {"name": "logits", "shape": shape}}
        with pytest.raises(ValueError, match=f"the task is {task}, but output.shape is "):
            OnnxClassifier.open(write(tmp_path, data, found))
    with pytest.raises(ValueError, match=r"task must be one of classify, segment, got 'detect'"):
        OnnxClassifier.open(write(tmp_path, data, {**about(data), "task": "detect"}))


def test_numbers_that_are_not_finite_name_the_image(tmp_path):
    data = graph(1e38)
    file = write(tmp_path, data, {**about(data), "precision": "fp16"})
    with pytest.raises(FloatingPointError, match=r"model.onnx gives numbers that are not finite .* for b.png: fp16 is not "):
        ExportedSegmenter.open_with(file, ONNX).labels(Image.new("RGB", (20, 20), "white"), "b.png")
