"""Export a model as an ONNX file for any batch, height and width, compare it with the model, and run it."""

import tempfile
from pathlib import Path

import onnxruntime
import timm
import torch

import inline_attention  # noqa: F401  registers the models with timm
from inline_attention.deploy.export import export

torch.manual_seed(0)
model = timm.create_model("inline_deit_nano", depth=2, num_classes=3).eval()
transform = {"size": [32, 32], "channels": 3, "crop_mode": "squash", "crop": 1.0, "interpolation": "bicubic"}
data = {**transform, "mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]}
facts = {"model": "inline_deit_nano", "classes": ["cat", "dog", "pelican"], "data": data}

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "pets.onnx"
    description = export(model, path, facts=facts, batches=(1, 2), sizes=((32, 32), (45, 61)))
    print(*sorted(file.name for file in path.parent.iterdir()))
    checked = description["checked"]
    print(
        f"{len(checked['cases'])} comparisons; within {checked['tolerance']:.0e}:",
        checked["largest_difference"] < checked["tolerance"],
    )

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for shape in ((1, 3, 32, 32), (3, 3, 40, 56)):
        images = torch.randn(shape)
        (logits,) = session.run(None, {description["input"]["name"]: images.numpy()})
        with torch.no_grad():
            same = torch.allclose(torch.from_numpy(logits), model(images), atol=1e-4)
        print(shape, "->", logits.shape, "as the model:", same)
