"""Segmenters as files: the label maps of the model at every size, with the heads on a backbone of four convolutions."""

import json
from copy import deepcopy
from hashlib import sha256

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from inline_attention.cli.main import main
from inline_attention.dense.segmenter import SEGMENTERS, Segmenter, upsample_logits
from inline_attention.deploy import export as exporting
from inline_attention.deploy.export import export
from inline_attention.lite.onnx_runtime import ONNX
from inline_attention.lite.openvino_runtime import OPENVINO
from inline_attention.lite.segmenter import ExportedSegmenter

from ..training.small import write_recipe
from ..training.small_dense import segment_recipe, write_maps
from .ir import reuse_onnx
from .test_export import facts, randomised

CLASSES = ["sky", "sea", "sand"]
FACTS = {
    **facts(), "classes": CLASSES, "task": "segment", "data": {**facts()["data"], "side": 40, "longest": 90, "windows": None},
}  # fmt: skip
SIZES = [(64, 64), (33, 70), (101, 67), (96, 40), (137, 251)]


class Maps(nn.Module):
    """Four maps at strides 4 to 32."""

    channels = (4, 6, 8, 10)

    def __init__(self):
        super().__init__()
        sides = (3, *self.channels)
        self.steps = nn.ModuleList(
            nn.Conv2d(sides[number], sides[number + 1], 5, 2 if number else 4, 2) for number in range(len(self.channels))
        )

    def forward(self, pixels, mask=None):
        maps = []
        for step in self.steps:
            pixels = step(pixels).tanh()
            maps.append(pixels)
        return maps


class Small(nn.Module):
    """What a segmenter does, in a few operations: padding, pooling, resizing, upsampling to the size of the image."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Conv2d(3, 4, 4, 4), nn.Conv2d(4, len(CLASSES), 1)

    def forward(self, pixels):
        size = pixels.shape[2], pixels.shape[3]
        maps = self.embed(F.pad(pixels, (0, -size[1] % 32, 0, -size[0] % 32)))
        context = F.interpolate(F.adaptive_avg_pool2d(maps, (3, 3)), size=maps.shape[2:], mode="bilinear")
        return upsample_logits(self.head(maps.tanh() + context), size)


@pytest.mark.parametrize("head", [None, *(pytest.param(head, marks=pytest.mark.slow) for head in SEGMENTERS)])
def test_both_formats_at_every_size(head, tmp_path, monkeypatch):
    torch.manual_seed(0)
    model = randomised(Small() if head is None else Segmenter(Maps(), head, len(CLASSES), width=16)).eval()
    program = exporting.export_graph(deepcopy(model).requires_grad_(False))
    monkeypatch.setattr(exporting, "export_graph", lambda model, channels: program)
    found = {}
    for kind, runtime in (("onnx", ONNX), ("openvino", OPENVINO)):
        file = tmp_path / f"model{runtime.suffixes[0]}"
        found[kind] = export(model, file, facts=FACTS, kind=kind, batches=[1, 2], sizes=SIZES)
        reuse_onnx(tmp_path / "model.onnx", monkeypatch)
        assert found[kind]["output"] == {"name": "logits", "shape": ["batch", 3, "height", "width"]}
        assert (found[kind]["task"], found[kind]["sha256"]) == ("segment", sha256(file.read_bytes()).hexdigest())
        segmenter = ExportedSegmenter.open_with(file, runtime)
        for size in ((32, 32), (57, 100)):  # where `export` did not look
            pixels = torch.randn(1, 3, *size)
            with torch.no_grad():
                assert np.abs(segmenter.logits(pixels.numpy()) - model(pixels).numpy()).max() < 1e-4
    assert [len(about["checked"]["cases"]) for about in found.values()] == [10, 10]
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 73, 3), dtype=np.uint8))
    one, other = (
        ExportedSegmenter.open_with(tmp_path / f"model{runtime.suffixes[0]}", runtime).labels(image)
        for runtime in (ONNX, OPENVINO)
    )
    assert (one == other).mean() > 0.999


def test_a_model_whose_classes_are_fewer_is_refused(tmp_path, monkeypatch):
    model = Segmenter(Maps(), "semantic_fpn", 2, width=16).eval()
    monkeypatch.setattr(exporting, "export_graph", lambda model, channels: None)
    form = exporting.FORMATS["onnx"]._replace(
        write=lambda program, path, precision: path.write_text("nothing"), open=lambda path, precision: model
    )
    monkeypatch.setitem(exporting.FORMATS, "onnx", form)
    with pytest.raises(ValueError, match=r"^the model has 2 outputs, and 3 class names are given$"):
        export(model, tmp_path / "model.onnx", facts=FACTS, sizes=[(64, 64)])


@pytest.mark.slow
@pytest.mark.parametrize("head", SEGMENTERS)
def test_from_training_to_the_label_maps_of_files(head, tmp_path, capsys):
    maps = write_maps(tmp_path / "maps")
    recipe = segment_recipe(maps, schedule={"steps": 20}, run={"evaluate": 20}, task={"head": head})
    path = write_recipe(tmp_path / "recipe.toml", recipe)
    main(["train", "--task", "segment", "--recipe", str(path), "--out", str(tmp_path / "run"), "--device", "cpu"])
    images = [str(path) for path in sorted((maps / "images" / "train").iterdir())[:3]]
    main(["predict", *images, "--model", str(tmp_path / "run"), "--out", str(tmp_path / "drawn")])
    for kind, suffix in (("onnx", ".onnx"), ("openvino", ".xml")):
        file, out = tmp_path / f"model{suffix}", tmp_path / kind
        main(["export", str(tmp_path / "run"), "--format", kind, "--out", str(file)])
        about = json.loads(file.with_name(f"{file.name}.json").read_text())
        assert (about["task"], about["head"], about["classes"]) == ("segment", head, ["ground", "ball", "box"])
        sizes = {(case["height"], case["width"]) for case in about["checked"]["cases"]}
        assert len(sizes) >= (5 if kind == "openvino" else 2)
        main(["predict", *images, f"--{kind}", str(file), "--out", str(out)])
        for drawing in (tmp_path / "drawn").iterdir():
            same = np.asarray(Image.open(drawing)) == np.asarray(Image.open(out / drawing.name))
            assert same.mean() > 0.999
    capsys.readouterr()
