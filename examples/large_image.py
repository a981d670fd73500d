"""Process an image from a file row by row: exact, with one band of tokens in memory at a time."""

import tempfile
from pathlib import Path

import numpy as np
import timm
import torch

from inline_attention import stream

torch.manual_seed(0)
model = timm.create_model("inline_deit_nano", img_size=64, num_classes=10).eval()

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "image.npy"
    image = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(768, 512, 3))
    for top in range(0, 768, 128):  # written in pieces, so that it is never in memory as a whole
        image[top : top + 128] = np.random.default_rng(top).integers(0, 256, (128, 512, 3))
    image.flush()

    streamed = stream(model, path, tokens=2000)
    print(f"{path.name}: {image.shape[0]} x {image.shape[1]} pixels, {streamed.features.shape[1]:,} tokens, 2,000 at a time")

    cfg = model.pretrained_cfg
    mean, std = (torch.tensor(cfg[name]).view(3, 1, 1) for name in ("mean", "std"))
    whole = ((torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255 - mean) / std)[None]
    with torch.no_grad():
        difference = (streamed.logits - model(whole)).abs().max() / streamed.logits.abs().max()
    print(
        f"differs from the model on the whole image by {difference:.0e} of the largest logit; exact: {bool(difference < 1e-4)}"
    )
    del streamed, image  # both are files in the folder
