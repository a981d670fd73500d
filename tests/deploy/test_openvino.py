"""OpenVINO's IR: both files or none, precisions, and no file where OpenVINO is off; and models of all families in slow tests.

`test_export.py` writes the smallest models of all families, since it has their graphs.
"""

import json
from copy import deepcopy
from hashlib import sha256

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

from inline_attention.deploy import draft_files, openvino_file
from inline_attention.deploy import export as exporting
from inline_attention.deploy.export import export
from inline_attention.deploy.formats import FORMATS
from inline_attention.deploy.onnx_file import write_onnx
from inline_attention.deploy.openvino_file import open_openvino
from inline_attention.deploy.resampling import antialiasing_as_products, pooling_as_products
from inline_attention.deploy.verify import TOLERANCE
from inline_attention.lite import openvino_runtime
from inline_attention.lite.classifier import OpenVinoClassifier

from .ir import check_ir, reuse_onnx
from .test_export import CLASSES, facts, small

FEW = {"batches": [1, 3], "sizes": [(64, 64), (101, 67)]}


@pytest.mark.slow
@pytest.mark.parametrize("family", ["deit", "pvt", "swin", "cswin"])
def test_a_whole_model(family, tmp_path):
    model = timm.create_model(f"inline_{family}_tiny", img_size=224, num_classes=len(CLASSES)).eval()
    found = export(model, tmp_path / "model.xml", facts=facts(), kind="openvino")
    check_ir(model, tmp_path / "model.xml", found)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """A model, its graph and its ONNX file, which every precision is written from."""
    model, file = small(embed_dim=64).eval(), tmp_path_factory.mktemp("graph") / "model.onnx"
    program = exporting.export_graph(deepcopy(model).requires_grad_(False))
    write_onnx(program, file)
    return model, program, file


@pytest.mark.parametrize(("precision", "least", "most"), [("fp16", 1e-7, 0.01), ("bf16", 1e-5, 0.05), ("int8", 1e-5, 0.05)])
def test_precisions(precision, least, most, graph, tmp_path, monkeypatch):
    """fp16 and int8 are smaller files, bf16 is how the file is computed with: all differ, and are near."""
    if precision == "bf16" and not openvino_runtime.computes_in_bf16():
        with pytest.raises(ValueError, match=r"^this CPU has no bf16 instructions: "):
            export(graph[0], tmp_path / "model.xml", facts=facts(), kind="openvino", precision="bf16")
        return
    monkeypatch.setattr(exporting, "export_graph", lambda model, channels: graph[1])
    reuse_onnx(graph[2], monkeypatch)
    arguments = {"facts": facts(), "kind": "openvino", **FEW}
    sizes = {}
    for name in ("fp32", precision):
        found = export(graph[0], tmp_path / f"{name}.xml", precision=name, **arguments)
        sizes[name] = (tmp_path / f"{name}.bin").stat().st_size
    assert (found["precision"], found["checked"]["tolerance"]) == (precision, None)
    assert least < found["checked"]["of_largest_output"] < most
    share = sizes[precision] / sizes["fp32"]
    assert {"fp16": 0.45 < share < 0.6, "bf16": share == 1, "int8": 0.2 < share < 0.5}[precision]
    opened = OpenVinoClassifier.open(tmp_path / f"{precision}.xml").session
    hint = opened.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    assert hint == ("bf16" if precision == "bf16" else "f32")


