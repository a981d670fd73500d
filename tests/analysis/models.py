"""Models with large random weights, for the tests of this folder."""

import timm
import torch

from inline_attention import MIXERS

WEIGHTED = [name for name in MIXERS if MIXERS[name].is_weighted_sum]


def make_model(name="inline_deit_nano", mixer="inline", std=0.3, **options):
    """A nano model for images of 16 x 24; large weights, so that no part of a row of weights is negligible."""
    torch.manual_seed(0)
    if "deit" in name:
        options.setdefault("patch_size", 4)
    model = timm.create_model(name, img_size=(16, 24), num_classes=3, mixer=mixer, **options).eval()
    for part in model.modules():
        if isinstance(part, torch.nn.Linear) and part.bias is not None:
            torch.nn.init.normal_(part.bias, std=std)
            torch.nn.init.normal_(part.weight, std=std)
    return model


def images(count=2):
    torch.manual_seed(1)
    return torch.randn(count, 3, 16, 24)
