"""Every mixer whose keys enter through sums takes an image in bands, with the parts that it was published with."""

import pytest
import torch
from timm.models import create_model

from inline_attention import MIXERS, stream
from inline_attention.large.stages import ways_through

from ..published_parts import PUBLISHED_PARTS

AT_ONCE = ("softmax", "angular")
"""Softmax needs every pair of tokens; the convolution of angular attention goes along the tokens, across rows."""
BANDED = [name for name in MIXERS if name not in AT_ONCE]


def made(name, mixer):
    torch.manual_seed(0)
    shallow = {"depth": 2} if "deit" in name else {"depths": (1, 1, 1, 1)}
    parts = PUBLISHED_PARTS.get(mixer, {})
    model = create_model(name, mixer=mixer, num_classes=5, img_size=(32, 48), **shallow, **parts).double().eval()
    for parameter in model.parameters():  # what starts at zero, or small, would hide mistakes
        torch.nn.init.normal_(parameter, std=0.2)
    return model


PYRAMIDS = ("mala", "mhla", "agent", "vit3")
"""Those that depend on where a band lies, or look beyond it."""


@pytest.mark.parametrize(
    ("name", "mixer", "size", "tokens"),
    [("inline_deit_nano", mixer, (33, 37), 1) for mixer in BANDED]
    + [("inline_pvt_nano", mixer, (48, 40), 40) for mixer in PYRAMIDS],
)
def test_bands_give_what_the_whole_gives(name, mixer, size, tokens):
    """At another size than the model's, one row a band and several, masked and not."""
    model, image = made(name, mixer), torch.randn(1, 3, *size, dtype=torch.float64)
    assert {way for stage in ways_through(model, "stream") for way in stage} == {"bands"}
    mask = torch.ones(size, dtype=torch.bool)
    mask[20:, 20:] = False
    for valid in (None, mask):
        with torch.no_grad():
            expected = model(image) if valid is None else model(image, mask=valid[None])
        streamed = stream(model, image, tokens=tokens, mask=valid)
        close = float(expected.abs().max()) * 1e-6  # timm resamples positions in fp32
        torch.testing.assert_close(streamed.logits, expected, rtol=0, atol=close)


@pytest.mark.parametrize("mixer", AT_ONCE)
def test_the_others_take_small_maps_at_once(mixer):
    model = made("inline_deit_nano", mixer)
    assert {way for stage in ways_through(model, "stream") for way in stage} == {"whole"}


def test_the_published_divisor_of_mhla_is_not_in_bands():
    """It reads a number of every token of the other blocks."""
    model = create_model("inline_deit_nano", mixer="mhla", mixer_args={"divisor": "published"})
    assert {way for stage in ways_through(model, "stream") for way in stage} == {"whole"}
