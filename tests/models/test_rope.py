"""Rotary positions in whole models, `timm.create_model(..., rope="heads")`: every family, every tool that reads the mixers."""

import pytest
import timm
import torch

from inline_attention import count, stream
from inline_attention.analysis.capture import capture_pass
from inline_attention.analysis.masked_accuracy import masked_output
from inline_attention.deploy.formats import export_graph
from inline_attention.layers import MIXERS, Mixer

from .published import SMALL


def made(name, **options):
    """A model with weights large enough that every part of it matters."""
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=5, **options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


@pytest.mark.parametrize("name", SMALL)
def test_every_family(name):
    """The same parameters, other outputs, any size, gradients."""
    plain, model = made(name), made(name, rope="all")
    model.load_state_dict(plain.state_dict())
    assert {module.rope.kind for module in model.modules() if isinstance(module, Mixer)} == {"all"}
    for size in ((32, 32), (45, 70)):
        images = torch.randn(2, 3, *size)
        assert not torch.allclose(model(images), plain(images), rtol=1e-3, atol=1e-4)
    model(images).square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)


@pytest.mark.parametrize("name", [name for name in MIXERS if MIXERS[name].takes_rope])
def test_every_mixer(name):
    model = made("inline_deit_nano", mixer=name, rope="heads", depth=2)
    assert model(torch.randn(2, 3, 32, 40)).isfinite().all()
    assert count(model).flops >= count(made("inline_deit_nano", mixer=name, depth=2)).flops


def test_what_a_model_cannot_have():
    with pytest.raises(ValueError, match="HydraAttention multiplies channel by channel and takes no rope"):
        made("inline_deit_nano", mixer="hydra", rope="heads")
    with pytest.raises(ValueError, match=r"rope='heads' needs keys on the grid of the queries, got .*reduction=8"):
        timm.create_model("inline_pvt_tiny", mixer="softmax", rope="heads")
    with pytest.raises(ValueError, match="unknown rope 'polar'; known: heads, all"):
        made("inline_deit_nano", rope="polar")


def test_only_inline_streams():
    model, image = made("inline_deit_nano", rope="heads"), torch.randn(3, 64, 40)
    torch.testing.assert_close(stream(model, image, tokens=10).logits, model(image[None]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", [{"mixer": "linear"}, {"kernel": "relu"}, {}], ids=str)
def test_analyses_see_the_turn(options):
    """Keys that are masked one by one: with none masked, the layer's own output."""
    model = made("inline_deit_nano", rope="all", depth=1, **options)
    layer = capture_pass(model, torch.randn(2, 3, 32, 40))[0]
    nothing = torch.zeros(layer.tokens, layer.tokens, dtype=torch.bool)
    whole = layer.mixer(layer.x, layer.grid, num_prefix_tokens=layer.num_prefix_tokens)
    torch.testing.assert_close(masked_output(layer, nothing), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_exported_for_every_size():
    model = made("inline_deit_nano", rope="heads", depth=1)
    run = export_graph(model).module(check_guards=False)
    for size in ((32, 32), (50, 35)):
        images = torch.randn(2, 3, *size)
        torch.testing.assert_close(run(images), model(images), rtol=0, atol=1e-5)
