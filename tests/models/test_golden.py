"""All fifteen published models give the authors' outputs, in both forms of the attention."""

import numpy as np
import pytest
import torch

from inline_attention import InLineAttention, count, load_official
from inline_attention.cli.list import COUNTED

from ..golden.recipe import image
from .published import GOLDEN, PUBLISHED, TINY, golden_models, hollow, official, on_meta

TABLE = {
    "inline_deit_tiny": (224, "6.48", "1.11"),
    "inline_deit_small": (288, "16.73", "4.97"),
    "inline_deit_base": (448, "23.80", "17.17"),
    "inline_pvt_tiny": (224, "12.03", "1.98"),
    "inline_pvt_small": (224, "21.56", "3.91"),
    "inline_pvt_medium": (224, "37.62", "6.86"),
    "inline_pvt_large": (224, "51.15", "10.13"),
    "inline_swin_tiny": (224, "29.22", "4.46"),
    "inline_swin_small": (224, "49.79", "8.72"),
    "inline_swin_base": (224, "88.35", "15.40"),
    "inline_swin_base_384": (384, "88.47", "46.20"),
    "inline_cswin_tiny": (224, "20.60", "4.31"),
    "inline_cswin_small": (224, "33.03", "6.77"),
    "inline_cswin_base": (224, "73.41", "14.88"),
    "inline_cswin_base_384": (384, "73.41", "46.22"),
}
"""Input, millions of parameters, billions of multiply-adds, measured on the authors' code."""


def close(ours, golden, key):
    expected = torch.from_numpy(golden[key])
    return (ours - expected).abs().max() < 5e-6 * expected.abs().max()


@pytest.mark.parametrize("name", PUBLISHED)
def test_outputs(name):
    model, golden = hollow(name), np.load(GOLDEN / "outputs.npz")
    report = load_official(model, official(name))
    assert not report.resized
    assert not report.kept
    side = golden_models()[PUBLISHED[name]]["img_size"]
    images = torch.from_numpy(image(2, side, side))
    attention = [module for module in model.modules() if isinstance(module, InLineAttention)]
    assert attention
    for form in ("folded", "heads"):
        for module in attention:
            module.form = form
        with torch.no_grad():
            features = model.forward_features(images)
            pooled, logits = model.forward_head(features, pre_logits=True), model.forward_head(features)
        assert close(pooled, golden, f"{PUBLISHED[name]}/features"), form
        assert close(logits, golden, f"{PUBLISHED[name]}/logits"), form


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_and_flops(name):
    model = on_meta(name)
    size, params, flops = TABLE[name]
    counted = count(model)
    assert model.img_size == (size, size)
    assert counted.params == golden_models()[PUBLISHED[name]]["num_params"]
    assert f"{counted.params / 1e6:.2f}" == params
    assert f"{counted.flops / 1e9:.2f}" == flops
    assert COUNTED[name] == (size, size, counted.params, counted.flops, counted.activations), "what `inline list` prints"
    if name in TINY:
        assert counted == count(model, size)


def named_like_the_authors(name):
    """Our module -> the authors' module whose output is in the golden file."""
    family = name.split("_")[1]
    ours = {"patch_embed": "stages.0.embed", "stage1_conv_embed": "stages.0.embed", "norm": "norm"}
    for stage in range(4):
        ours |= {f"patch_embed{stage + 1}": f"stages.{stage}.embed", f"merge{stage}": f"stages.{stage}.embed"}
        ours |= {f"layers.{stage - 1}.downsample": f"stages.{stage}.embed"}
        for block in range(30):
            place = f"stages.{stage}.blocks.{block}"
            theirs = {"deit": "blocks.{1}", "pvt": "block{0}.{1}", "swin": "layers.{2}.blocks.{1}", "cswin": "stage{0}.{1}"}
            official = theirs[family].format(stage + 1, block, stage)
            if family != "deit" or stage == 0:
                ours |= {official: place, f"{official}.attn": f"{place}.mixer"}
    return ours


@pytest.mark.parametrize("name", ["inline_deit_tiny", "inline_pvt_tiny", "inline_swin_tiny", "inline_cswin_tiny"])
def test_what_happens_inside(name):
    """The layer where an implementation goes wrong."""
    model, inside = hollow(name), np.load(GOLDEN / "intermediates.npz")
    load_official(model, official(name))
    places = named_like_the_authors(name)
    wanted = {
        key: places[key.split("/", 1)[1]]
        for key in inside
        if key.startswith(f"{PUBLISHED[name]}/") and key.split("/")[1] in places
    }
    assert len(wanted) >= 6
    found = {}
    for key, place in wanted.items():
        model.get_submodule(place).register_forward_hook(lambda module, given, out, key=key: found.__setitem__(key, out))
    with torch.no_grad():
        model(torch.from_numpy(image(2, 224, 224)))
    for key in wanted:
        out = found[key].flatten(1, -2)
        assert close(out[:, :40:3, :24], inside, key), key
