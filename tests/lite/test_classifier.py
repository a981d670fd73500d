"""An ONNX file as a classifier: right numbers, and one line for every file that is not what it should be."""

import sys

import numpy as np
import onnx
import onnxruntime
import pytest

from inline_attention.lite.classifier import OnnxClassifier

from .exported import CLASSES, description, graph, matrix, write


def images(count=3, channels=3, size=(32, 32)):
    return np.random.default_rng(1).standard_normal((count, channels, *size)).astype(np.float32)


def by_hand(batch):
    """softmax(mean over pixels times matrix), in float64."""
    logits = batch.astype(np.float64).mean((2, 3)) @ matrix(batch.shape[1]).astype(np.float64)
    powers = np.exp(logits)
    return powers / powers.sum(1, keepdims=True)


@pytest.mark.parametrize("channels", [1, 3])
def test_probabilities(tmp_path, channels):
    data = graph(("batch", channels, "height", "width"))
    classifier = OnnxClassifier.open(str(write(tmp_path, data, description(data, channels=channels))))
    for batch in (images(3, channels), images(1, channels, (20, 45))):
        found = classifier.classify(batch)
        assert found.dtype == np.float32
        assert np.abs(found - by_hand(batch)).max() < 1e-6
    names, shares = zip(*classifier.likeliest(batch, 2)[0], strict=True)
    best = np.argsort(-by_hand(batch)[0])[:2]
    assert names == tuple(CLASSES[place] for place in best)
    assert shares == pytest.approx(by_hand(batch)[0, best], abs=1e-6)
    assert len(classifier.likeliest(batch, 100)[0]) == len(CLASSES)


def test_large_logits_do_not_overflow(tmp_path):
    data = graph(weights=np.full((3, 4), 1000, dtype=np.float32) * np.arange(4, dtype=np.float32))
    found = OnnxClassifier.open(write(tmp_path, data)).classify(np.ones((1, 3, 8, 8), np.float32))
    assert found.tolist() == [[0, 0, 0, 1]]


def test_threads_follow_the_environment(tmp_path, monkeypatch):
    file = write(tmp_path)
    for value, threads in (("1", 1), ("3,1", 3), ("many", 0), (None, 0)):
        if value is None:
            monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        else:
            monkeypatch.setenv("OMP_NUM_THREADS", value)
        assert OnnxClassifier.open(file).session.get_session_options().intra_op_num_threads == threads


def complaint(file, **arguments) -> str:
    with pytest.raises(ValueError, match=r"\A[^\n]+\Z") as caught:
        OnnxClassifier.open(file, **arguments)
    return str(caught.value)


def test_files_that_are_not_there(tmp_path):
    file = tmp_path / "model.onnx"
    assert complaint(file) == f"there is no file {file}"
    assert complaint(tmp_path / "model.onnx.json") == f"an ONNX file ends in .onnx, got {tmp_path / 'model.onnx.json'}"
    file.mkdir()
    assert complaint(file) == f"there is no file {file}"
    file.rmdir()
    file.write_bytes(graph())
    assert complaint(file).startswith(f"there is no {tmp_path / 'model.onnx.json'}, which says ")


def test_another_file_than_the_one_described(tmp_path):
    data = graph()
    file = write(tmp_path, data)
    for other in (data[:-10], b"", graph(weights=2 * matrix())):
        file.write_bytes(other)
        assert complaint(file) == f"{file} is not the file that model.onnx.json describes: truncated, or replaced"


@pytest.mark.parametrize("data", [b"", b"hello, world", graph()[:100]], ids=["empty", "text", "cut"])
def test_a_file_that_is_no_onnx(tmp_path, data, capfd):
    file = write(tmp_path, data)
    said = complaint(file)
    assert said.startswith(f"{file} cannot be opened as ONNX: ")
    assert "ONNXRuntimeError" not in said
    assert capfd.readouterr() == ("", "")


def test_an_operator_that_onnxruntime_does_not_know(tmp_path, capfd):
    model = onnx.load_from_string(graph())
    model.graph.node[0].op_type = "NoSuchThing"
    file = write(tmp_path, model.SerializeToString())
    assert complaint(file).startswith(f"{file} cannot be opened as ONNX: ")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (graph(output=("batch", 5)), "the output ['batch', 5] does not fit ['any', 4] of model.onnx.json"),
        (
            graph((1, 3, "height", "width"), output=(1, 4)),
            "the input [1, 3, 'height', 'width'] does not fit ['any', 3, 32, 32] of model.onnx.json",
        ),
        (
            graph(("batch", 3, 32, 48)),
            "the input ['batch', 3, 32, 48] does not fit ['any', 3, 32, 32] of model.onnx.json",
        ),
        (
            graph(("batch", 1, "height", "width")),
            "the input ['batch', 1, 'height', 'width'] does not fit ['any', 3, 32, 32] of model.onnx.json",
        ),
    ],
    ids=["classes", "batch", "size", "channels"],
)
def test_a_graph_that_is_not_as_described(tmp_path, data, message):
    file = write(tmp_path, data)
    assert complaint(file) == f"{file}: {message}"


def test_other_inputs_and_outputs_than_described(tmp_path):
    data = graph()
    for part, kind, name in (("input", "input", "images"), ("output", "output", "logits")):
        about = description(data)
        about[part]["name"] = "x"
        file = write(tmp_path, data, about)
        assert complaint(file) == f"{file} must have one {kind}, x tensor(float), got {name} tensor(float)"
    data = graph(kind=onnx.TensorProto.FLOAT16)
    file = write(tmp_path, data)
    assert complaint(file) == f"{file} must have one input, images tensor(float), got images tensor(float16)"


def test_a_fixed_size_is_taken_if_it_is_the_right_one(tmp_path):
    classifier = OnnxClassifier.open(write(tmp_path, graph(("batch", 3, 32, 32))))
    assert np.abs(classifier.classify(images()) - by_hand(images())).max() < 1e-6
    with pytest.raises(ValueError, match=r"model.onnx cannot be run on images \(3, 3, 20, 20\): Got invalid .*") as caught:
        classifier.classify(images(size=(20, 20)))
    assert "\n" not in str(caught.value)


def test_wrong_batches(tmp_path):
    classifier = OnnxClassifier.open(write(tmp_path))
    for batch in (images()[0], images(channels=1)):
        with pytest.raises(ValueError, match=r"^images must be \(B, 3, H, W\), got \("):
            classifier.classify(batch)


def test_numbers_that_are_not_finite(tmp_path):
    classifier = OnnxClassifier.open(write(tmp_path, graph(weights=np.full((3, 4), 1e38, dtype=np.float32))))
    said = r"model.onnx gives numbers that are not finite \(NaN or infinity\) for b.png: fp32 is not enough for it$"
    batch = images()
    batch[1] = 100
    with pytest.raises(FloatingPointError, match=said):
        classifier.likeliest(batch, images=["a.png", "b.png", "c.png"])


def test_providers(tmp_path, capfd):
    file = write(tmp_path)
    assert OnnxClassifier.open(file).session.get_providers() == ["CPUExecutionProvider"]
    there = ", ".join(onnxruntime.get_available_providers())
    said = complaint(file, providers=["NoSuchProvider", "CPUExecutionProvider"])
    assert said == f"onnxruntime has no provider 'NoSuchProvider'; there are: {there}"
    assert capfd.readouterr() == ("", "")


def test_without_onnxruntime_it_says_how_to_get_it(tmp_path, monkeypatch):
    file = write(tmp_path)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs onnxruntime: pip install 'inline-attention\[onnx\]'$"):
        OnnxClassifier.open(file)