def test_a_shape_where_openvino_is_off_is_an_error(tmp_path, monkeypatch):
    """timm's DeiT resizes its positions with antialiasing, which OpenVINO ignores; written as products it is right."""
    model = timm.create_model(
        "deit_tiny_patch16_224", depth=1, num_classes=len(CLASSES), dynamic_img_size=True, dynamic_img_pad=True
    )
    arguments = {"facts": facts(), "kind": "openvino", "batches": [1], "sizes": [(224, 224), (101, 67)]}
    program = exporting.export_graph(deepcopy(model).requires_grad_(False))
    monkeypatch.setattr(exporting, "export_graph", lambda model, channels: program)
    found = export(model, tmp_path / "right.xml", **arguments)
    assert found["checked"]["largest_difference"] < TOLERANCE
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(openvino_file, "antialiasing_as_products", lambda program: program)
    with pytest.raises(ValueError, match=r"^openvino differs from the model by \d\.\d\de-0[123] at 1 x 101 x 67: not written$"):
        export(model, tmp_path / "off.xml", **arguments)
    assert sorted(tmp_path.iterdir()) == before


def wrong(monkeypatch):
    """In place of OpenVINO, what writes two files and gives the model's outputs."""
    model = small().eval()

    def write(program, path, precision):
        path.write_text("graph")
        path.with_suffix(".bin").write_text("weights")

    form = FORMATS["openvino"]._replace(write=write, open=lambda path, precision: model)
    monkeypatch.setattr(exporting, "export_graph", lambda model, channels: None)
    monkeypatch.setitem(exporting.FORMATS, "openvino", form)
    return model


@pytest.mark.parametrize("older", [True, False])
def test_two_files_are_written_or_none(older, tmp_path, monkeypatch):
    """A name that cannot be given takes the others back."""
    model, names = wrong(monkeypatch), ("model.xml", "model.bin")
    if older:
        for name in names:
            (tmp_path / name).write_text("as it was")
    (tmp_path / "model.xml.json").mkdir()
    with pytest.raises(OSError, match=r"model\.xml\.json"):
        export(model, tmp_path / "model.xml", facts=facts(), kind="openvino", **FEW)
    (tmp_path / "model.xml.json").rmdir()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == (dict.fromkeys(names, "as it was") if older else {})
    export(model, tmp_path / "model.xml", facts=facts(), kind="openvino", **FEW)
    assert (tmp_path / "model.bin").read_text() == "weights"
    assert {path.name for path in tmp_path.iterdir()} == {*names, "model.xml.json"}


def test_drafts_that_fail_leave_nothing(tmp_path):
    out = tmp_path / "a.xml"

    def fail():
        with draft_files.draft_files(out, (".xml", ".bin"), tmp_path / "a.xml.json") as (draft, _):
            draft.write_text("half")
            draft.with_suffix(".bin").write_text("half")
            raise RuntimeError("as asked")

    with pytest.raises(RuntimeError, match="as asked"):
        fail()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"precision": "bf16"},
            "^this CPU has no bf16 instructions: the file could not be compared .* take fp32$",
        ),
        ({"kind": "onnx", "precision": "bf16"}, "^bf16 is for files of the format openvino, not for onnx$"),
        ({"kind": "aoti", "precision": "int8"}, "^int8 is for files of the format onnx or openvino, not for aoti$"),
        ({"out": "model.bin"}, r"^a file of the format openvino ends in \.xml, got "),
    ],
)
def test_wrong_arguments(asked, message, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "computes_in_bf16", lambda: False)
    asked = {"kind": "openvino", "out": "model.xml", **asked}
    with pytest.raises(ValueError, match=message):
        export(small(), tmp_path / asked.pop("out"), facts=facts(), **asked)
    assert list(tmp_path.iterdir()) == []


