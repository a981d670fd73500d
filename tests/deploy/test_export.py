"""Exported files: they have the model's outputs at any batch and size and are described, or they are not written."""

import hashlib
import json
import sys
from copy import deepcopy
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import timm
import torch
from torch import nn

from inline_attention.cli.main import main
from inline_attention.compat import LOAD_COMPILED, load_compiled
from inline_attention.deploy import export as exporting
from inline_attention.deploy.export import export
from inline_attention.deploy.formats import FORMATS, export_graph, open_onnx
from inline_attention.deploy.onnx_file import write_int8
from inline_attention.deploy.verify import BATCHES, SIZES, TOLERANCE, check_sizes, compare_outputs
from inline_attention.lite.classifier import OnnxClassifier, OpenVinoClassifier
from inline_attention.lite.description import description_of
from inline_attention.models.inline_deit import InLineDeiT

from .ir import check_ir, reuse_onnx

ROOT = Path(__file__).parents[2]
MODELS = timm.list_models("inline_*")
SWIN_SOFTMAX = {"depths": (2,), "num_heads": (2,), "mixer": "softmax"}
SMALLEST = [
    ("inline_deit_nano", {"depth": 1}),
    ("inline_pvt_nano", {"depths": (1,), "embed_dims": (64,), "num_heads": (1,), "mlp_ratios": (4,), "sr_ratios": (2,)}),
    ("inline_swin_nano", {"depths": (1, 1), "num_heads": (1, 2), "inline_depths": (1, 0)}),
    ("inline_swin_nano", SWIN_SOFTMAX),
    ("inline_cswin_nano", {"depths": (1, 1), "num_heads": (2, 4), "stripes": (2, None), "inline_depths": (0, 1)}),
]
"""Every kind of block once, since the time to export grows with the number of blocks: InLine in each family, reduced keys,
windows, shifted windows and stripes of softmax with their masks and position tables, and the step between stages.
`test_a_whole_model_as_onnx` exports all models as they are."""
WHOLE = [(name, {}) for name in MODELS] + [(f"inline_{family}_nano", {"mixer": "softmax"}) for family in ("swin", "cswin")]
ODD = (2, 3, 137, 251)
CLASSES = ["ant", "bee", "cat", "dog", "elk"]


def randomised(model: nn.Module) -> nn.Module:
    """With none of its initial parameters left."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def make(name: str, **options) -> nn.Module:
    return randomised(timm.create_model(name, img_size=224, num_classes=len(CLASSES), **options))


def small(**options) -> nn.Module:
    """The smallest model of a family: one block."""
    shape = {"patch_size": 16, "embed_dim": 16, "depth": 1, "num_heads": 2}
    return randomised(InLineDeiT(img_size=64, num_classes=len(CLASSES), **{**shape, **options}))


def facts(channels: int = 3) -> dict:
    data = {"size": (64, 64), "channels": channels, "crop_mode": "squash", "crop": 0.875, "interpolation": "bicubic"}
    statistics = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.25, 0.3)}
    return {"model": "a model", "weights": "drawn", "classes": CLASSES, "data": {**data, **statistics}}


def session(file: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def outputs(opened: onnxruntime.InferenceSession, images: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(opened.run(["logits"], {"images": images.numpy()})[0])


def check_description(file: Path, found: dict) -> None:
    beside = json.loads(description_of(file).read_text())
    assert beside == json.loads(json.dumps(found))
    assert (beside["format"], beside["precision"], beside["load"]) == (
        "onnx",
        "fp32",
        f"inline predict --onnx {file.name} IMAGES",
    )
    assert beside["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert beside["bytes"] == file.stat().st_size
    assert (beside["model"], beside["weights"], beside["classes"]) == ("a model", "drawn", CLASSES)
    checked = beside["checked"]
    at = {(case["batch"], case["height"], case["width"]) for case in checked["cases"]}
    assert at == {(batch, *size) for batch in BATCHES for size in SIZES}
    assert checked["largest_difference"] == max(case["difference"] for case in checked["cases"]) < TOLERANCE
    assert checked["of_largest_output"] < 1e-3
    assert {"inline-attention", "torch", "timm", "onnx", "onnxruntime"} <= set(beside["versions"])
    assert OnnxClassifier.open(file).description.classes == tuple(CLASSES)


def check_graph(file: Path) -> None:
    """ONNX's own operators, free sides by their names, and nothing of this machine."""
    graph = onnx.load(file)
    assert {node.domain for node in graph.graph.node} | {opset.domain for opset in graph.opset_import} == {""}
    assert not graph.functions
    opened = session(file)
    assert opened.get_inputs()[0].shape == ["batch", 3, "height", "width"]
    assert opened.get_outputs()[0].shape == ["batch", len(CLASSES)]
    for tensor in graph.graph.initializer:  # a hundred million weights spell every short word by chance
        tensor.ClearField("raw_data")
    data = graph.SerializeToString()
    for word in (str(ROOT), sys.prefix, str(file.parent), "site-packages", ".py", "range_constraints"):
        assert word.encode() not in data, word


