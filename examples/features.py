"""A feature pyramid from images of any height and width, and a segmentation head on it."""

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import inline_attention  # noqa: F401  registers the models with timm


class Segmenter(nn.Module):
    """Classifies every pixel: all maps are brought to one width and one size, and summed."""

    def __init__(self, backbone: str, classes: int, width: int = 32) -> None:
        super().__init__()
        self.backbone = timm.create_model(backbone, features_only=True)
        self.lateral = nn.ModuleList(nn.Conv2d(channels, width, 1) for channels in self.backbone.feature_info.channels())
        self.classify = nn.Conv2d(width, classes, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, classes, H, W)."""
        maps = [convolve(m) for convolve, m in zip(self.lateral, self.backbone(images), strict=True)]
        total = sum(F.interpolate(m, maps[0].shape[2:], mode="bilinear") for m in maps)
        return F.interpolate(self.classify(total), images.shape[2:], mode="bilinear")


torch.manual_seed(0)
model = Segmenter("inline_pvt_nano", classes=5)
info = model.backbone.feature_info
print("strides", info.reduction(), "channels", info.channels())

for size in ((64, 64), (101, 67), (96, 160)):
    images = torch.randn(1, 3, *size)
    shapes = [tuple(m.shape[2:]) for m in model.backbone(images)]
    print(size, "->", shapes, "->", tuple(model(images).shape))

loss = F.cross_entropy(model(torch.randn(2, 3, 64, 96)), torch.randint(5, (2, 64, 96)))
loss.backward()
reached = all(parameter.grad is not None for parameter in model.parameters())
print(f"loss {loss.item():.2f}; gradients reach every parameter: {reached}")
