"""What others wrote takes the models as it takes timm's."""

from collections import OrderedDict

import pytest
import segmentation_models_pytorch as smp
import timm
import torch
from timm.layers import AttentionPoolLatent
from torchvision.ops import FeaturePyramidNetwork

from inline_attention import count

from .published import PUBLISHED, SMALL, TINY, golden_models, on_meta

PYRAMIDS = [name for name in TINY if "deit" not in name]


DECODERS = [
    pytest.param(name, architecture, marks=[] if name in quick else pytest.mark.slow)
    for architecture, quick in ((smp.UPerNet, PYRAMIDS), (smp.FPN, PYRAMIDS[:1]), (smp.Unet, PYRAMIDS[1:2]))
    for name in PYRAMIDS
]


@pytest.mark.parametrize(("name", "architecture"), DECODERS)
def test_segmentation_models_pytorch(name, architecture):
    model = architecture(f"tu-{name}", encoder_weights=None, classes=4, in_channels=3).eval()
    with torch.no_grad():
        assert model(torch.randn(1, 3, 64, 96)).shape == (1, 4, 64, 96)
    assert model.encoder.out_channels == [3, 0, *timm.create_model(name, features_only=True).feature_info.channels()]


@pytest.mark.parametrize("name", PYRAMIDS)
def test_torchvisions_feature_pyramid(name):
    body = timm.create_model(name, features_only=True)
    pyramid = FeaturePyramidNetwork(body.feature_info.channels(), 16)
    with torch.no_grad():
        maps = pyramid(OrderedDict((str(number), m) for number, m in enumerate(body(torch.randn(1, 3, 101, 67)))))
    assert [m.shape for m in maps.values()] == [(1, 16, 26, 17), (1, 16, 13, 9), (1, 16, 7, 5), (1, 16, 4, 3)]


@pytest.mark.parametrize("name", SMALL)
def test_timms_attention_pool(name):
    model = timm.create_model(name).eval()
    tokens = model.get_intermediate_layers(torch.randn(2, 3, 32, 32))[0]
    assert AttentionPoolLatent(model.num_features, num_heads=4)(tokens).shape == (2, model.num_features)


@pytest.mark.parametrize("kind", ["getter", "hook"])
@pytest.mark.parametrize("name", [name for name in SMALL if "deit" not in name])
def test_timms_feature_extractors_agree(name, kind):
    torch.manual_seed(0)
    extractor = timm.create_model(name, features_only=True, feature_cls=kind).eval()
    torch.manual_seed(0)
    model = timm.create_model(name).eval()
    images = torch.randn(1, 3, 40, 32)
    for ours, theirs in zip(model.forward_intermediates(images, intermediates_only=True), extractor(images), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", PUBLISHED)
def test_data_configuration(name):
    """Size, mean and std as the authors evaluate: squashed to a square of 256/224 of the size, then cropped."""
    model = on_meta(name)
    side = golden_models()[PUBLISHED[name]]["img_size"]
    configuration = timm.data.resolve_model_data_config(model)
    assert configuration["input_size"] == (3, side, side)
    assert (configuration["mean"], configuration["std"]) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert (configuration["interpolation"], configuration["crop_mode"]) == ("bicubic", "squash")
    assert configuration["crop_pct"] == (1.0 if name == "inline_swin_base_384" else 0.875)
    if name in TINY:
        with torch.device("meta"):
            other = timm.create_model(name, img_size=(96, 160))
        assert timm.data.resolve_model_data_config(other)["input_size"] == (3, 96, 160)


def test_the_counter_counts_any_model():
    counted = count(timm.create_model("deit_tiny_patch16_224"))
    assert counted.params == 5_717_416
    assert 1.25e9 < counted.flops < 1.27e9


@pytest.mark.parametrize("mixer", ["inline", "linear", "efficient", "hydra", "angular", "enhanced", "focused"])
def test_linear_mixers_are_counted_linearly(mixer):
    """Four times the pixels, four times the FLOPs, but for the class token, the head and the kernels."""
    model = timm.create_model("inline_deit_nano", mixer=mixer, num_classes=0)
    small, large = count(model, 64), count(model, 128)
    assert large.flops / small.flops == pytest.approx(4, rel=0.01)
    assert large.activations / small.activations == pytest.approx(4, rel=0.01)
    softmax = timm.create_model("inline_deit_nano", mixer="softmax", num_classes=0)
    assert count(softmax, 128).flops / count(softmax, 64).flops > 5