@torch.no_grad()
def check_outputs(model: nn.Module, file: Path) -> None:
    """At sizes that `export` did not look at: odd, the smallest that the model takes, and a map that is just one window."""
    opened = session(file)
    least = max(8, 2 * model.patch_size)
    window = (2, 3, 4 * model.patch_size, 3 * model.patch_size)
    for shape in (ODD, window, (1, 3, least, least), (3, 3, least, 5 * least + 1)):
        images = torch.randn(shape)
        expected = model(images)
        torch.testing.assert_close(outputs(opened, images), expected, rtol=0, atol=TOLERANCE)
    assert (expected[0] - expected[1]).abs().max() > 20 * TOLERANCE, "images make a difference"


@torch.no_grad()
def check_int8(model: nn.Module, file: Path) -> None:
    """Linear maps have weights of 8 bits, what is between tokens has none, and outputs are near."""
    low = file.with_name("low.onnx")
    write_int8(file, low)
    check_graph(low)
    graph = onnx.load(low).graph
    kinds = [node.op_type for node in graph.node]
    assert 0 < kinds.count("MatMulInteger") <= sum(isinstance(module, nn.Linear) for module in model.modules())
    assert "MatMul" in kinds
    assert {tensor.data_type for tensor in graph.initializer} >= {onnx.TensorProto.INT8, onnx.TensorProto.FLOAT}
    linear = {name: module.weight.numel() for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    low_weights = sum(np.prod(tensor.dims) for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.INT8)
    assert low_weights >= sum(size for name, size in linear.items() if "mlp" in name or name == "head")
    assert low.stat().st_size < file.stat().st_size
    images = torch.randn(8, 3, 64, 96, generator=torch.Generator().manual_seed(0))
    expected, got = model(images), outputs(session(low), images)
    assert not torch.equal(got, expected)
    assert torch.cosine_similarity(got.flatten(), expected.flatten(), dim=0) > 0.95


def test_every_family_is_among_the_smallest_models():
    assert {name for name in MODELS if name.endswith("_nano")} == {name for name, _ in SMALLEST}


@pytest.fixture(scope="module")
def swin_graph():
    """A model and its graph, which two formats are written from."""
    model = make("inline_swin_nano", **SWIN_SOFTMAX)
    return model, export_graph(deepcopy(model).eval().requires_grad_(False))


@pytest.mark.parametrize(
    ("name", "options"), SMALLEST, ids=lambda part: part if isinstance(part, str) else part.get("mixer", "inline")
)
def test_a_model_as_onnx(name, options, tmp_path, monkeypatch, request):
    """All checks in one test, since an export takes seconds."""
    if options is SWIN_SOFTMAX:
        model, graph = request.getfixturevalue("swin_graph")
    else:
        model = make(name, **options)
        graph = export_graph(deepcopy(model).eval().requires_grad_(False))
    asked = []
    monkeypatch.setattr(exporting, "export_graph", lambda model, channels: asked.append(model) or graph)
    file = tmp_path / "model.onnx"
    (tmp_path / "ir").mkdir()
    found = export(model, file, facts=facts())
    assert {path.name for path in tmp_path.iterdir()} == {"model.onnx", "model.onnx.json", "ir"}
    assert model.training, "the model is left as it was"
    assert all(parameter.requires_grad for parameter in model.parameters())
    model = deepcopy(model).eval()
    check_description(file, found)
    check_graph(file)
    check_outputs(model, file)
    check_int8(model, file)
    assert [weights.requires_grad for weights in asked[0].parameters()] == [False] * len(list(model.parameters()))
    reuse_onnx(file, monkeypatch)
    found = export(model, tmp_path / "ir" / "model.xml", facts=facts(), kind="openvino", batches=[2])
    assert {path.name for path in (tmp_path / "ir").iterdir()} == {"model.xml", "model.bin", "model.xml.json"}
    check_ir(model, tmp_path / "ir" / "model.xml", found)
    assert found["load"] == "inline predict --openvino model.xml IMAGES"
    assert {"openvino", "onnx"} <= set(found["versions"])
    assert OpenVinoClassifier.open(tmp_path / "ir" / "model.xml").description.classes == tuple(CLASSES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"), WHOLE, ids=lambda part: part if isinstance(part, str) else part.get("mixer", "inline")
)
def test_a_whole_model_as_onnx(name, options, tmp_path):
    size = 384 if name.endswith("_384") else 224
    model = timm.create_model(name, img_size=size, num_classes=len(CLASSES), **options)
    found = export(model, tmp_path / "model.onnx", facts=facts())
    assert found["checked"]["largest_difference"] < TOLERANCE
    check_graph(tmp_path / "model.onnx")
    check_outputs(model.eval(), tmp_path / "model.onnx")


def test_half_precision_as_onnx(tmp_path):
    """Weights in 16 bits, images and outputs in 32, and near to the model."""
    model, file = small(embed_dim=64).eval(), tmp_path / "model.onnx"
    found = export(
        model,
        file,
        facts=facts(),
        precision="fp16",
        batches=[1, 3],
        sizes=[(64, 64), (101, 67)],
        measure=lambda run: {"same_top1": float(run(torch.zeros(1, 3, 64, 64)).shape[1])},
    )
    checked = found["checked"]
    assert (found["precision"], checked["tolerance"], found["accuracy"]) == ("fp16", None, {"same_top1": 5.0})
    assert 0 < checked["of_largest_output"] < 0.01
    graph = onnx.load(file).graph
    half, whole = (
        sum(np.prod(tensor.dims) for tensor in graph.initializer if tensor.data_type == kind)
        for kind in (onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT)
    )
    assert half > 2 * whole, "what is summed over tokens stays in fp32"
    assert {entry.type for entry in (*session(file).get_inputs(), *session(file).get_outputs())} == {"tensor(float)"}
    check_graph(file)


def test_torch_export_format(swin_graph, tmp_path, monkeypatch):
    """With shifted windows; neither the example nor this machine's paths are in the file."""
    model, file = deepcopy(swin_graph[0]).eval(), tmp_path / "model.pt2"
    monkeypatch.setattr(exporting, "export_graph", lambda model, channels: swin_graph[1])
    found = export(model, file, facts=facts(), kind="torch-export", sizes=[(64, 64)])
    assert found["load"] == "torch.export.load('model.pt2').module(check_guards=False)"
    assert found["checked"]["largest_difference"] < TOLERANCE
    run = torch.export.load(file).module(check_guards=False)
    for shape in (ODD, (1, 3, 40, 33)):
        images = torch.randn(shape)
        torch.testing.assert_close(run(images), model(images), rtol=1e-4, atol=TOLERANCE)
    weights = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    assert file.stat().st_size < weights + 3_000_000
    data = file.read_bytes()
    assert str(ROOT).encode() not in data
    assert sys.prefix.encode() not in data


@pytest.mark.slow
def test_a_compiled_library(tmp_path):
    model, file = small().eval(), tmp_path / "model.pt2"
    found = export(model, file, facts=facts(), kind="aoti", sizes=[(64, 64), (96, 40)])
    assert found["load"] == LOAD_COMPILED.format(path="model.pt2")
    run = load_compiled(file)
    images = torch.randn(ODD)
    with torch.no_grad():
        torch.testing.assert_close(run(images), model(images), rtol=1e-4, atol=TOLERANCE)
    assert {path.name for path in tmp_path.iterdir()} == {"model.pt2", "model.pt2.json"}


def test_grey_images(tmp_path):
    """By the smallest model that takes any size: the number of channels has nothing to do with attention."""
    pooled = nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = nn.Sequential(pooled, nn.Linear(4, len(CLASSES))).eval()
    found = export(model, tmp_path / "model.pt2", facts=facts(1), kind="torch-export", batches=[2], sizes=[(70, 50)])
    assert found["input"]["shape"] == ["batch", 1, "height", "width"]
    assert [(case["batch"], case["height"], case["width"]) for case in found["checked"]["cases"]] == [(2, 70, 50)]


def refuse(out):
    raise RuntimeError("Expected input at shape to be >= 65\nand more")


def wrong_file(monkeypatch, change) -> nn.Module:
    """A model, and files of it that give something else. What is in them does not matter, so there is nothing."""
    model = small().eval()
    form = FORMATS["torch-export"]._replace(
        write=lambda program, path, precision: path.write_text("nothing"),
        open=lambda path, precision: lambda images: change(model(images)),
    )
    monkeypatch.setattr(exporting, "export_graph", lambda model, channels: None)
    monkeypatch.setitem(exporting.FORMATS, "torch-export", form)
    return model


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (
            lambda out: out + 2e-4,
            ValueError,
            r"^torch-export differs from the model by 2\.\d\de-04 at 1 x 64 x 64: not written$",
        ),
        (lambda out: out[:, :4], ValueError, r"^at 1 x 64 x 64 the file gives \(1, 4\), the model \(1, 5\): not written$"),
        (lambda out: out / 0, FloatingPointError, "^at 1 x 64 x 64 the file gives numbers that are not finite: not written$"),
        (
            refuse,
            ValueError,
            "^the file does not take images 1 x 3 x 64 x 64: Expected input at shape to be >= 65: not written$",
        ),
    ],
    ids=["other", "fewer", "infinite", "refused"],
)
def test_a_file_that_differs_is_not_written(change, kind, message, tmp_path, monkeypatch):
    """And the one before it is as it was."""
    model = wrong_file(monkeypatch, change)
    for name in ("model.pt2", "model.pt2.json", "other [1].txt"):
        (tmp_path / name).write_text(f"{name} as it was")
    with pytest.raises(kind, match=message):
        export(model, tmp_path / "model.pt2", facts=facts(), kind="torch-export", sizes=[(64, 64)])
    there = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert there == {name: f"{name} as it was" for name in ("model.pt2", "model.pt2.json", "other [1].txt")}


