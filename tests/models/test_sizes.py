"""Images of any height and width: what padding and resampling do, and what they must not."""

import pytest
import timm
import torch
import torch.nn.functional as F

from inline_attention import InLineAttention

from .published import SMALL, TINY
from .test_contract import PAIRS


def pad(images, stride):
    return F.pad(images, (0, -images.shape[3] % stride, 0, -images.shape[2] % stride))


@pytest.mark.parametrize("mixer", ["inline", "softmax"])
@pytest.mark.parametrize("name", TINY)
def test_an_odd_size_is_the_same_as_the_image_padded_with_zeros(name, mixer):
    """Only up to the next patch: 101 x 67 and 104 x 68 are the same to a patch of 4."""
    model = timm.create_model(name, mixer=mixer).eval()
    images = torch.randn(2, 3, 101, 67)
    with torch.no_grad():
        torch.testing.assert_close(model(images), model(pad(images, model.patch_size)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "mixer"), PAIRS)
def test_small_and_odd_sizes_with_every_mixer(name, mixer):
    """Maps smaller than a window, or not divided by it: finite, and an image does not notice its batch."""
    torch.manual_seed(0)
    model = timm.create_model(name, mixer=mixer, img_size=32).eval()
    with torch.no_grad():
        for size in ((8, 8), (9, 31), (50, 21)):
            images = torch.randn(3, 3, *size)
            out = model(images)
            assert out.isfinite().all()
            torch.testing.assert_close(out[1:2], model(images[1:2]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", TINY)
def test_height_and_width_are_not_mistaken_for_each_other(name):
    """Height and width are never mistaken for each other: 96 x 64 is not 64 x 96."""
    model = timm.create_model(name).eval()
    images = torch.randn(1, 3, 96, 64)
    with torch.no_grad():
        wide, tall = model.forward_intermediates(images.mT.contiguous(), 1), model.forward_intermediates(images, 1)
    assert wide[1][0].shape[2:] == tall[1][0].shape[:1:-1]
    assert not torch.allclose(wide[1][0].mT, tall[1][0])


def test_inline_blocks_stay_global_on_larger_maps():
    """A far corner is seen from every other place, at any size; a windowed block would not see it."""
    model = timm.create_model("inline_swin_tiny").eval()
    stage = model.stages[0]
    assert all(isinstance(block.mixer, InLineAttention) and not block.mixer.windows for block in stage.blocks)
    with torch.no_grad():
        images = torch.randn(1, 3, 448, 448)
        other = images.clone()
        other[..., -8:, -8:] += 10
        moved = (stage(images) - stage(other)).abs().amax(1)[0]
    assert (moved > 0).all()
    windowed = timm.create_model("inline_swin_tiny", inline_window=56, inline_depths=(1, 0, 0, 0)).eval().stages[0]
    windowed.blocks = windowed.blocks[:1]
    with torch.no_grad():
        moved = (windowed(images) - windowed(other)).abs().amax(1)[0]
    assert (moved[:56, :56] == 0).all()
    assert (moved[56:, 56:] > 0).all()


@pytest.mark.parametrize("name", SMALL)
def test_another_patch_size(name):
    model = timm.create_model(name, img_size=32).eval()
    assert model.patch_size == 2
    model.set_input_size((64, 48), patch_size=4)
    assert (model.img_size, model.patch_size) == ((64, 48), 4)
    out, maps = model.forward_intermediates(torch.randn(1, 3, 64, 48))
    assert maps[0].shape[2:] == (16, 12)
    assert model.feature_info[0]["reduction"] == 4
    assert out.isfinite().all()


def test_half_precision_is_close():
    model = timm.create_model("inline_swin_nano").eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        full = model(images)
        with torch.autocast("cpu", torch.bfloat16):
            assert (model(images).float() - full).abs().max() < 0.05 * full.abs().max()
