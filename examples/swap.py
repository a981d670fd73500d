"""Replace the attention of a timm vision transformer in place: its projections keep their weights."""

import time

import timm
import torch

from inline_attention import swap


def milliseconds(model: torch.nn.Module, side: int) -> float:
    """The best of three passes."""
    image, best = torch.randn(1, 3, side, side), float("inf")
    for _ in range(3):
        start = time.perf_counter()
        model(image)
        best = min(best, time.perf_counter() - start)
    return 1000 * best


torch.manual_seed(0)
model = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=3, num_classes=10, dynamic_img_size=True).eval()
image = torch.randn(1, 3, 64, 96)

with torch.no_grad():
    before, slow = model(image), milliseconds(model, 768)

    swap(model, "softmax")  # the softmax of this package for that of timm: nothing changes
    print("softmax replaced by softmax gives the same outputs:", torch.allclose(before, model(image), atol=1e-5))

    print(swap(model, "inline"))
    print(f"an image of 768 x 768: {slow:.0f} ms before, {milliseconds(model, 768):.0f} ms after")
    print("the outputs differ now, so the model needs training:", not torch.allclose(before, model(image), atol=1e-3))
