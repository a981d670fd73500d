"""Every mixer, with and without the local residual, InLine in both forms, and with rotary positions."""

import pytest
import torch

from inline_attention import MIXERS

VARIANTS = [
    pytest.param(name, {"local": local, **form}, id="-".join([name, *(["local"] if local else []), *form.values()]))
    for name in MIXERS
    for local in (False, True)
    for form in ([{"form": "folded"}, {"form": "heads"}] if name == "inline" else [{}])
]

ROTARY = [
    pytest.param(name, {"local": False, "rope": rope, **kernel}, id="-".join([name, rope, *kernel.values()]))
    for name in MIXERS
    if MIXERS[name].takes_rope
    for rope in ("heads", "all")
    for kernel in ([{}, {"kernel": "relu"}] if name == "inline" else [{}])
]


def build(name, dim=8, num_heads=2, dtype=torch.float64, **options):
    return MIXERS[name](dim, num_heads, dtype=dtype, **options).eval()


def random_mask(batch, count):
    """Some valid; in the last image only one."""
    mask = torch.rand(batch, count) > 0.4
    mask[:, 0] = True
    mask[-1] = torch.arange(count) == count // 2
    return mask