class Resampled(nn.Module):
    """A map after some resampling."""

    def __init__(self, change):
        super().__init__()
        self.weight, self.change = nn.Parameter(torch.ones(())), change

    def forward(self, x):
        return self.change(x * self.weight, (x.shape[2] + 1) // 2, x.shape[3] + 5).flatten(2)


@pytest.mark.parametrize(
    ("change", "products"),
    [
        (lambda x, h, w: F.interpolate(x, size=(h, w), mode="bilinear", antialias=True), antialiasing_as_products),
        (lambda x, h, w: F.interpolate(x, size=(h, w), mode="bicubic", antialias=True), antialiasing_as_products),
        (lambda x, h, w: F.adaptive_avg_pool2d(x, (6, 3)), pooling_as_products),
        (lambda x, h, w: F.adaptive_avg_pool2d(x, 1), pooling_as_products),
    ],
    ids=["bilinear", "bicubic", "pool", "mean"],
)
def test_products_are_the_resampling_of_torch(change, products):
    program = exporting.export_graph(Resampled(change))
    there = {str(node.target) for node in program.graph.nodes}
    assert any("_aa" in name or "adaptive_avg_pool2d" in name for name in there)
    replaced = products(program)
    assert not any("_aa" in str(node.target) or "adaptive" in str(node.target) for node in replaced.graph.nodes)
    for shape in ((1, 3, 33, 18), (2, 3, 7, 64), (1, 3, 20, 20)):
        x = torch.randn(shape)
        expected = program.module(check_guards=False)(x)
        torch.testing.assert_close(replaced.module(check_guards=False)(x), expected, rtol=1e-5, atol=1e-5)


def test_an_input_with_more_names_than_its_own(graph, tmp_path, monkeypatch):
    """OpenVINO merges names: of an input, and of what it takes to be the same."""
    import openvino

    monkeypatch.setattr(exporting, "export_graph", lambda model, channels: graph[1])
    reuse_onnx(graph[2], monkeypatch)
    save = openvino.save_model

    def save_with_another_name(model, path, **options):
        model.inputs[0].get_tensor().add_names({"pad"})
        save(model, path, **options)

    monkeypatch.setattr(openvino, "save_model", save_with_another_name)
    export(graph[0], tmp_path / "model.xml", facts=facts(), kind="openvino", **FEW)
    opened = OpenVinoClassifier.open(tmp_path / "model.xml")
    assert opened.runtime.ports(opened.session)[0][0].names == {"images", "pad"}
    assert opened.logits(np.zeros((1, 3, 32, 32), np.float32)).shape[0] == 1


def test_openvino_alone_would_compute_in_another_precision(graph, tmp_path, monkeypatch):
    """Why the precision is always said: the default of this CPU is off."""
    reuse_onnx(graph[2], monkeypatch)
    FORMATS["openvino"].write(graph[1], tmp_path / "model.xml", "fp32")
    images = torch.randn(2, 3, 64, 64)
    expected = graph[0](images).detach()
    assert float((open_openvino(tmp_path / "model.xml")(images) - expected).abs().max()) < TOLERANCE
    if openvino_runtime.computes_in_bf16():
        found = openvino_runtime.shared_core().compile_model(tmp_path / "model.xml", "CPU")(images.numpy())[0]
        assert np.abs(found - expected.numpy()).max() > TOLERANCE


def test_one_core_for_all_models(graph, tmp_path, monkeypatch):
    """Of two, the one freed last can leave the process with a freed stack for signals: the next SIGCHLD ends it."""
    reuse_onnx(graph[2], monkeypatch)
    made = []
    core = openvino_runtime.import_openvino().Core
    monkeypatch.setattr("openvino.Core", lambda: made.append(core()) or made[-1])
    FORMATS["openvino"].write(graph[1], tmp_path / "model.xml", "fp32")
    models = [openvino_runtime.open_ir(tmp_path / "model.xml", precision) for precision in ("fp32", "bf16")]
    assert len(models) == 2
    assert openvino_runtime.computes_in_bf16() in (False, True)
    assert len(made) <= 1, "none if a test before has made it"


def test_the_description_of_two_files(tmp_path, monkeypatch):
    model = wrong(monkeypatch)
    export(model, tmp_path / "model.xml", facts=facts(), kind="openvino", **FEW)
    about = json.loads((tmp_path / "model.xml.json").read_text())
    assert about["sha256_bin"] == sha256(b"weights").hexdigest()
    assert about["bytes"] == len("graph") + len("weights")
