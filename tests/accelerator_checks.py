"""What `test_accelerator.py` runs in a process of its own.

`python -m tests.accelerator_checks DEVICE`, "cuda" or "card", prints {case: error or None}.
"""

import json
import sys
import traceback
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial

import timm
import torch
import torch.nn.functional as F
from timm.utils import ModelEmaV3
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from inline_attention import MIXERS, InjectiveState, injective_linear_attention
from inline_attention.data.config import AugmentConfig
from inline_attention.dense.pyramid import Pyramid
from inline_attention.dense.segmenter import SEGMENTERS, Segmenter
from inline_attention.models import backbone
from inline_attention.training.classify import mixing
from inline_attention.training.segment import pixel_loss

from .fake_device import fake_device

MODELS = ("inline_deit_nano", "inline_pvt_nano", "inline_swin_nano", "inline_cswin_nano")
TYPES = {"fp32": None, "fp16": torch.float16, "bf16": torch.bfloat16}


@contextmanager
def nothing_slow(autocast=None):
    """Fails if anything within is of 64 bit, or waits for the device."""
    with fake_device(autocast) as watch:
        yield
    assert not watch.slow, "; ".join(sorted(set(watch.slow)))


def forward(make: Callable[[], torch.nn.Module], autocast, *inputs, **options) -> None:
    """On CUDA, under autocast if a type is given."""
    module = make().train()
    with nothing_slow(autocast):
        module.to_empty(device="cuda")
        out = module(*(torch.empty(shape, device="cuda") for shape in inputs), **moved(options, "cuda"))
        assert out.device.type == "cuda"


def backward(make: Callable[[], torch.nn.Module], dtype, *inputs, **options) -> None:
    """On a device of Python's, with weights and input of this type: every parameter gets its gradient."""
    module = make().to(dtype or torch.float32).train()
    with nothing_slow():
        module.to_empty(device="card")
        given = [torch.empty(shape, device="card", dtype=dtype, requires_grad=True) for shape in inputs]
        module(*given, **moved(options, "card")).float().square().mean().backward()
        for name, tensor in [*module.named_parameters(), *((f"input {i}", t) for i, t in enumerate(given))]:
            assert tensor.grad is not None, f"{name} has no gradient"
            assert (tensor.grad.device, tensor.grad.dtype) == (tensor.device, tensor.dtype), f"{name}: {tensor.grad}"


def moved(options, device):
    """Masks of ones, made on the device from their shapes."""
    return {
        key: torch.ones(value, dtype=torch.bool, device=device) if key == "mask" else value for key, value in options.items()
    }


class OnGrid(torch.nn.Module):
    """A mixer with its grid and further arguments."""

    def __init__(self, name, **options):
        super().__init__()
        self.mixer = MIXERS[name](32, 2, **options)

    def forward(self, x, **options):
        return self.mixer(x, (6, 7), **options)


class Op(torch.nn.Module):
    """The op, and the same through two states."""

    def forward(self, q, k, v, mask=None):
        whole = injective_linear_attention(q, k, v, kernel="relu", mask=mask)
        parts = [None, None] if mask is None else mask.chunk(2, 1)
        halves = [InjectiveState.from_tokens(*pair) for pair in zip(k.chunk(2, 2), v.chunk(2, 2), parts, strict=True)]
        return whole + (halves[0] + halves[1]).attend(q)


class Segmentation(torch.nn.Module):
    """A segmenter and its loss."""

    def __init__(self, head):
        super().__init__()
        maps = timm.create_model("inline_pvt_nano", features_only=True)
        self.segmenter = Segmenter(Pyramid(maps), head, 3, width=32)

    def forward(self, pixels):
        labels = torch.ones(pixels.shape[0], *pixels.shape[2:], dtype=torch.long, device=pixels.device)
        return sum(pixel_loss(logits, labels) for logits in self.segmenter(pixels))


def training_step() -> None:
    """Loss with mixup, gradients, AdamW, an average of weights, as `inline train` has them."""
    model = timm.create_model("inline_deit_nano", num_classes=10).train()
    with nothing_slow():
        model.to_empty(device="card")
        average = ModelEmaV3(model)
        optimizer = torch.optim.AdamW(model.parameters())
        images, labels = torch.empty(4, 3, 32, 32, device="card"), torch.ones(4, dtype=torch.long, device="card")
        images, targets = mixing(AugmentConfig(mixup=0.8, cutmix=1.0), 10)(images, labels)
        F.cross_entropy(model(images).float(), targets).backward()
        optimizer.step()
        average.update(model)


def cases(device: str) -> dict[str, Callable[[], None]]:
    """By name."""
    go = forward if device == "cuda" else backward
    heads = [(2, 2, 42, 16)] * 3
    found: dict[str, Callable[[], None]] = {}
    for kind, dtype in TYPES.items():
        if (device, kind) == ("card", "fp16"):
            continue  # nothing here distinguishes the two 16-bit types
        masks = (False, True) if dtype is None else (False,)
        for masked in masks:
            case = f"with mask {kind}" if masked else kind
            found[f"op {case}"] = partial(go, Op, dtype, *heads, **({"mask": (2, 42)} if masked else {}))
            for name in MIXERS:
                mask = {"mask": (2, 42)} if masked else {}
                found[f"{name} {case}"] = partial(go, partial(OnGrid, name), dtype, (2, 42, 32), **mask)
            for name in MODELS:
                make, mask = partial(timm.create_model, name, num_classes=5), {"mask": (2, 70, 60)} if masked else {}
                found[f"{name} {case}"] = partial(go, make, dtype, (2, 3, 70, 60), **mask)
        for head in SEGMENTERS:
            found[f"{head} {kind}"] = partial(go, partial(Segmentation, head), dtype, (2, 3, 70, 60))
    if device == "card":
        found["training step"] = training_step
    return found


def main() -> None:
    """Run all cases."""
    # the one place where a forward pass waits: whether each image has a valid pixel; see docs/speed.md
    backbone.check_image_mask = lambda mask, images: None
    if sys.argv[1] == "card":
        _setup_privateuseone_for_python_backend("card")
    results = {}
    for name, case in cases(sys.argv[1]).items():
        try:
            case()
            results[name] = None
        except Exception:
            results[name] = traceback.format_exc()
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