def test_temporary_files_of_a_name_with_wildcards_are_removed(tmp_path, monkeypatch):
    model = wrong_file(monkeypatch, lambda out: out + 1)
    with pytest.raises(ValueError, match="differs"):
        export(model, tmp_path / "a[1]*.pt2", facts=facts(), kind="torch-export", sizes=[(64, 64)])
    assert list(tmp_path.iterdir()) == []


def test_the_difference_of_half_precision_is_reported_and_allowed(tmp_path, monkeypatch):
    model = wrong_file(monkeypatch, lambda out: out + 0.1)
    found = export(model, tmp_path / "model.pt2", facts=facts(), kind="torch-export", precision="fp16", sizes=[(64, 64)])
    assert found["checked"]["largest_difference"] > 0.09
    assert (tmp_path / "model.pt2").is_file()


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"kind": "tensorrt"}, "unknown format 'tensorrt'"),
        ({"precision": "fp8"}, "unknown precision 'fp8'"),
        (
            {"kind": "torch-export", "precision": "int8"},
            "^int8 is for .* onnx or openvino, not for torch-export$",
        ),
        ({"kind": "aoti", "precision": "int8"}, "^int8 is for files of the format onnx or openvino, not for aoti$"),
        ({"kind": "aoti"}, r"^a file of the format aoti ends in \.pt2, got .*model\.onnx$"),
        ({"facts": {"classes": CLASSES, "data": {}}}, "^facts must have 'classes', and 'data' with its 'channels', got "),
        ({"sizes": [(8, 8)]}, "^InLineDeiT does not take images of 8 x 8: images must be at least 32 x 32 pixels"),
    ],
)
def test_wrong_arguments_raise_before_any_work(asked, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        export(small(), tmp_path / "model.onnx", **{"facts": facts(), **asked})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", FORMATS["onnx"].needs)
def test_a_missing_package_is_named(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError) as missing:
        export(small(), tmp_path / "model.onnx", facts=facts())
    assert missing.value.name == name


def test_models_of_one_size_are_refused():
    fixed = timm.create_model("vit_tiny_patch16_224", depth=1)
    with pytest.raises(ValueError, match=r"^VisionTransformer does not take images of 256 x 320: "):
        check_sizes(fixed, 3, SIZES)
    with pytest.raises(ValueError, match=r"^VisionTransformer cannot be exported for every batch.*dynamic_img_pad=True can\)$"):
        export_graph(fixed)


def test_outputs_are_compared_at_every_batch_and_size():
    model = small().eval()
    cases = list(
        compare_outputs(model, lambda images: model(images) + 0.5 * len(images), batches=[1, 3], sizes=[(64, 64), (40, 90)])
    )
    assert [(str(case), round(case.difference, 3)) for case in cases] == [
        ("1 x 64 x 64", 0.5), ("3 x 64 x 64", 1.5), ("1 x 40 x 90", 0.5), ("3 x 40 x 90", 1.5),
    ]  # fmt: skip


OLD = Path(__file__).parents[1] / "stored" / "exported_0_1"
"""A file of version 0.1, whose input is called 'pictures', with the probabilities that it gave then for `image.png`."""


def test_a_file_of_the_version_before_is_still_used(capsys):
    """By its description, which has the name of the input."""
    about = json.loads((OLD / "model.onnx.json").read_text())
    assert about["input"]["name"] == "pictures"
    main(["predict", "--onnx", str(OLD / "model.onnx"), str(OLD / "image.png"), "--json"])
    found = json.loads(capsys.readouterr().out)["classes"]
    expected = json.loads((OLD / "probabilities.json").read_text())
    assert [entry["name"] for entry in found] == sorted(expected, key=expected.get, reverse=True)
    assert [entry["probability"] for entry in found] == pytest.approx(sorted(expected.values(), reverse=True), abs=1e-4)
    assert open_onnx(OLD / "model.onnx")(torch.randn(2, 3, 64, 96)).shape == (2, len(CLASSES))
