"""Write a model as a folder in timm's hub format, and open it with timm and with transformers."""

import json
import tempfile
from importlib.util import find_spec
from pathlib import Path

import timm
import torch

import inline_attention
from inline_attention.deploy.card import Facts, model_card
from inline_attention.deploy.hub import save_for_hub

NAME = "inline_swin_nano"
ARGUMENTS = {"img_size": (32, 48), "num_classes": 3, "mixer": "inline"}
CLASSES = ("cat", "dog", "pelican")
DATA = {
    "size": (32, 48),
    "channels": 3,
    "crop_mode": "squash",
    "crop": 0.875,
    "interpolation": "bicubic",
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
}

torch.manual_seed(0)
model = timm.create_model(NAME, **ARGUMENTS).eval()  # train it first

with tempfile.TemporaryDirectory() as here:
    card = model_card(Facts(NAME, ARGUMENTS, CLASSES, DATA, inline_attention.count(model, DATA["size"])))
    folder = save_for_hub(model, Path(here) / "pets", name=NAME, arguments=ARGUMENTS, classes=CLASSES, data=DATA, card=card)
    for file in sorted(folder.iterdir()):
        print(f"{file.name:18} {file.stat().st_size:>9,} bytes")
    print("arguments:", json.loads((folder / "config.json").read_text())["model_args"])

    loaded = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    image = torch.randn(1, 3, 32, 48)
    with torch.no_grad():
        print("the same outputs, bit for bit:", torch.equal(loaded(image), model(image)))
    print("classes:", *loaded.pretrained_cfg["label_names"])

    if find_spec("transformers"):
        import transformers

        transformers.logging.disable_progress_bar()
        wrapped = transformers.AutoModelForImageClassification.from_pretrained(folder)
        with torch.no_grad():
            same = torch.allclose(wrapped(image).logits, model(image), atol=1e-6)
        print("by transformers:", *wrapped.config.id2label.values(), "| the same outputs but for rounding:", same)
    # With a token: inline_attention.deploy.hub.push_to_hub(folder, "owner/pets"); then "hf-hub:owner/pets" loads it anywhere.
