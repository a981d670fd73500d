"""Every mixer, with and without the local residual, InLine in both forms, and with rotary positions."""

import pytest
import torch

from inline_attention import MIXERS

FORMS = {
    "inline": [
        {"form": "folded"},
        {"form": "heads"},
        {"scale": "learned", "form": "folded"},
        {"scale": "learned", "base": "linear"},
    ],
    "mhla": [{"divisor": "paper"}, {"divisor": "published"}],
}
RIVALS = ("mala", "rala", "pola", "mhla", "agent", "mila", "nala", "vit3")
"""The newer mixers: the local residual on them is tested by `make slow`, since it is the same part as on the others."""


def _slow(condition):
    return [pytest.mark.slow] if condition else []


VARIANTS = [
    pytest.param(
        name,
        {"local": local, **form},
        id="-".join([name, *(["local"] if local else []), *form.values()]),
        marks=_slow(local and (name in RIVALS or "base" in form)),
    )
    for name in MIXERS
    for local in (False, True)
    for form in FORMS.get(name, [{}])
]

WEIGHTED = [variant for variant in VARIANTS if MIXERS[variant.values[0]].is_weighted_sum]
WINDOWED = [variant for variant in VARIANTS if "windows" not in MIXERS[variant.values[0]].refuses]
CROSS = [name for name in MIXERS if "context" not in MIXERS[name].refuses]
"""Those that read a context."""

ROTARY = [
    pytest.param(
        name,
        {"local": False, "rope": rope, **kernel},
        id="-".join([name, rope, *kernel.values()]),
        marks=_slow(name in RIVALS and (rope == "all") != (name in ("mila", "vit3"))),  # published with the other kind
    )
    for name in MIXERS
    if MIXERS[name].takes_rope
    for rope in ("heads", "all")
    for kernel in ([{}, {"kernel": "relu"}] if name == "inline" else [{}])
]


def build(name, dim=8, num_heads=2, dtype=torch.float64, **options):
    mixer = MIXERS[name](dim, num_heads, dtype=dtype, **options).eval()
    for key, parameter in mixer.named_parameters(recurse=False):  # what starts at zero would hide mistakes
        if key in ("positions", "scale", "power") and (name == "inline" or not parameter.any()):
            torch.nn.init.normal_(parameter, std=0.3)
    return mixer


def random_mask(batch, count):
    """Some valid; in the last image only one."""
    mask = torch.rand(batch, count) > 0.4
    mask[:, 0] = True
    mask[-1] = torch.arange(count) == count // 2
    return mask
