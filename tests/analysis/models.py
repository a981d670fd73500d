"""Models with weights that matter, for all tests of this folder."""

import timm
import torch


def made(name="inline_deit_nano", mixer="inline", std=0.3, **options):
    """A nano model for pictures of 16 x 24, every projection drawn wide, so that no part of a row is too small to be seen."""
    torch.manual_seed(0)
    if "deit" in name:
        options.setdefault("patch_size", 4)
    model = timm.create_model(name, img_size=(16, 24), num_classes=3, mixer=mixer, **options).eval()
    for part in model.modules():
        if isinstance(part, torch.nn.Linear) and part.bias is not None:
            torch.nn.init.normal_(part.bias, std=std)
            torch.nn.init.normal_(part.weight, std=std)
    return model


def pictures(count=2):
    torch.manual_seed(1)
    return torch.randn(count, 3, 16, 24)
